"""Make torchvision importable beside a torch build that its compiled part does not fit.

The torchvision wheel on PyPI for Linux is built against CUDA. Beside a CPU build of torch its compiled library ``_C``
cannot be loaded, so the operators ``nms`` and ``qnms`` are never declared, and ``import torchvision`` fails with
"operator torchvision::nms does not exist" (pytorch/vision#9085). timm, torchmetrics and lightning-fabric import
torchvision and fail with it. Anyone who mixes the two package indexes meets this.

Declaring the two operators (without a kernel) is enough: transforms, models and data sets then work; calling ``nms``
still raises. ``install`` arranges that this happens just before torchvision is first imported, and only if its library
cannot be loaded. This module can go when torchvision imports without its compiled part, or when its PyPI wheel loads
beside a CPU torch.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[object] = []  # a torch.library.Library undoes its declarations when it is collected


class _BeforeTorchvision(MetaPathFinder):
    """Finds nothing itself: it only notices that torchvision is about to be imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            spec = PathFinder.find_spec(name)
            if spec is not None and not _compiled_part_loads(spec):
                _declare_operators()
        return None


def _compiled_part_loads(spec: ModuleSpec) -> bool:
    """Whether torchvision's ``_C`` library fits the torch that is installed."""
    import torch

    for folder in spec.submodule_search_locations or ():
        for library in sorted([*Path(folder).glob("_C*.so"), *Path(folder).glob("_C*.pyd")]):
            try:
                torch.ops.load_library(library)
            except (ImportError, OSError):
                continue
            return True
    return False


def _declare_operators() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _libraries.append(library)


def install() -> None:
    """Watch for the first import of torchvision. Does nothing if it is imported already, or watched."""
    watched = any(isinstance(finder, _BeforeTorchvision) for finder in sys.meta_path)
    if "torchvision" not in sys.modules and not watched:
        sys.meta_path.insert(0, _BeforeTorchvision())
