"""Transforms from images to tensors, as in the paper: one by one for image files, in batches for decoded pixels."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from deepbdc.data.dataset import Pixels
from deepbdc.preprocessing import Preprocessing

if TYPE_CHECKING:
    from PIL import Image

ImageTransform = Callable[["Image.Image"], Tensor]
JITTER = 0.4
LONGEST = 4  # the largest aspect ratio that is resized as a whole, see `middle_part`
NEARER = 1.3
"""The shorter side of an image is this many times as long as a part of it, see `TestTransform.parts`."""
SHIFTED = 8  # an image is shifted by at most 1/8 of its side
Augmentation = Literal["paper", "crop_flip"]


class TestTransform:
    """Resize the shorter side, crop the centre, normalise: an image -> ``(3, size, size)``.

    It computes what the transforms of torchvision compute, without the seconds that their import takes.
    """

    __test__ = False  # pytest must not take it for a test

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing
        self.mean, self.std = (
            torch.tensor(values)[:, None, None] for values in (preprocessing.mean, preprocessing.std)
        )

    def __call__(self, picture: "Image.Image") -> Tensor:
        """Transform one image."""
        ready = picture if self.preprocessing.squash else middle_part(picture)
        return self._tensor(
            central_part(_resize(ready, self.preprocessing, self.preprocessing.resize), self.preprocessing.input_size)
        )

    def parts(self, picture: "Image.Image") -> Tensor:
        """Two parts of an image, above left and below right of its centre, as seen from nearer: ``(2, 3, size, size)``.

        The shorter side is resized to `NEARER` times ``size``. A part lies halfway between the centre and a corner.
        """
        size, chosen = self.preprocessing.input_size, self.preprocessing
        whole = _resize(picture if chosen.squash else middle_part(picture), chosen, round(NEARER * size))
        free = [side - size for side in whole.size]
        found = []
        for quarters in (1, 3):
            left, top = (quarters * room // 4 for room in free)
            found.append(self._tensor(whole.crop((left, top, left + size, top + size))))
        return torch.stack(found)

    def _tensor(self, ready: "Image.Image") -> Tensor:
        """The normalised pixels of an image that has its final size."""
        pixels = torch.from_numpy(np.array(ready)).permute(2, 0, 1)
        floats = pixels.to(torch.float32, memory_format=torch.contiguous_format)
        return floats.mul_(1 / 255).sub_(self.mean).div_(self.std)


def test_transform(preprocessing: Preprocessing) -> TestTransform:
    """The transform of images that are not used for training: `TestTransform`."""
    return TestTransform(preprocessing)


def _resize(picture: "Image.Image", preprocessing: Preprocessing, side: int) -> "Image.Image":
    """Give the shorter side (or both sides, if ``squash``) the length ``side``."""
    from PIL import Image

    width, height = picture.size
    wide, tall = side, side
    if not preprocessing.squash:
        wide, tall = (side, int(side * height / width)) if width <= height else (int(side * width / height), side)
    if (wide, tall) == (width, height):
        return picture
    return picture.resize((wide, tall), Image.Resampling[preprocessing.interpolation.upper()])


def central_part(picture: "Image.Image", size: int) -> "Image.Image":
    """Crop the centre to ``size`` × ``size``. What lies outside of a smaller picture is black."""
    left, top = (_start(side, size) for side in picture.size)
    return picture.crop((left, top, left + size, top + size))


def _start(side: int, size: int) -> int:
    """Where the central ``size`` pixels of a side begin, which is rounded to an even number as torchvision does."""
    return round((side - size) / 2) if side >= size else -((size - side) // 2)


def middle_part(picture: "Image.Image") -> "Image.Image":
    """Crop extremely long images to an aspect ratio of 4, so that the ends are not resized just to be discarded."""
    left, top, right, bottom = _middle_box(*picture.size)
    return picture if (right - left, bottom - top) == picture.size else picture.crop((left, top, right, bottom))


def _middle_box(width: int, height: int) -> tuple[int, int, int, int]:
    """The box (left, top, right, bottom) of `middle_part`."""
    most = LONGEST * min(width, height)
    wide, tall = min(width, most), min(height, most)
    left, top = (width - wide) // 2, (height - tall) // 2
    return left, top, left + wide, top + tall


def train_transform(preprocessing: Preprocessing, augmentation: Augmentation = "paper") -> ImageTransform:
    """Augment at random, then normalise: an image -> ``(3, size, size)``.

    ``"paper"``: random resized crop, random flip, colour jitter of 0.4. ``"crop_flip"``: resize and centre crop as in
    `test_transform`, a random shift by up to an eighth of the side, and a random flip.
    """
    from torchvision.transforms import InterpolationMode, v2

    size, interpolation = preprocessing.input_size, InterpolationMode(preprocessing.interpolation)
    crop: list[torch.nn.Module]
    if augmentation == "paper":
        crop = [v2.RandomResizedCrop(size, interpolation=interpolation)]
        jitter = [v2.ColorJitter(brightness=JITTER, contrast=JITTER, saturation=JITTER)]
    else:
        resize = v2.Resize(_resized(preprocessing), interpolation=interpolation)
        shift = v2.RandomCrop(size, padding=size // SHIFTED, padding_mode="edge")
        crop, jitter = [resize, v2.CenterCrop(size), shift], []
    steps = [*crop, v2.RandomHorizontalFlip(), *jitter, *_tensor_steps(preprocessing)]
    return cast(ImageTransform, v2.Compose(steps))


def _resized(preprocessing: Preprocessing) -> list[int]:
    """Return the size for `Resize`: one number for the shorter side, or two for both sides."""
    return [preprocessing.resize] * (2 if preprocessing.squash else 1)


def to_tensor(preprocessing: Preprocessing) -> ImageTransform:
    """Normalise an image that has its size: an image -> ``(3, h, w)``."""
    from torchvision.transforms import v2

    return cast(ImageTransform, v2.Compose(_tensor_steps(preprocessing)))


def _tensor_steps(preprocessing: Preprocessing) -> list[torch.nn.Module]:
    from torchvision.transforms import v2

    return [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(list(preprocessing.mean), list(preprocessing.std)),
        v2.ToPureTensor(),
    ]


class BatchTestTransform:
    """`test_transform` for decoded images, of one size or not: -> ``(n, 3, size, size)``."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def __call__(self, images: Pixels) -> Tensor:
        """Transform a batch."""
        return normalise(self.cropped(images).float().div_(255), self.preprocessing)

    def cropped(self, images: Pixels) -> Tensor:
        """Resize and crop, without the conversion of colours: uint8 ``(n, 3, size, size)``."""
        if isinstance(images, np.ndarray):
            return self._cropped(_channels_first(images))
        return torch.cat([self._cropped(_channels_first(image[None])) for image in images])

    def _cropped(self, batch: Tensor) -> Tensor:
        """Resize and crop images of one size, uint8 ``(n, 3, h, w)``."""
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.v2 import functional as v2

        chosen = self.preprocessing
        if not chosen.squash:
            left, top, right, bottom = _middle_box(batch.shape[3], batch.shape[2])
            batch = batch[:, :, top:bottom, left:right]
        if min(batch.shape[2:]) != chosen.resize or chosen.squash:
            batch = v2.resize(batch, _resized(chosen), interpolation=InterpolationMode(chosen.interpolation))
        cropped: Tensor = v2.center_crop(batch, [chosen.input_size])
        return cropped


