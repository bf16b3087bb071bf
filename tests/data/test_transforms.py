import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as v2

from deepbdc.data.transforms import (
    BatchTestTransform,
    BatchTrainTransform,
    colour_jitter,
    crop_and_resize,
    middle_part,
    normalise,
    train_transform,
)
from deepbdc.data.transforms import test_transform as make_test_transform
from deepbdc.preprocessing import AT_84, AT_224, Preprocessing

SMALL = Preprocessing(input_size=32, resize=32)


def pixels(n: int = 5, side: int = 32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, side, side, 3), dtype=np.uint8)


@pytest.mark.parametrize("preprocessing", [AT_84, AT_224])
def test_resize_crop_and_normalise(preprocessing: Preprocessing) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (120, 200, 3), dtype=np.uint8))
    found = make_test_transform(preprocessing)(image)
    shorter, size = preprocessing.resize, preprocessing.input_size
    resized = image.resize((int(shorter * 200 / 120), shorter), Image.Resampling.BILINEAR)
    left, top = round((resized.width - size) / 2), round((resized.height - size) / 2)
    cropped = np.asarray(resized.crop((left, top, left + size, top + size)), dtype=np.float32) / 255
    expected = (cropped - np.array(preprocessing.mean)) / np.array(preprocessing.std)
    torch.testing.assert_close(found, torch.from_numpy(expected).permute(2, 0, 1).float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "preprocessing",
    [
        AT_84,
        AT_224,
        Preprocessing(224, 224, interpolation="bicubic"),
        Preprocessing(64, 70, squash=True, interpolation="lanczos"),
        Preprocessing(50, 31),  # the resized image is smaller than the crop
        Preprocessing(51, 30),
    ],
)
@pytest.mark.parametrize("size", [(48, 64), (101, 80), (84, 84), (224, 225), (33, 57), (7, 5), (1, 30), (92, 37)])
def test_bit_for_bit_the_same_as_torchvision(preprocessing: Preprocessing, size: tuple[int, int]) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))
    sides = [preprocessing.resize] * (2 if preprocessing.squash else 1)
    cropped = image if preprocessing.squash else middle_part(image)
    resized = v2.resize(cropped, sides, interpolation=InterpolationMode(preprocessing.interpolation))
    whole = v2.to_image(v2.center_crop(resized, [preprocessing.input_size]))
    expected = v2.normalize(v2.to_dtype(whole, scale=True), list(preprocessing.mean), list(preprocessing.std))
    found = make_test_transform(preprocessing)(image)
    assert torch.equal(found, expected)
    assert found.is_contiguous()


def test_the_transform_can_be_sent_to_another_process() -> None:
    transform = make_test_transform(AT_84)
    image = Image.fromarray(pixels(1, 100)[0])
    assert torch.equal(pickle.loads(pickle.dumps(transform))(image), transform(image))


def test_a_batch_gives_the_same_as_single_images_if_nothing_is_resized() -> None:
    images = pixels()
    one = torch.stack([make_test_transform(SMALL)(Image.fromarray(image)) for image in images])
    torch.testing.assert_close(BatchTestTransform(SMALL)(images), one, atol=1e-6, rtol=0)


def test_batch_resizes_nearly_as_pillow_does() -> None:
    smooth = np.stack([np.asarray(Image.fromarray(image).resize((8, 8)).resize((32, 32))) for image in pixels()])
    one = torch.stack([make_test_transform(AT_84)(Image.fromarray(image)) for image in smooth])
    torch.testing.assert_close(BatchTestTransform(AT_84)(smooth), one, atol=2 / 255 / 0.268, rtol=0)


def test_train_transform_of_files() -> None:
    torch.manual_seed(0)
    image = Image.fromarray(pixels(1, 100)[0])
    first, second = (train_transform(AT_84)(image) for _ in range(2))
    assert first.shape == (3, 84, 84)
    assert first.dtype == torch.float32
    assert not torch.equal(first, second)


def test_batch_train_transform_is_seeded_and_differs_between_images() -> None:
    images = np.repeat(pixels(1), 4, axis=0)
    runs = [BatchTrainTransform(SMALL, torch.Generator().manual_seed(3))(images) for _ in range(2)]
    assert torch.equal(runs[0], runs[1])
    assert runs[0].shape == (4, 3, 32, 32)
    assert not torch.allclose(runs[0][0], runs[0][1])


def test_crops_have_the_areas_and_aspects_of_the_paper() -> None:
    boxes, flips = BatchTrainTransform(SMALL, torch.Generator().manual_seed(0))._crops(4000, 32, 32)
    top, left, tall, wide = boxes.unbind(1)
    area, aspect = tall * wide / 32**2, wide / tall
    assert area.min() > 0.079
    assert area.max() <= 1
    assert area.mean().item() == pytest.approx(0.54, abs=0.03)
    assert 0.74 < aspect.min() < aspect.max() < 1.34
    assert (top >= 0).all()
    assert (left + wide <= 32 + 1e-4).all()
    assert flips.float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_crop_of_whole_pixels_without_scaling_is_a_slice() -> None:
    batch = torch.rand(3, 3, 10, 10)
    boxes = torch.tensor([[0.0, 0, 4, 4], [3, 5, 4, 4], [6, 6, 4, 4]])
    found = crop_and_resize(batch, boxes, torch.tensor([False, False, True]), 4)
    torch.testing.assert_close(found[0], batch[0, :, :4, :4], atol=1e-5, rtol=0)
    torch.testing.assert_close(found[1], batch[1, :, 3:7, 5:9], atol=1e-5, rtol=0)
    torch.testing.assert_close(found[2], batch[2, :, 6:, 6:].flip(2), atol=1e-5, rtol=0)


def test_jitter_is_that_of_torchvision() -> None:
    batch = torch.rand(4, 3, 8, 8)
    factors = 1 + 0.4 * (2 * torch.rand(3, 4) - 1)
    found = colour_jitter(batch, *factors)
    for image, one, brightness, contrast, saturation in zip(batch, found, *factors.tolist(), strict=True):
        expected = v2.adjust_brightness(image, brightness)
        expected = v2.adjust_contrast(expected, contrast)
        expected = v2.adjust_saturation(expected, saturation)
        torch.testing.assert_close(one, expected, atol=1e-5, rtol=0)


def test_normalise() -> None:
    grey = torch.tensor(SMALL.mean)[None, :, None, None].expand(2, 3, 4, 4)
    assert normalise(grey, SMALL).abs().max() < 1e-6


def test_only_extremely_long_pictures_are_cut_before_the_crop() -> None:
    usual = Image.new("RGB", (400, 100))
    assert middle_part(usual) is usual
    assert middle_part(Image.new("RGB", (1000, 100))).size == (400, 100)
    random = np.random.default_rng(0)
    long = Image.fromarray(random.integers(0, 256, (20, 900, 3), dtype=np.uint8))
    preprocessing = Preprocessing(input_size=32, resize=40)
    whole = long.resize((1800, 40), Image.Resampling.BILINEAR).crop((884, 4, 916, 36))
    expected = normalise(torch.from_numpy(np.asarray(whole).copy()).permute(2, 0, 1)[None].float() / 255, preprocessing)
    assert torch.allclose(make_test_transform(preprocessing)(long), expected[0], atol=0.02)
