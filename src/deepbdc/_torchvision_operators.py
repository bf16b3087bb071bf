"""Make torchvision importable with a torch build that its compiled library does not match.

The torchvision wheel on PyPI for Linux is built for CUDA. With a CPU build of torch, its compiled library ``_C`` cannot
be loaded, so the operators ``nms`` and ``qnms`` are never declared, and ``import torchvision`` fails with "operator
torchvision::nms does not exist" (pytorch/vision#9085). timm, torchmetrics and lightning-fabric import torchvision and
fail as well. This happens to everyone who installs the two packages from different indexes.

It is enough to declare the two operators without a kernel: transforms, models and data sets then work, and calling
``nms`` still raises. `install` declares them just before torchvision is first imported, and only if its library cannot
be loaded. This module can be deleted when torchvision imports without its compiled library, or when its wheel on PyPI
loads with a CPU build of torch.
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
_libraries: list[object] = []  # keeps them alive: a freed torch.library.Library undoes its declarations


class _BeforeTorchvision(MetaPathFinder):
    """An import hook that finds no modules; it declares the operators when torchvision is about to be imported."""

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
    """Whether torchvision's library ``_C`` can be loaded with the installed torch."""
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
    """Wait for the first import of torchvision. Does nothing if it is already imported or already waited for."""
    watched = any(isinstance(finder, _BeforeTorchvision) for finder in sys.meta_path)
    if "torchvision" not in sys.modules and not watched:
        sys.meta_path.insert(0, _BeforeTorchvision())
