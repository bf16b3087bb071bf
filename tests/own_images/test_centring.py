import numpy as np
import pytest
import torch
from torch import nn

from deepbdc import FewShotClassifier
from deepbdc.own_images import centring
from deepbdc.own_images.centring import centre, effective_classes

CLASSES = 4


def picture(label: int, seed: int) -> np.ndarray:
    """Noise on one of four plain colours."""
    colour = np.array([[220, 60, 60], [60, 220, 60], [60, 60, 220], [220, 220, 60]])[label]
    noise = np.random.default_rng(seed).normal(0, 20, (32, 32, 3))
    return np.clip(colour + noise, 0, 255).astype(np.uint8)


@pytest.fixture
def fitted() -> FewShotClassifier:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU())
    classifier = FewShotClassifier(backbone=network, size=32)
    return classifier.fit([picture(label, label) for label in range(CLASSES)], list(range(CLASSES)))


def test_the_mean_of_a_mixed_folder_is_subtracted(fitted: FewShotClassifier) -> None:
    pictures = [picture(number % CLASSES, 10 + number) for number in range(40)]
    done = centre(fitted, pictures)
    assert done.used == 40
    maps = torch.stack([image.features for image in fitted.embed(pictures)])
    expected = fitted.embedding_.represent(maps).mean(dim=0)
    assert fitted.mean_ is not None
    assert torch.allclose(fitted.mean_, expected, atol=1e-5)
    assert (fitted.predict(done.images) == np.arange(40) % CLASSES).mean() > 0.9
    assert centre(fitted, pictures).used == 0  # once is enough


@pytest.mark.parametrize("case", ["too few", "one class", "more examples"])
def test_otherwise_nothing_is_subtracted(case: str, fitted: FewShotClassifier) -> None:
    count = 20 if case == "too few" else 40
    labels = [0 if case == "one class" else number % CLASSES for number in range(count)]
    if case == "more examples":
        fitted.partial_fit([picture(label, 5 + label) for label in range(CLASSES)], list(range(CLASSES)))
    pictures = [picture(label, 10 + number) for number, label in enumerate(labels)]
    done = centre(fitted, pictures)
    assert (done.used, fitted.mean_, len(done.images)) == (0, None, count)


def test_unreadable_pictures_stay_in_their_place(fitted: FewShotClassifier) -> None:
    pictures = [*(picture(number % CLASSES, number) for number in range(35)), "missing.jpg"]
    done = centre(fitted, pictures)
    assert done.used == 35
    assert done.images[35] == "missing.jpg"


def test_no_more_pictures_than_the_sample_are_kept(fitted: FewShotClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(centring, "SAMPLE", 32)
    assert centre(fitted, [picture(number % CLASSES, number) for number in range(60)]).used == 32


def test_effective_classes() -> None:
    assert effective_classes([0] * 9 + [1]) < 1.5
    assert effective_classes([0, 1, 2, 2, 1, 0]) == pytest.approx(3)
