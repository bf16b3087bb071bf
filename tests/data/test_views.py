"""Views of images against naive versions, and how their representations are fused."""

import numpy as np
import pytest
import torch
from PIL import Image

from deepbdc.data.transforms import test_transform as make_test_transform
from deepbdc.data.views import ViewsOfImages, fuse
from deepbdc.errors import UserError
from deepbdc.preprocessing import AtTestTime, Preprocessing

PREPROCESSING = Preprocessing(input_size=16, resize=18, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))


def picture(width: int = 40, height: int = 30) -> Image.Image:
    random = np.random.default_rng(width)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))


def naive_corners(image: Image.Image, size: int, side: int) -> list[torch.Tensor]:
    """Resize the shorter side, and cut top left, top right, bottom left and bottom right."""
    scale = side / min(image.size)
    width, height = int(image.width * scale), int(image.height * scale)
    resized = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR), dtype=np.float32) / 255
    places = [(0, 0), (0, width - size), (height - size, 0), (height - size, width - size)]
    colours = (resized - np.array(PREPROCESSING.mean)) / np.array(PREPROCESSING.std)
    cuts = [colours[top : top + size, left : left + size] for top, left in places]
    return [torch.from_numpy(cut).permute(2, 0, 1).float() for cut in cuts]


def test_ten_views_are_the_centre_the_corners_and_their_mirror_images() -> None:
    image = picture()
    views = ViewsOfImages(PREPROCESSING, AtTestTime(crops=10, crop_side=0.8)).of_image(image)
    assert views.shape == (10, 3, 16, 16)
    assert torch.equal(views[0], make_test_transform(PREPROCESSING)(image)), "the first is the usual one"
    for found, expected in zip(views[1:5], naive_corners(image, 16, 20), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert torch.equal(views[5:], views[:5].flip(-1))


@pytest.mark.parametrize(("crops", "of_ten"), [(1, [0]), (2, [0, 5]), (5, [0, 1, 2, 3, 4])])
def test_fewer_views_are_some_of_the_ten(crops: int, of_ten: list[int]) -> None:
    ten = ViewsOfImages(PREPROCESSING, AtTestTime(crops=10)).of_image(picture())
    assert torch.equal(ViewsOfImages(PREPROCESSING, AtTestTime(crops=crops)).of_image(picture()), ten[of_ten])


def test_arrays_have_the_same_views_as_single_images_if_nothing_is_resized() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 20, 24, 3), dtype=np.uint8)
    views = ViewsOfImages(Preprocessing(16, 20), AtTestTime(crops=10, crop_side=0.8))
    single = torch.stack([views.of_image(Image.fromarray(image)) for image in images])
    torch.testing.assert_close(views.of_arrays(images), single)


def test_arrays_of_different_sizes_have_the_views_of_each() -> None:
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (height, 24, 3), dtype=np.uint8) for height in (20, 30)]
    views = ViewsOfImages(Preprocessing(16, 20), AtTestTime(crops=10, crop_side=0.8))
    expected = torch.cat([views.of_arrays(image[None]) for image in images])
    assert torch.equal(views.of_arrays(images), expected)


def test_views_that_agree_give_what_one_of_them_gives() -> None:
    one = torch.randn(4, 7)
    torch.testing.assert_close(fuse(one.expand(5, 4, 7)), one)
    assert torch.equal(fuse(torch.zeros(2, 1, 3)), torch.zeros(1, 3)), "no division by zero"


def test_every_view_has_the_same_say() -> None:
    long, short = torch.tensor([[100.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    fused = fuse(torch.stack([long, short]))
    assert fused[0, 0] == fused[0, 1] == pytest.approx(25.5)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"crops": 3}, "1, 2, 5, 10, got 3"),
        ({"crop_side": 1.5}, "got 1.5"),
        ({"power": 1.5}, "power must be"),
    ],
)
def test_impossible_values(values: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        AtTestTime(**values)  # type: ignore[arg-type]
