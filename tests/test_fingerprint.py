"""Two modules that compute different things never share a fingerprint, and so never a file of cached features."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deepbdc
from deepbdc import BDCPool, Embedding, create_backbone
from deepbdc._fingerprint import weights_fingerprint
from deepbdc.classifiers.base import Classifier, classifiers
from deepbdc.feature_bank import build_bank
from deepbdc.pooling import Pool
from deepbdc.preprocessing import Preprocessing
from tests.settings import other_values
from tests.test_evaluation import dataset

deepbdc.list_methods()  # imports all classifiers


def children(kind: type) -> list[Any]:
    found = [child for own in kind.__subclasses__() for child in [own, *children(own)]]
    return [child for child in found if child.__module__.startswith("deepbdc.") and not inspect.isabstract(child)]


def made(factory: Any, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    needed = inspect.signature(factory).parameters.values()
    module: nn.Module = factory(**{entry.name: 4 for entry in needed if entry.default is entry.empty} | options)
    return module


UNREGISTERED = [kind for kind in children(Classifier) if "score" in vars(kind) and kind.__module__ not in {
    classifiers.find(name).__module__ for name in classifiers.names()
}]  # fmt: skip
FACTORIES = [*children(Pool), *(classifiers.find(name) for name in classifiers.names()), *UNREGISTERED]


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda factory: factory.__name__)
def test_every_option_of_a_pool_or_classifier_is_in_its_fingerprint(factory: Any) -> None:
    if factory.__name__ in ("LinearClassifier", "FusionClassifier"):
        pytest.skip("abstract, or made of other classifiers and without options of its own")
    options = other_values(factory, leave_out=("self", "pool", "prototype"))
    found = {weights_fingerprint(made(factory))}
    assert weights_fingerprint(made(factory)) in found
    for option, value in options.items():
        more = {"features": 4} if option == "slots" else {}
        found.add(weights_fingerprint(made(factory, **{option: value}, **more)))
    assert len(found) == 1 + len(options)


def test_pools_are_covered() -> None:
    assert {"AveragePool", "Flatten", "KeepMap", "BDCPool"} <= {factory.__name__ for factory in FACTORIES}
    assert {"SecondMomentPool", "CovarianceRootPool"} <= {factory.__name__ for factory in FACTORIES}
    assert {"ImageToClassClassifier", "AdaptedLinearClassifier", "GaussianClassifier"} <= {
        factory.__name__ for factory in FACTORIES
    }


class Power(Pool):
    """A pool whose option shows neither in its weights nor in a repr of its own."""

    def __init__(self, power: float) -> None:
        super().__init__(power=power)
        self.power, self.out_features = power, 16

    def represent(self, reduced: Tensor) -> Tensor:
        return reduced.clamp(min=0).pow(self.power).mean(dim=(2, 3))

    def extra_repr(self) -> str:
        return ""


def test_two_pools_that_differ_in_an_option_share_no_file(tmp_path: Any) -> None:
    data, banks = dataset(classes=2, images=3), []
    for power in (1.0, 2.0):
        torch.manual_seed(0)
        backbone = create_backbone("conv4", width=0.25, removed_downsamplings=1)
        embedding = Embedding(backbone, Power(power), Preprocessing(16, 16))
        banks.append(build_bank(embedding, data, cache=tmp_path))
    assert len(list(tmp_path.glob("*.npy"))) == 2
    assert not torch.equal(banks[0].features, banks[1].features)


def test_the_structure_counts() -> None:
    layers = [nn.Sequential(nn.Linear(3, 3), activation) for activation in (nn.ReLU(), nn.Tanh())]
    for layer in layers:
        nn.init.ones_(layer[0].weight)  # type: ignore[arg-type]
        nn.init.zeros_(layer[0].bias)  # type: ignore[arg-type]
    assert weights_fingerprint(layers[0]) != weights_fingerprint(layers[1])
    assert weights_fingerprint(nn.Dropout(0.1)) != weights_fingerprint(nn.Dropout(0.2))
    assert weights_fingerprint(BDCPool(4)) == weights_fingerprint(BDCPool(4))