def _channels_first(images: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)


class BatchTrainTransform:
    """`train_transform` for decoded images, of one size or not, with independent random values for each image.

    Unlike in `train_transform`, the colour jitter changes brightness, contrast and saturation in this order
    (torchvision draws a random order for each image), and crops of images of one size that are not larger than the
    result are always interpolated bilinearly, all at once.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        generator: torch.Generator | None = None,
        augmentation: Augmentation = "paper",
    ) -> None:
        self.preprocessing = preprocessing
        self.generator = generator
        self.augmentation = augmentation

    def __call__(self, images: Pixels) -> Tensor:
        """Transform a batch."""
        if self.augmentation == "crop_flip":
            moved = self._shifted(BatchTestTransform(self.preprocessing).cropped(images))
            return normalise(moved.float().div_(255), self.preprocessing)
        size = self.preprocessing.input_size
        if isinstance(images, np.ndarray) and max(images.shape[1:3]) <= size:
            boxes, flips = self._crops(len(images), images.shape[1], images.shape[2])
            batch = crop_and_resize(_channels_first(images).float() / 255, boxes, flips, size)
        else:
            batch = self._crop_one_by_one(images)
        factors = 1 + JITTER * (2 * self._uniform(3, len(batch)) - 1)
        return normalise(colour_jitter(batch, *factors), self.preprocessing)

    def _crop_one_by_one(self, images: Pixels) -> Tensor:
        """Random resized crops and flips: ``(n, 3, size, size)``. A crop that is made smaller is smoothed first."""
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.v2 import functional as v2

        sides = torch.tensor([image.shape[:2] for image in images], dtype=torch.float32)
        boxes, flips = self._crops(len(images), *sides.unbind(dim=1))
        size, interpolation = self.preprocessing.input_size, InterpolationMode(self.preprocessing.interpolation)
        whole = torch.cat([boxes[:, :2].floor(), boxes[:, 2:].round().clamp(min=1)], dim=1).int().tolist()
        crops = [
            v2.resized_crop(_channels_first(image[None]), *box, [size, size], interpolation)
            for image, box in zip(images, whole, strict=True)
        ]
        batch = torch.cat(crops).float() / 255
        return torch.where(flips[:, None, None, None], batch.flip(3), batch)

    def _shifted(self, batch: Tensor) -> Tensor:
        """Shift each image by whole pixels, repeating its edges, and flip it with probability 1/2."""
        count, size = len(batch), self.preprocessing.input_size
        most = size // SHIFTED
        moves = torch.randint(-most, most + 1, (2, count, 1), generator=self.generator)
        rows, columns = (torch.arange(size) + moves).clamp(0, size - 1)  # (n, size) each
        flips = self._uniform(count) < 0.5
        columns = torch.where(flips[:, None], columns.flip(1), columns)
        moves_of = zip(batch.permute(0, 2, 3, 1), rows, columns, strict=True)
        moved = [image.index_select(0, row).index_select(1, column) for image, row, column in moves_of]
        return torch.stack(moved).permute(0, 3, 1, 2)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator)

    def _crops(self, count: int, height: int | Tensor, width: int | Tensor) -> tuple[Tensor, Tensor]:
        """Draw boxes ``(n, 4)`` (top, left, height, width; 8-100 % of the area, aspect 3/4-4/3) and flips ``(n,)``."""
        area = height * width * (0.08 + 0.92 * self._uniform(count))
        aspect = torch.exp((2 * self._uniform(count) - 1) * float(np.log(4 / 3)))
        tall = (area / aspect).sqrt().clamp(max=height)
        wide = (area * aspect).sqrt().clamp(max=width)
        top = self._uniform(count) * (height - tall)
        left = self._uniform(count) * (width - wide)
        return torch.stack([top, left, tall, wide], dim=1), self._uniform(count) < 0.5


def crop_and_resize(batch: Tensor, boxes: Tensor, flips: Tensor, size: int) -> Tensor:
    """Crop each image to its box (top, left, height, width; in pixels) and resize it: ``(n, 3, size, size)``."""
    height, width = batch.shape[2:]
    top, left, tall, wide = boxes.unbind(dim=1)
    theta = torch.zeros(len(batch), 2, 3)
    theta[:, 0, 0] = wide / width * torch.where(flips, -1.0, 1.0)
    theta[:, 0, 2] = (2 * left + wide) / width - 1
    theta[:, 1, 1] = tall / height
    theta[:, 1, 2] = (2 * top + tall) / height - 1
    grid = functional.affine_grid(theta, [len(batch), 3, size, size], align_corners=False)
    return functional.grid_sample(batch, grid, padding_mode="border", align_corners=False)


def colour_jitter(batch: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> Tensor:
    """Blend each image ``(n, 3, h, w)`` with black, then with its mean grey value, then with its grey version."""

    def blend(images: Tensor, other: Tensor | float, factor: Tensor) -> Tensor:
        factor = factor[:, None, None, None]
        return (factor * images + (1 - factor) * other).clamp(0, 1)

    batch = blend(batch, 0.0, brightness)
    batch = blend(batch, _grey(batch).mean(dim=(1, 2, 3), keepdim=True), contrast)
    return blend(batch, _grey(batch), saturation)


def _grey(batch: Tensor) -> Tensor:
    weights = torch.tensor([0.2989, 0.587, 0.114], dtype=batch.dtype, device=batch.device)
    return (batch * weights[:, None, None]).sum(dim=1, keepdim=True)


def normalise(batch: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Normalise a batch ``(n, 3, h, w)`` of colours in [0, 1]: (colour - mean) / std."""
    mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
    return (batch - mean[:, None, None]).div_(std[:, None, None])
