"""Finds the network that `FewShotClassifier(backbone=...)` means: by name, of a training run, or a person's own."""

from collections.abc import Mapping
from functools import lru_cache
from numbers import Integral
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
from deepbdc.own_images.representation import DEFAULT_POOL, POOLS, embedding_of
from deepbdc.preprocessing import Preprocessing
from deepbdc.weight_files import read_preprocessing, read_weights

DEFAULT_BACKBONE = "efficientnet_lite2"
TRAINED: Mapping[str, Mapping[str, Any]] = {
    "efficientnet_lite0": {"head": True},
    "efficientnet_lite1": {"head": True},
    "efficientnet_lite2": {"head": True},
    "efficientnet_lite0_fine": {},
}
"""The built-in networks that were trained on ImageNet, with the options that keep all of their layers."""
SMALLEST, LARGEST = 32, 2048
"""The sides of images that a network may be given, in pixels."""
_TIMM = "timm/"
_IMAGENET = Preprocessing(224, 224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
_Description = Mapping[str, Any]


class OwnBackbone(Backbone):
    """Any network that gives feature maps ``(n, channels, h, w)``.

    If the network has a ``preprocessing``, it is used; otherwise that of ImageNet networks.
    """

    def __init__(self, network: nn.Module, size: int | None) -> None:
        given = getattr(network, "preprocessing", None)
        preprocessing = given if isinstance(given, Preprocessing) else _IMAGENET
        super().__init__(_channels(network, size or preprocessing.input_size), preprocessing)
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(n, 3, h, w)`` to feature maps, computed in the precision of the network."""
        features: Tensor = self.network(images.to(_first(self.network).dtype))
        return features.float()


def find_embedding(
    backbone: Any, pool: str | None, size: int | None, device: str, weights: str | Path | None = None
) -> Embedding:
    """The embedding that the settings of a `FewShotClassifier` describe.

    An embedding that is given by a name or as a run is built once, in evaluation mode on ``device``, and shared. A
    person's own network stays on its device and in its mode.
    """
    if pool is not None and pool not in POOLS:
        raise UserError(f"pool must be one of {', '.join(POOLS)}, got {pool!r}")
    _check_size(size)
    method = find_method(backbone, device)
    if weights is not None and (method is not None or not isinstance(backbone, str)):
        raise UserError("weights belong to a network that is given by its name, like backbone='timm/resnet50'")
    if method is None and isinstance(backbone, str):
        file = None if weights is None else Path(weights).resolve()
        return _named_embedding(backbone, pool or DEFAULT_POOL, size, device, file, _modification_time(file))
    if method is None and not isinstance(backbone, Embedding):
        return _own_embedding(backbone, pool, size)
    if pool is not None or size is not None:
        raise UserError("a trained embedding has its own pooling and size: leave out pool and size")
    return backbone if method is None else method.embedding


def _check_size(size: Any) -> None:
    """Refuse sizes of which nothing useful can come: a map needs some positions, and memory has an end."""
    if size is not None and (not isinstance(size, Integral) or not SMALLEST <= int(size) <= LARGEST):
        raise UserError(
            f"size must be a whole number of pixels from {SMALLEST} to {LARGEST}, got {size!r}: 160 is fast, 224 is "
            "what most networks were made for"
        )


def find_method(backbone: Any, device: str) -> Method | None:
    """The trained method: ``backbone`` itself, that of a run, or one of the zoo; None for any other network."""
    if isinstance(backbone, Method):
        return backbone
    path = _run_path(backbone)
    return None if path is None else _run_method(path, _modification_time(path), device)


def _run_path(backbone: Any) -> Path | None:
    """The folder or file of the run, or of the network in the zoo, that ``backbone`` names; None for other networks."""
    from deepbdc.zoo import network_folder

    if isinstance(backbone, Path):
        return backbone
    if not isinstance(backbone, str):
        return None
    if Path(backbone).exists():
        return Path(backbone)
    return network_folder(backbone) if "/" in backbone and not backbone.startswith(_TIMM) else None


def network_from(description: _Description, backbone: Any, device: str) -> tuple[Embedding, Method | None]:
    """The embedding that a file describes, and the method that it belongs to, if any; still without their weights.

    Args:
        description: The entry ``embedding`` in the header of the file.
        backbone: The person's own network or method, if the file was made with one.
        device: Where to compute.
    """
    method = None
    if description["kind"] == "named":
        # Files of earlier versions have no options: their networks had no head.
        network = _random_backbone(description["name"], description.get("options", {}))
        embedding = embedding_of(network, description["pool"]).eval()
    elif description["kind"] == "run":
        method = _method_of(description["recipe"]).eval()
        embedding = method.embedding
    elif isinstance(backbone, nn.Module):
        method = find_method(backbone, device)
        # In files of earlier versions, a network without the name of a pooling had BDC.
        given = isinstance(backbone, (Embedding, Method))
        embedding = find_embedding(backbone, description["pool"] or (None if given else "bdc"), None, device)
    else:
        raise UserError(
            "this classifier was fitted with a network of your own, which a file cannot hold: "
            "give the network itself to load(path, backbone=network)"
        )
    embedding.preprocessing = read_preprocessing(description)
    embedding.description = description
    (embedding if method is None else method).to(device)
    return embedding, method


def _own_embedding(network: Any, pool: str | None, size: int | None) -> Embedding:
    if not isinstance(network, nn.Module):
        raise WrongType(
            "backbone must be a name, a trained run, or a network that gives feature maps, "
            f"got {type(network).__name__}"
        )
    own = OwnBackbone(network, size)
    pool = pool or DEFAULT_POOL
    embedding = embedding_of(own, pool, own.preprocessing.resized(size))
    embedding.pool.to(_first(network).device)
    embedding.description = {"kind": "own", "pool": pool}
    return embedding


@lru_cache(maxsize=4)
def _named_embedding(
    name: str, pool: str, size: int | None, device: str, weights: Path | None, modified: int
) -> Embedding:
    """The embedding with a network of the package or of timm. A file of weights that changed (``modified``) is read."""
    timm, options = name.startswith(_TIMM), TRAINED.get(name, {})
    if weights is None and not timm and name in list_backbones() and name not in TRAINED:
        raise UserError(
            f"{name} has no trained weights: train it with 'deepbdc train' and give the folder of the run, give a file "
            f"of weights, or choose {', '.join(TRAINED)} or 'timm/NAME', which were trained on ImageNet"
        )
    description = {"kind": "named", "name": name, "pool": pool, "options": dict(options)}
    if weights is None:
        network = create_backbone(name, pretrained=True, **options)
    else:
        network = _backbone_from_file(name, options, weights)
        description["weights"] = weights.name
    embedding = embedding_of(network, pool, network.preprocessing.resized(size))
    embedding.description = description
    return embedding.to(device).eval()


def _backbone_from_file(name: str, options: Mapping[str, Any], file: Path) -> Backbone:
    """A named network with the weights of a person's own file."""
    weights = read_weights(file)
    if name.startswith(_TIMM):
        return create_backbone(name, weights=weights)
    network = _random_backbone(name, options)
    inner = getattr(network, "network", network)  # the layers under the names of their publishers
    try:
        missing, unknown = inner.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # of another shape
        raise UserError(f"{file} does not fit {name}: {str(error).splitlines()[-1].strip()}") from error
    missing = [layer for layer in missing if not layer.endswith("num_batches_tracked")]
    if missing:
        raise UserError(
            f"{file} does not fit {name}: it lacks {len(missing)} of its weights, like {missing[0]}"
            + (f", and has others, like {unknown[0]}" if unknown else "")
        )
    return network


def _random_backbone(name: str, options: Mapping[str, Any]) -> Backbone:
    """A network whose weights will be loaded."""
    pretrained = {"pretrained": False} if name.startswith(_TIMM) or name in TRAINED else {}
    return create_backbone(name, **pretrained, **options)


@lru_cache(maxsize=4)
def _run_method(path: Path, modified: int, device: str) -> Method:
    """The trained method of a run. A run that was written again since (``modified``) is loaded again."""
    from deepbdc.runs import load_run

    run = load_run(path)
    run.method.embedding.description = {"kind": "run", "recipe": run.recipe.as_dict()}
    return run.method.to(device).eval()


def _method_of(recipe: Mapping[str, Any]) -> Method:
    """The method of a recipe with random weights. The global random state does not change."""
    from deepbdc.recipes import build_method, recipe_from_dict

    with torch.random.fork_rng(devices=[]):
        return build_method(recipe_from_dict(recipe, "the file"))


def _modification_time(path: Path | None) -> int:
    """When the model of a run, or a file, was written; 0 if there is none, in which case reading raises the error."""
    if path is None:
        return 0
    file = path / "model.safetensors" if path.is_dir() else path
    return file.stat().st_mtime_ns if file.exists() else 0


def _first(network: nn.Module) -> Tensor:
    """The first parameter of a network, which tells its device and precision."""
    return next(network.parameters(), torch.zeros(()))


@torch.no_grad()
def _channels(network: nn.Module, size: int) -> int:
    """The number of channels of the maps that a network gives for an image of ``size`` × ``size`` pixels."""
    like = _first(network)
    if like.is_meta:
        raise UserError("the backbone has no weights (it is on the device 'meta'): load them first")
    with evaluating(network):
        features = network(torch.zeros(1, 3, size, size, device=like.device, dtype=like.dtype))
    if not isinstance(features, Tensor) or features.dim() != 4:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UserError(
            f"a backbone must give feature maps (n, channels, h, w), but for one image of {size}×{size} pixels it "
            f"gave {got}: leave out the last pooling and classification layers of the network"
        )
    return int(features.shape[1])
