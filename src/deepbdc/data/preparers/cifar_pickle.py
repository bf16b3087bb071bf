"""Read the pickles of CIFAR-100 without ever running what a pickle says.

A pickle is a program. This reader knows dictionaries, lists, numbers, text and arrays of bytes; every function that a
pickle asks for is looked up in a short list, and even those are our own stand-ins, not those of numpy.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from deepbdc.data.archives import UnsafeArchive


class _TypeOfBytes:
    """Stands in for ``numpy.dtype``: only unsigned bytes are known."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        if _text(name) not in ("u1", "|u1", "uint8"):
            raise pickle.UnpicklingError(f"an array of type {name!r}, only unsigned bytes are taken")

    def __setstate__(self, state: object) -> None:
        """Byte order and the like; bytes have none."""


class _ArrayOfBytes:
    """Stands in for ``numpy.ndarray`` while it is read."""

    array: np.ndarray[Any, Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, column_order, content = state
        if not isinstance(kind, _TypeOfBytes) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("an array of something else than bytes")
        self.array = np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if column_order else "C")


def _reconstruct(*_: object) -> _ArrayOfBytes:
    return _ArrayOfBytes()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Python 3 writes bytes in this way into pickles that Python 2 can read."""
    if not isinstance(text, str) or _text(encoding) not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"text in the encoding {encoding!r}")
    return text.encode("latin1")


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _ArrayOfBytes,
    ("numpy", "dtype"): _TypeOfBytes,
    ("_codecs", "encode"): _encode,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise UnsafeArchive(
                f"a pickle asks for {module}.{name}, which no file of CIFAR-100 needs. It was not run. Fetch the "
                "official cifar-100-python.tar.gz, or use cifar-100-binary.tar.gz, which is no program."
            )
        return _KNOWN[module, name]


def load_pickle(content: bytes, title: str) -> dict[str, Any]:
    """The dictionary in a file of CIFAR-100, with text for keys; arrays of bytes become numpy arrays.

    Raises:
        UnsafeArchive: It asks for anything else, or is no such pickle.
    """
    try:
        found = _Restricted(io.BytesIO(content), encoding="bytes").load()
    except UnsafeArchive:
        raise
    except Exception as error:  # A damaged pickle can raise nearly anything.
        raise UnsafeArchive(f"the file {title} is no pickle of CIFAR-100 that can be read safely: {error}") from error
    if not isinstance(found, dict):
        raise UnsafeArchive(f"the file {title} holds a {type(found).__name__}, not the dictionary of CIFAR-100.")
    return {_text(key): _plain(value) for key, value in found.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, _ArrayOfBytes):
        return value.array
    if isinstance(value, list):
        return [_text(item) if isinstance(item, bytes) else item for item in value]
    return value


def _text(value: str | bytes) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
