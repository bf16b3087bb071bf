"""Devices and processes, through Lightning Fabric: the same code runs on one core and on many machines."""

import os
import pickle
import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from deepbdc.errors import UserError
from deepbdc.feature_bank import Shard
from deepbdc.stages import Process

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true")
"""The last two mean the same here."""


@dataclass(frozen=True)
class DeviceOptions:
    """Where to compute, as Lightning Fabric names it."""

    accelerator: str = "auto"
    """auto, cpu, cuda (or gpu), mps."""
    devices: str | int = "auto"
    """Processes per machine, or which GPUs ("0,2"); auto takes all GPUs, or one process on the CPU."""
    num_nodes: int = 1
    strategy: str = "auto"


def start(options: DeviceOptions, precision: str = "32-true") -> "Fabric":
    """Start the processes; each of them returns from this call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other packages warn when they are imported
        from lightning_fabric import Fabric
        from lightning_fabric.strategies import DDPStrategy

    if options.strategy not in STRATEGIES:
        raise UserError(
            f"--strategy must be one of {', '.join(STRATEGIES)}, got {options.strategy!r}: "
            "these networks fit on one device, so each process has a whole copy"
        )
    accelerator = options.accelerator
    if accelerator == "auto" and not torch.cuda.is_available():
        accelerator = "cpu"  # an Apple GPU is used only on request: its results differ from those of the CPU
    devices: Any = options.devices
    if devices == "auto" and accelerator == "cpu":
        devices = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # set by torchrun
    elif devices == "auto" and accelerator != "mps":
        devices = max(1, torch.cuda.device_count())
    elif isinstance(devices, str) and devices.isdecimal():
        devices = int(devices)
    strategy: Any = "auto"
    if devices not in (1, "auto") or options.num_nodes > 1 or options.strategy != "auto":
        # A method may have parameters without a gradient in some of its stages.
        strategy = DDPStrategy(broadcast_buffers=False, find_unused_parameters=True)
    if precision == "16-mixed" and accelerator == "cpu":
        raise UserError("precision 16-mixed needs a GPU: on the CPU choose bf16-mixed or 32-true")
    asked: dict[str, Any] = {"accelerator": accelerator, "devices": devices, "num_nodes": options.num_nodes}
    try:
        fabric = Fabric(**asked, strategy=strategy, precision=precision)
    except (RuntimeError, TypeError, ValueError) as error:
        words = ", ".join(f"{name}={value}" for name, value in asked.items())
        raise UserError(f"these devices are not available here ({words}): {error}") from error
    _quieten()
    fabric.launch()
    return fabric


def _quieten() -> None:
    """Hide warnings that concern Fabric's own calls of torch."""
    for text in (".*broadcast_buffers.*", ".*all_gather.*", ".*find_unused_parameters=True was specified.*"):
        warnings.filterwarnings("ignore", message=text, category=FutureWarning)
        warnings.filterwarnings("ignore", message=text, category=UserWarning)


def slow_precision(fabric: "Fabric", precision: str) -> str | None:
    """Advice if this processor only imitates the precision of a recipe, which takes many times as long."""
    if precision != "bf16-mixed" or fabric.device.type != "cpu" or platform.machine() not in ("x86_64", "AMD64"):
        return None
    known: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # newer versions of torch tell
    if not known or known.get("avx512_bf16") or known.get("amx_bf16"):
        return None
    return "This processor has no instructions for bf16-mixed: --precision 32-true is many times as fast."


def process_of(fabric: "Fabric") -> Process:
    """The rank of this process, and the number of processes."""
    return Process(fabric.global_rank, fabric.world_size)


def shard(fabric: "Fabric") -> Shard | None:
    """This process's share of the images to embed; None if there is only one process."""
    if fabric.world_size == 1:
        return None

    def gather(part: Tensor) -> Tensor:
        gathered: Tensor = fabric.all_gather(part.to(fabric.device))
        return gathered.cpu()

    return Shard(fabric.global_rank, fabric.world_size, gather)


def average_buffers(fabric: "Fabric", network: nn.Module) -> None:
    """Average the running statistics of batch norm over all processes, so that they stay the same everywhere."""
    if fabric.world_size == 1:
        return
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    buffers = [buffer for norm in norms for buffer in norm.buffers() if buffer.is_floating_point()]
    if not buffers:
        return
    flat = torch.cat([buffer.reshape(-1).float() for buffer in buffers])
    mean: Tensor = fabric.all_reduce(flat, reduce_op="mean")
    for buffer, values in zip(buffers, mean.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(values.reshape(buffer.shape))


def from_first(fabric: "Fabric", make: Callable[[], T]) -> T:
    """What ``make`` returns in the first process, for all processes: only its machine needs to have the files.

    An error in the first process is raised in all of them.
    """
    if fabric.world_size == 1:
        return make()
    made: tuple[T | None, Exception | None] = (None, None)
    if fabric.is_global_zero:
        try:
            made = make(), None
        except Exception as error:
            made = None, error
    value, failure = fabric.broadcast(made)
    if failure is not None:
        raise failure
    return cast(T, value)


def in_all(fabric: "Fabric", work: Callable[[], T]) -> T:
    """Do ``work`` in every process. If it fails in one of them, all processes raise the error of the first that failed.

    Without this, the other processes would wait for the failed one for ever.
    """
    if fabric.world_size == 1:
        return work()
    result: T | None = None
    failure: Exception | None = None
    try:
        result = work()
    except Exception as error:
        failure = _transferable(error)
    failed = fabric.all_reduce(torch.tensor(float(failure is not None), device=fabric.device), reduce_op="sum")
    if float(failed) > 0:
        failures: list[Exception | None] = [None] * fabric.world_size
        torch.distributed.all_gather_object(failures, failure)
        raise next(error for error in failures if error is not None)
    return cast(T, result)


def _transferable(error: Exception) -> Exception:
    """The error, or its text if it cannot be sent to other processes."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
