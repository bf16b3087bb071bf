"""Devices and processes, through Lightning Fabric: from one core to many machines without a change of code."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn

from deepbdc.errors import UserError
from deepbdc.feature_bank import Shard
from deepbdc.training.batches import Process

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true")


@dataclass(frozen=True)
class DeviceOptions:
    """Where to compute, as Lightning Fabric names it."""

    accelerator: str = "auto"
    """auto, cpu, cuda (or gpu), mps."""
    devices: str | int = "auto"
    """How many processes a machine, or which GPUs ("0,2"); auto takes all GPUs, or one process on the CPU."""
    num_nodes: int = 1
    strategy: str = "auto"


def start(options: DeviceOptions, precision: str = "32-true") -> "Fabric":
    """Start the processes; every one of them returns from this call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about other packages, at import
        from lightning_fabric import Fabric
        from lightning_fabric.strategies import DDPStrategy

    if options.strategy not in STRATEGIES:
        raise UserError(
            f"--strategy must be one of {', '.join(STRATEGIES)}, got {options.strategy!r}: "
            "these networks fit on one device, so each process has a whole copy"
        )
    accelerator = options.accelerator
    if accelerator == "auto" and not torch.cuda.is_available():
        accelerator = "cpu"  # an Apple GPU must be asked for: its results are not those of the CPU
    devices: Any = options.devices
    if devices == "auto" and accelerator == "cpu":
        devices = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # as torchrun says
    elif devices == "auto" and accelerator != "mps":
        devices = max(1, torch.cuda.device_count())
    elif isinstance(devices, str) and devices.isdecimal():
        devices = int(devices)
    strategy: Any = "auto"
    if devices not in (1, "auto") or options.num_nodes > 1 or options.strategy != "auto":
        unused = options.strategy.endswith("true")
        strategy = DDPStrategy(broadcast_buffers=False, find_unused_parameters=unused)
    if precision == "16-mixed" and accelerator == "cpu":
        raise UserError("precision 16-mixed needs a GPU: on the CPU choose bf16-mixed or 32-true")
    asked: dict[str, Any] = {"accelerator": accelerator, "devices": devices, "num_nodes": options.num_nodes}
    try:
        fabric = Fabric(**asked, strategy=strategy, precision=precision)
    except (RuntimeError, TypeError, ValueError) as error:
        words = ", ".join(f"{name}={value}" for name, value in asked.items())
        raise UserError(f"these devices are not to be had here ({words}): {error}") from error
    _quieten()
    fabric.launch()
    return fabric


def _quieten() -> None:
    """Hide what Fabric and torch have to say to each other about names that will change."""
    for text in (".*broadcast_buffers.*", ".*all_gather.*"):
        warnings.filterwarnings("ignore", message=text, category=FutureWarning)
        warnings.filterwarnings("ignore", message=text, category=UserWarning)


def process_of(fabric: "Fabric") -> Process:
    """Which process of how many this is."""
    return Process(fabric.global_rank, fabric.world_size)


def shard(fabric: "Fabric") -> Shard | None:
    """This process's share of the images to embed; None if there is one process only."""
    if fabric.world_size == 1:
        return None

    def gather(part: Tensor) -> Tensor:
        gathered: Tensor = fabric.all_gather(part.to(fabric.device))
        return gathered.cpu()

    return Shard(fabric.global_rank, fabric.world_size, gather)


def average_buffers(fabric: "Fabric", network: nn.Module) -> None:
    """Make the running statistics of batch norm the mean over all processes, so that these never drift apart."""
    if fabric.world_size == 1:
        return
    buffers = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
    if not buffers:
        return
    flat = torch.cat([buffer.reshape(-1).float() for buffer in buffers])
    mean: Tensor = fabric.all_reduce(flat, reduce_op="mean")
    for buffer, values in zip(buffers, mean.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(values.reshape(buffer.shape))


def from_first(fabric: "Fabric", make: Callable[[], T]) -> T:
    """What ``make`` gives in the first process, for all of them: only its machine need have the files."""
    if fabric.world_size == 1:
        return make()
    made: tuple[T | None, Exception | None] = (None, None)
    if fabric.is_global_zero:
        try:
            made = make(), None
        except Exception as error:  # all processes are to hear of it, or they wait for ever
            made = None, error
    value, failure = fabric.broadcast(made)
    if failure is not None:
        raise failure
    return cast(T, value)
