import io

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from deepbdc.own_images.checking import check_representations, left_out_probabilities

WAY, SHOT = 4, 8


def clusters(seed: int = 0, spread: float = 0.6) -> tuple[Tensor, list[str]]:
    """Vectors of four classes around their own directions."""
    random = torch.Generator().manual_seed(seed)
    centres = torch.eye(WAY, 32).repeat_interleave(SHOT, dim=0) * 3
    vectors = centres + spread * torch.randn(WAY * SHOT, 32, generator=random)
    return vectors, [f"class {label}" for label in range(WAY) for _ in range(SHOT)]


def test_nothing_is_wrong_with_good_examples() -> None:
    assert check_representations(*clusters()).findings == 0


def test_planted_wrong_labels_are_found_and_nothing_else() -> None:
    for seed in range(5):
        vectors, labels = clusters(seed)
        labels[3], labels[20] = "class 2", "class 0"
        found = check_representations(vectors, labels).wrong_labels
        assert {(one.index, one.label, one.suggestion) for one in found} == {
            (3, "class 2", "class 0"),
            (20, "class 0", "class 2"),
        }
        assert all(0.5 < one.sureness <= 1 for one in found)


def test_random_labels_are_not_called_wrong_with_certainty_everywhere() -> None:
    """Where labels mean nothing, the classes are alike, and few examples are called surely wrong."""
    vectors = torch.randn(60, 64, generator=torch.Generator().manual_seed(1))
    report = check_representations(vectors, ["a", "b"] * 30)
    assert [(pair.first, pair.second) for pair in report.alike] == [("a", "b")]


def test_twins_also_with_different_labels() -> None:
    vectors, labels = clusters()
    vectors[1] = vectors[0] + 0.001
    vectors[9] = vectors[17]
    contents = [str(index).encode() for index in range(len(labels))]
    contents[9] = contents[17]
    found = check_representations(vectors, labels, contents).twins
    assert [(pair.first, pair.second, pair.identical) for pair in found] == [(9, 17, True), (0, 1, False)]
    assert [pair.same_label for pair in found] == [False, True]


def thumbnail(seed: int, side: int = 64, quality: int = 90, mirrored: bool = False) -> bytes:
    """A smooth random picture."""
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC)
    content = io.BytesIO()
    (ImageOps.mirror(image) if mirrored else image).save(content, "JPEG", quality=quality)
    return content.getvalue()


def test_smaller_and_mirrored_copies_are_found_by_their_pixels() -> None:
    vectors, labels = clusters()
    vectors[[1, 10]] = vectors[[0, 9]] + 0.3 * vectors[[30, 31]].roll(1, dims=1)  # similar, but not nearly equal
    contents = [thumbnail(index) for index in range(len(labels))]
    assert not check_representations(vectors, labels, contents).twins
    contents[1], contents[10] = thumbnail(0, side=40, quality=40), thumbnail(9, mirrored=True)
    found = check_representations(vectors, labels, contents).twins
    assert {(pair.first, pair.second, pair.identical) for pair in found} == {(0, 1, False), (9, 10, False)}


def test_a_copy_does_not_vouch_for_a_wrong_label() -> None:
    vectors, labels = clusters()
    labels[3] = "class 2"
    doubled = torch.cat([vectors, vectors[3:4]])
    found = check_representations(doubled, [*labels, "class 2"]).wrong_labels
    assert {one.index for one in found} == {3, 32}


def test_outliers() -> None:
    vectors, labels = clusters()
    vectors[5] = 3 * torch.nn.functional.one_hot(torch.tensor(30), 32)
    (found,) = check_representations(vectors, labels).outliers
    assert (found.index, found.label) == (5, "class 0")
    assert found.similarity < found.usual


def test_few_examples_and_one_class() -> None:
    vectors, labels = clusters()
    report = check_representations(vectors[:18], labels[:18])
    assert [(one.label, one.examples) for one in report.few] == [("class 2", 2)]
    single = check_representations(vectors[:8], labels[:8])
    assert single.findings == 0
    assert not check_representations(vectors[:17], labels[:17]).wrong_labels  # a class of one is never called wrong


def test_each_example_is_judged_by_the_others_only() -> None:
    vectors, labels = clusters()
    numbers = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    before = left_out_probabilities(vectors, numbers, WAY, torch.arange(len(labels)), rounds=1)
    changed = numbers.clone()
    changed[0] = 3
    after = left_out_probabilities(vectors, changed, WAY, torch.arange(len(labels)), rounds=1)
    assert int(before[0].argmax()) == int(after[0].argmax()) == 0
