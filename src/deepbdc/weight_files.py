"""Files of weights: tensors and a JSON header in one safetensors file, written completely or not at all. No pickles."""

import json
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from deepbdc._files import write_bytes
from deepbdc.errors import UserError
from deepbdc.preprocessing import Preprocessing

FORMAT = 1
_KEY = "deepbdc"


def save(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a header of plain values."""
    write_bytes(path, as_bytes(tensors, header))


def as_bytes(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> bytes:
    """The content of the file that `save` writes."""
    from safetensors.torch import save as safetensors_bytes

    whole: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, value in tensors.items():
        kept = value.detach().cpu().contiguous()
        if kept.untyped_storage().data_ptr() in places:
            kept = kept.clone()  # the format has no tensors that share memory
        places.add(kept.untyped_storage().data_ptr())
        whole[name] = kept
    content: bytes = safetensors_bytes(whole, {_KEY: json.dumps({"format": FORMAT, **header})})
    return content


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file that `save` wrote; any other file raises an error that names it."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    return from_bytes(path.read_bytes(), path)  # in one go: a newer file may take its place meanwhile


def load_header(path: Path) -> dict[str, Any]:
    """Read only the header of a file that `save` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            header: dict[str, Any] = json.loads(file.metadata()[_KEY])
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise _damaged(path, error) from error
    return header


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is damaged, or was not written by deepbdc ({type(error).__name__})")


def from_bytes(content: bytes, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `as_bytes` made; errors name ``path``."""
    from safetensors import SafetensorError
    from safetensors.torch import load as safetensors_tensors

    try:
        tensors: dict[str, Tensor] = safetensors_tensors(content)
        length = int.from_bytes(content[:8], "little")
        header: dict[str, Any] = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][_KEY])
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise _damaged(path, error) from error
    if header.get("format") != FORMAT:
        raise UserError(f"{path} has format {header.get('format')}, this version of deepbdc reads {FORMAT}")
    return tensors, header


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights in a file that anybody wrote: safetensors, or of ``torch.save``. Reading never runs code of the file.

    Of a training checkpoint, the part ``state_dict`` or ``model`` is taken. The prefix ``module.`` of parallel training
    is dropped.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        if path.suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, UnpicklingError, EOFError, ValueError, KeyError) as error:
        raise UserError(
            f"{path} is no file of weights that can be read safely: give a .safetensors file, or one that torch.save "
            f"wrote and that holds only tensors ({type(error).__name__})"
        ) from error
    for part in ("state_dict", "model"):
        found = found.get(part, found) if isinstance(found, Mapping) else found
    if not isinstance(found, Mapping) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{path} holds no weights: it must map the names of layers to tensors")
    return {str(name).removeprefix("module."): value for name, value in found.items()}


class Memory(nn.Module):
    """Tensors that a network keeps under names, of any number and shape: a mean, class means, features.

    They are moved, saved and fingerprinted like buffers. A network that is loaded from a file takes whatever the file
    has of them.

    >>> memory = Memory()
    >>> memory["mean"] = torch.zeros(3)
    >>> "mean" in memory, memory["mean"].shape
    (True, torch.Size([3]))
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_place", torch.empty(0), persistent=False)  # is moved with the network, so it shows where

    def __setitem__(self, name: str, value: Tensor) -> None:
        place = self._buffers["_place"]
        assert place is not None
        self.register_buffer(name, value.detach().to(place.device))

    def __getitem__(self, name: str) -> Tensor:
        value = self._buffers.get(name)
        if value is None:
            raise UserError(f"this method remembers no {name!r} of its training classes: train it, or call remember")
        return value

    def __len__(self) -> int:
        return len(self._buffers) - 1

    def __contains__(self, name: str) -> bool:
        return name in self._buffers

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        """Replace all tensors by those of the state."""
        for name in [name for name in self._buffers if name != "_place"]:
            del self._buffers[name]
        for name, value in state_dict.items():
            if name.startswith(prefix):
                self[name.removeprefix(prefix)] = value.clone()


def load_into(
    network: nn.Module, tensors: Mapping[str, Tensor], prefix: str, source: Path, ignore: tuple[str, ...] = ()
) -> None:
    """Load the tensors whose names begin with ``prefix`` into ``network``: all of its own must be there, and no other.

    Args:
        network: What is filled.
        tensors: The content of a file.
        prefix: Left out of the names.
        source: The file, for errors.
        ignore: Beginnings of the names of other tensors that the file may have; ``("",)`` allows all.
    """
    others = [name for name in tensors if not name.startswith((prefix, *ignore))]
    if others:
        raise UserError(f"{source} does not fit the network: it also has {', '.join(others[:3])}")
    chosen = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    free = tuple(f"{name}." for name, module in network.named_modules() if isinstance(module, Memory))
    own = {name: value.shape for name, value in network.state_dict().items() if not name.startswith(free)}
    given = {name: value.shape for name, value in chosen.items() if not name.startswith(free)}
    wrong = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
    if wrong:
        raise UserError(f"{source} does not fit the network: different or missing are {', '.join(wrong[:3])}")
    network.load_state_dict(chosen)


def read_preprocessing(header: Mapping[str, Any]) -> Preprocessing:
    """The pre-processing in the header of a weights file."""
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in header["preprocessing"].items()
    }
    return Preprocessing(**given)
