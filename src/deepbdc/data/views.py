"""Several views of one image, for evaluations that average what the network says of them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from deepbdc.data.dataset import Pixels
from deepbdc.data.transforms import BatchTestTransform, middle_part, normalise, test_transform, to_tensor
from deepbdc.preprocessing import AtTestTime, Preprocessing

if TYPE_CHECKING:
    from PIL import Image


class ViewsOfImages:
    """The views of images that `AtTestTime` asks for: the centre, perhaps the four corners, perhaps all mirrored.

    The first view is that of `test_transform`. For the corners, the shorter side of the image is resized (both sides,
    if the pre-processing squashes) so that a view has ``crop_side`` of it, and the views are cut from the corners of
    the whole image.

    Args:
        preprocessing: How the network wants its images.
        test_time: How many views there are, and their size.
    """

    def __init__(self, preprocessing: Preprocessing, test_time: AtTestTime) -> None:
        self.preprocessing = preprocessing
        self.test_time = test_time
        self._centre = test_transform(preprocessing)
        self._centres = BatchTestTransform(preprocessing)
        self._tensor = to_tensor(preprocessing)

    def of_image(self, image: "Image.Image") -> Tensor:
        """The views of an image, ``(views, 3, size, size)``."""
        whole = image if self.preprocessing.squash else middle_part(image)
        return torch.stack(self._views(self._centre(image), whole, self._tensor))

    def of_arrays(self, images: Pixels) -> Tensor:
        """The views of decoded images, of one size or not: -> ``(n, views, 3, size, size)``."""
        if not isinstance(images, np.ndarray):
            return torch.cat([self.of_arrays(image[None]) for image in images])
        whole = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)
        views = self._views(self._centres(images), whole, lambda cut: normalise(cut.float() / 255, self.preprocessing))
        return torch.stack(views, dim=1)

    def _views(self, centre: Tensor, whole: Any, tensor: Callable[[Any], Tensor]) -> list[Tensor]:
        """The views, given the usual one and the images that corners are cut from."""
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.v2 import functional as v2

        views = [centre]
        if self.test_time.has_corners:
            size, chosen = self.preprocessing.input_size, self.preprocessing
            side = max(size, round(size / self.test_time.crop_side))
            resized = v2.resize(
                whole, [side] * (2 if chosen.squash else 1), interpolation=InterpolationMode(chosen.interpolation)
            )
            views += [tensor(cut) for cut in v2.five_crop(resized, [size, size])[:4]]
        return [*views, *(view.flip(-1) for view in views)] if self.test_time.is_mirrored else views


def fuse(representations: Tensor) -> Tensor:
    """One representation of each image from those of its views: ``(views, n, features) -> (n, features)``.

    Each view is normalised to length 1, so that all have the same say; the mean of these directions is given the mean
    length of the views. Views that agree thus give what one of them gives, at the scale that the classifier knows.

    >>> fuse(torch.tensor([[[3.0, 0.0]], [[0.0, 1.0]]]))
    tensor([[1., 1.]])
    """
    lengths = representations.norm(dim=-1, keepdim=True)
    directions = representations / lengths.clamp_min(torch.finfo(representations.dtype).tiny)
    fused: Tensor = directions.mean(dim=0) * lengths.mean(dim=0)
    return fused
