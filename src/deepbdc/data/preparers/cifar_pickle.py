"""Read the pickles of CIFAR-100 without running any code that they name.

A pickle can call any function. This reader builds only dictionaries, lists, numbers, text and arrays of bytes. The few
functions that it lets a pickle call are replaced with stand-ins defined here, so that not even numpy's are called.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from deepbdc.data.archives import UnsafeArchive


class _TypeOfBytes:
    """Stand-in for ``numpy.dtype`` that accepts only unsigned bytes."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        if _text(name) not in ("u1", "|u1", "uint8"):
            raise pickle.UnpicklingError(f"it has an array of type {name!r}; only unsigned bytes are allowed")

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment, which do not matter for bytes."""


class _ArrayOfBytes:
    """Stand-in for ``numpy.ndarray``; its content is in ``array`` after unpickling."""

    array: np.ndarray[Any, Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, column_order, content = state
        if not isinstance(kind, _TypeOfBytes) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it has an array of something other than bytes")
        self.array = np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if column_order else "C")


def _reconstruct(*_: object) -> _ArrayOfBytes:
    return _ArrayOfBytes()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Stand-in for ``_codecs.encode``, with which Python 3 writes bytes into pickles that Python 2 can read."""
    if not isinstance(text, str) or _text(encoding) not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it has text in the encoding {encoding!r}")
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
                f"a pickle asks for {module}.{name}, which no file of CIFAR-100 needs. It was not run. Download the "
                "official cifar-100-python.tar.gz, or use cifar-100-binary.tar.gz, which contains no pickles."
            )
        return _KNOWN[module, name]


def load_pickle(content: bytes, title: str) -> dict[str, Any]:
    """Read the dictionary in a file of CIFAR-100. Its keys become text, and arrays of bytes become numpy arrays.

    Raises:
        UnsafeArchive: The pickle asks for anything else, or is not a dictionary, or is damaged.
    """
    try:
        found = _Restricted(io.BytesIO(content), encoding="bytes").load()
    except UnsafeArchive:
        raise
    except Exception as error:  # a damaged pickle can raise nearly any error
        raise UnsafeArchive(f"the file {title} is not a pickle of CIFAR-100, or is not safe: {error}") from error
    if not isinstance(found, dict):
        raise UnsafeArchive(f"the file {title} contains a {type(found).__name__}, not the dictionary of CIFAR-100.")
    return {_text(key): _plain(value) for key, value in found.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, _ArrayOfBytes):
        return value.array
    if isinstance(value, list):
        return [_text(item) if isinstance(item, bytes) else item for item in value]
    return value


def _text(value: str | bytes) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
