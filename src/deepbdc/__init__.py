"""Few-shot image classification with Deep Brownian Distance Covariance.

Names are loaded on first use, so that ``import deepbdc`` and ``deepbdc --help`` cost milliseconds.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from deepbdc import _torchvision_operators

if TYPE_CHECKING:
    from deepbdc.backbones import create_backbone, list_backbones
    from deepbdc.bdc import bd_correlation, bdc, bdc_matrix, bdc_vector, distance_matrix, double_center
    from deepbdc.classifiers import create_classifier, list_classifiers
    from deepbdc.data.loading import list_datasets, load_dataset
    from deepbdc.embedding import Embedding
    from deepbdc.episodes import sample_episodes
    from deepbdc.estimator import FewShotClassifier
    from deepbdc.evaluation import evaluate
    from deepbdc.methods import Method, create_method, list_methods
    from deepbdc.pooling import BDCPool
    from deepbdc.released import load_released_checkpoint

__version__ = "0.1.0"

__all__ = [
    "BDCPool",
    "Embedding",
    "FewShotClassifier",
    "Method",
    "bd_correlation",
    "bdc",
    "bdc_matrix",
    "bdc_vector",
    "create_backbone",
    "create_classifier",
    "create_method",
    "distance_matrix",
    "double_center",
    "evaluate",
    "list_backbones",
    "list_classifiers",
    "list_datasets",
    "list_methods",
    "load_dataset",
    "load_released_checkpoint",
    "sample_episodes",
]

_HOME = {
    "BDCPool": "pooling",
    "Embedding": "embedding",
    "FewShotClassifier": "estimator",
    "Method": "methods",
    "bd_correlation": "bdc",
    "bdc": "bdc",
    "bdc_matrix": "bdc",
    "bdc_vector": "bdc",
    "create_backbone": "backbones",
    "create_classifier": "classifiers",
    "create_method": "methods",
    "distance_matrix": "bdc",
    "double_center": "bdc",
    "evaluate": "evaluation",
    "list_backbones": "backbones",
    "list_classifiers": "classifiers",
    "list_datasets": "data.loading",
    "list_methods": "methods",
    "load_dataset": "data.loading",
    "load_released_checkpoint": "released",
    "sample_episodes": "episodes",
}


def __getattr__(name: str) -> Any:
    """Import the module that ``name`` lives in, the first time it is asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'deepbdc' has no attribute {name!r}")
    value = getattr(import_module(f"deepbdc.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """``deepbdc.bdc`` is the promised function, though ``deepbdc/bdc.py`` is also a module.

    Importing a submodule binds it in its package, which would hide the function behind the module.
    ``from deepbdc.bdc import ...`` works all the same (``import deepbdc.bdc as name`` gives the function).
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "bdc" and isinstance(value, ModuleType):
            value = value.bdc
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
_torchvision_operators.install()
