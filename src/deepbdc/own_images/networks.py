"""The network behind a `FewShotClassifier`: by a name, of a run, or a person's own, always as an `Embedding`."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepbdc._modes import evaluating
from deepbdc.backbones import create_backbone, list_backbones
from deepbdc.backbones.base import Backbone
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError, WrongType
from deepbdc.methods.base import Method
from deepbdc.pooling import AveragePool, BDCPool, Pool
from deepbdc.preprocessing import Preprocessing
from deepbdc.weight_files import read_preprocessing

DEFAULT_BACKBONE = "efficientnet_lite0"
FINE_BACKBONE = "efficientnet_lite0_fine"
POOLS = ("bdc", "average")
_TIMM = "timm/"
_IMAGENET = Preprocessing(224, 224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
_Description = Mapping[str, Any]


class OwnBackbone(Backbone):
    """Any network that gives feature maps ``(n, channels, h, w)``, with its pre-processing if it has one."""

    def __init__(self, network: nn.Module, size: int | None) -> None:
        given = getattr(network, "preprocessing", None)
        preprocessing = given if isinstance(given, Preprocessing) else _IMAGENET
        super().__init__(_channels(network, size or preprocessing.input_size), preprocessing)
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(n, 3, h, w)`` to features, in the precision of the network."""
        features: Tensor = self.network(images.to(_first(self.network).dtype))
        return features.float()


def find_embedding(backbone: Any, pool: str | None, size: int | None, device: str) -> Embedding:
    """The embedding that the settings of a `FewShotClassifier` mean, in evaluation mode.

    One that is given by its name, or as a run, is made once and shared. A person's own network is left where it is, and
    as it is.
    """
    if pool is not None and pool not in POOLS:
        raise UserError(f"pool must be one of {', '.join(POOLS)}, got {pool!r}")
    if isinstance(backbone, (str, Path)) and not _is_run(backbone):
        return _named_embedding(str(backbone), pool or "bdc", size, device)
    if isinstance(backbone, (str, Path)):
        embedding = _run_embedding(Path(backbone), _age(Path(backbone)), device)
    elif isinstance(backbone, Method):
        embedding = backbone.embedding
    elif isinstance(backbone, Embedding):
        embedding = backbone
    elif isinstance(backbone, nn.Module):
        return _own_embedding(backbone, pool, size)
    else:
        raise WrongType(
            "backbone must be a name, a trained run, or a network that gives feature maps, "
            f"got {type(backbone).__name__}"
        )
    if pool is not None or size is not None:
        raise UserError("a trained embedding has its own pooling and size: leave out pool and size")
    return embedding


def embedding_from(description: _Description, backbone: Any, device: str) -> Embedding:
    """The embedding that a file describes, still without its weights; ``backbone`` is a person's own network."""
    from deepbdc.recipes import build_method, recipe_from_dict

    preprocessing = read_preprocessing(description)
    if description["kind"] == "named":
        network = create_backbone(description["name"], pretrained=False)
        embedding = Embedding(network, _pool(description["pool"], network), preprocessing)
    elif description["kind"] == "run":
        with torch.random.fork_rng(devices=[]):
            embedding = build_method(recipe_from_dict(description["recipe"], "the file")).embedding
        embedding.preprocessing = preprocessing
    elif backbone is None:
        raise UserError(
            "this classifier was fitted with a network of your own, which a file cannot hold: "
            "give it to load(path, backbone=network)"
        )
    else:
        embedding = find_embedding(backbone, description["pool"], None, device)
        embedding.preprocessing = preprocessing
    embedding.description = description
    return _on(embedding, device)


def _own_embedding(network: nn.Module, pool: str | None, size: int | None) -> Embedding:
    own = OwnBackbone(network, size)
    pooling = _pool(pool or "bdc", own).to(_first(network).device)
    embedding = Embedding(own, pooling, own.preprocessing.resized(size))
    embedding.description = {"kind": "own", "pool": pool}
    return embedding


@lru_cache(maxsize=4)
def _named_embedding(name: str, pool: str, size: int | None, device: str) -> Embedding:
    if not name.startswith(_TIMM) and name in list_backbones() and name not in (DEFAULT_BACKBONE, FINE_BACKBONE):
        raise UserError(
            f"{name} knows nothing yet: train it with 'deepbdc train' and give the folder of the run, "
            f"or take {DEFAULT_BACKBONE}, {FINE_BACKBONE} or 'timm/NAME', which were trained on ImageNet"
        )
    network = create_backbone(name, pretrained=True)
    embedding = Embedding(network, _pool(pool, network), network.preprocessing.resized(size))
    embedding.description = {"kind": "named", "name": name, "pool": pool}
    return _on(embedding, device)


@lru_cache(maxsize=4)
def _run_embedding(path: Path, age: int, device: str) -> Embedding:
    """The embedding of a run; ``age`` and ``device`` are there to tell one from another."""
    from deepbdc.runs import load_run

    run = load_run(path)
    embedding = run.method.embedding
    embedding.description = {"kind": "run", "recipe": run.recipe.as_dict()}
    return _on(embedding, device)


def _age(path: Path) -> int:
    """When the model of a run was written; 0 if there is none, which `load_run` will say."""
    file = path / "model.safetensors" if path.is_dir() else path
    return file.stat().st_mtime_ns if file.exists() else 0


def _is_run(backbone: str | Path) -> bool:
    return isinstance(backbone, Path) or Path(backbone).exists()


def _pool(name: str, backbone: Backbone) -> Pool:
    return BDCPool(backbone.out_channels) if name == "bdc" else AveragePool(backbone.out_channels)


def _on(embedding: Embedding, device: str) -> Embedding:
    return embedding.to(device).eval()


def _first(network: nn.Module) -> Tensor:
    """A parameter, to see the device and precision of a network by."""
    return next(network.parameters(), torch.zeros(()))


@torch.no_grad()
def _channels(network: nn.Module, size: int) -> int:
    like = _first(network)
    if like.is_meta:
        raise UserError("the backbone has no weights (it is on the device 'meta'): load them first")
    with evaluating(network):
        features = network(torch.zeros(1, 3, size, size, device=like.device, dtype=like.dtype))
    if not isinstance(features, Tensor) or features.dim() != 4:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UserError(
            f"a backbone must give feature maps (n, channels, h, w), but for one image of {size}×{size} pixels it "
            f"gave {got}: take the network without its last pooling and classification layers"
        )
    return int(features.shape[1])
