"""Reads pictures in batches and sends them through the network, while threads already decode the next batch."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deepbdc._fingerprint import weights_fingerprint
from deepbdc._modes import evaluating
from deepbdc.backbones.folding import computed_by
from deepbdc.data.images import BadImage
from deepbdc.data.transforms import NEARER, test_transform
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.own_images import pictures
from deepbdc.own_images.engines import engine_for
from deepbdc.own_images.pictures import EmbeddedImage, ImageLike

OnBad = Callable[[BadImage], None]
"""Is called with the error of each picture that cannot be read."""
_THREADS = max(4, os.cpu_count() or 1)  # they decode pictures; Pillow lets other threads work meanwhile
_BATCHES_IN_MEMORY = 2  # the one in the network, and the one that is being read


@dataclass(frozen=True)
class _DecodedImage:
    """A picture that is ready for the network."""

    pixels: Tensor
    """``(views, 3, size, size)``: the whole picture, and perhaps two parts of it."""
    thumbnail: bytes


_Read = EmbeddedImage | _DecodedImage
_Batch = list[tuple[str, Future[_Read]]]


def embed_all(
    images: Sequence[ImageLike],
    embedding: Embedding,
    batch_size: int,
    on_bad: OnBad | None = None,
    parts: bool = False,
) -> list[EmbeddedImage]:
    """Send all pictures through the network. Without ``on_bad``, one error names all that cannot be read."""
    bad: list[BadImage] = []
    batches = embed_batches(images, embedding, batch_size, on_bad or bad.append, parts=parts)
    found = [image for batch in batches for image in batch]
    raise_bad(bad)
    return found


def raise_bad(errors: Sequence[BadImage], most: int = 20) -> None:
    """Raise one error for all pictures that could not be read; nothing if there are none."""
    if len(errors) == 1:
        cause = errors[0].__cause__
        raise cause if isinstance(cause, (FileNotFoundError, IsADirectoryError)) else errors[0]
    if errors:
        lines = "".join(f"\n  {error}" for error in errors[:most])
        more = f"\n  ... and {len(errors) - most:,} more" if len(errors) > most else ""
        raise BadImage(f"{len(errors):,} pictures cannot be used:{lines}{more}")


def embed_batches(
    images: Sequence[ImageLike],
    embedding: Embedding,
    batch_size: int,
    on_bad: OnBad | None = None,
    thumbnails: bool = True,
    parts: bool = False,
) -> Iterator[list[EmbeddedImage]]:
    """Send pictures through the network, one batch at a time.

    Args:
        images: Pictures. An `EmbeddedImage` is passed on as it is, if the same network made it.
        embedding: The network.
        batch_size: Pictures per batch.
        on_bad: Called with the error of each picture that cannot be read. That picture is then missing from its batch,
            which may even be empty. Without ``on_bad`` the error is raised.
        thumbnails: Whether to make thumbnails. Without them, ``thumbnail`` is empty.
        parts: Whether two parts of each picture that is not tiny go through the network, too. Pictures that are
            embedded already keep what they have.
    """
    embedding.check_fixed()
    network = map_fingerprint(embedding)
    transform = test_transform(embedding.preprocessing)
    smallest_side = max(embedding.preprocessing.resize, round(NEARER * embedding.preprocessing.input_size) * parts)

    def read(image: ImageLike, position: int) -> _Read:
        if isinstance(image, EmbeddedImage):
            if image.network != network:
                raise UserError(f"{image.name} was embedded by another network or setting: embed it again")
            return image
        picture = pictures.decode(image, position, smallest_side)
        try:
            pixels = transform(picture).unsqueeze(0)
            # Parts of a tiny picture would only be blurred: on pictures of 32 pixels, they cost accuracy.
            tiny = 2 * min(picture.size) < embedding.preprocessing.input_size
            pixels = torch.cat([pixels, transform.parts(picture)]) if parts and not tiny else pixels
            return _DecodedImage(pixels, pictures.thumbnail(picture) if thumbnails else b"")
        except Exception as error:  # the picture is unusual in a way that we did not foresee
            name = pictures.name_of(image, position)
            raise BadImage(f"{name}: {picture.width}×{picture.height} pixels cannot be used ({error})") from error

    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: list[_Batch] = []
        for start in range(0, len(images), batch_size):
            batch = enumerate(images[start : start + batch_size], start)
            waiting.append([(pictures.name_of(image, i), pool.submit(read, image, i)) for i, image in batch])
            if len(waiting) == _BATCHES_IN_MEMORY:
                yield _through_network(embedding, _results(waiting.pop(0), on_bad), network)
        for last in waiting:
            yield _through_network(embedding, _results(last, on_bad), network)


@torch.no_grad()
def represent(embedding: Embedding, maps: Tensor, batch_size: int) -> Tensor:
    """Pool reduced feature maps ``(n, d, h, w)`` into vectors ``(n, features)`` on the device of the network."""
    device = device_of(embedding)
    with evaluating(embedding):
        return torch.cat([embedding.represent(part.to(device)).flatten(1) for part in maps.split(batch_size)])


def stack_maps(images: Sequence[EmbeddedImage]) -> Tensor:
    """The feature maps of pictures as one tensor ``(n, d, h, w)``."""
    return torch.stack([image.features for image in images])


def map_fingerprint(embedding: Embedding) -> str:
    """Two embeddings with the same fingerprint make the same feature maps. It is computed anew if a weight changed."""
    reduction = getattr(embedding.pool, "reduction", nn.Identity())
    makers = nn.ModuleDict({"backbone": embedding.backbone, "reduction": reduction})
    state = [(value.data_ptr(), value._version) for value in makers.state_dict().values()]
    known: tuple[list[tuple[int, int]], str] | None = getattr(embedding, "_fingerprint", None)
    if known is None or known[0] != state:
        known = state, f"{weights_fingerprint(makers)} {embedding.preprocessing}"
        embedding._fingerprint = known  # type: ignore[assignment]
    return known[1]


def device_of(network: nn.Module) -> torch.device:
    """The device of the first parameter; the CPU if there are no parameters."""
    return next(network.parameters(), torch.zeros(())).device


def _results(batch: _Batch, on_bad: OnBad | None) -> list[tuple[str, _Read]]:
    """Wait until a batch is read. Return the names and contents of the pictures that could be read."""
    found = []
    for name, future in batch:
        try:
            found.append((name, future.result()))
        except (BadImage, OSError) as error:
            if on_bad is None:
                raise
            on_bad(error if isinstance(error, BadImage) else _unreadable(name, error))
    return found


def _unreadable(name: str, cause: OSError) -> BadImage:
    error = BadImage(f"{name}: cannot be read ({cause})")
    error.__cause__ = cause
    return error


@torch.no_grad()
def _through_network(embedding: Embedding, batch: list[tuple[str, _Read]], network: str) -> list[EmbeddedImage]:
    """Send those pictures of a batch through the network that are not embedded yet."""
    new = [content.pixels for _, content in batch if isinstance(content, _DecodedImage)]
    maps: Iterator[Tensor] = iter(())
    if new:
        engine = engine_for(embedding.backbone, network)
        with evaluating(embedding), computed_by(embedding.backbone, engine):
            found = embedding.reduced_map(torch.cat(new).to(device_of(embedding))).cpu()
            maps = iter(found.split([len(views) for views in new]))
    return [
        _embedded(name, next(maps), content.thumbnail, network) if isinstance(content, _DecodedImage) else content
        for name, content in batch
    ]


def _embedded(name: str, maps: Tensor, thumbnail: bytes, network: str) -> EmbeddedImage:
    """A picture with the maps of its views ``(views, d, h, w)``. A view would keep those of the batch in memory."""
    parts = maps[1:].clone() if len(maps) > 1 else None
    return EmbeddedImage(name, maps[0].clone(), thumbnail, network, parts)
