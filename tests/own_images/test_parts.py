"""Parts of pictures: what the network sees of them, what they teach, and that they are kept."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from deepbdc import FewShotClassifier
from deepbdc.classifiers import create_classifier
from deepbdc.data import transforms
from deepbdc.errors import UserError
from deepbdc.own_images.confidence import learn_confidence
from deepbdc.own_images.parts import Parts
from deepbdc.preprocessing import Preprocessing

CHOICES = ("none", "examples", "all")


class SmallNetwork(nn.Module):
    """A network of a few random weights, always the same ones."""

    preprocessing = Preprocessing(32, 32)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 6, 8, stride=8)
        weights = torch.randn(self.layer.weight.shape, generator=torch.Generator().manual_seed(0))
        self.layer.load_state_dict({"weight": weights, "bias": torch.zeros(6)})

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layer(images).relu()
        return maps


def noise(count: int) -> list[NDArray[np.uint8]]:
    """Pictures of noise, of which the first are always the same."""
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (40, 60, 3), dtype=np.uint8) for _ in range(count)]


def test_parts_lie_halfway_to_two_corners() -> None:
    """Of a picture whose colours tell the place, the middle of a part has the colour of the expected place."""
    width, height = 300, 200
    across = np.linspace(0, 1, width)[None].repeat(height, axis=0)
    down = np.linspace(0, 1, height)[:, None].repeat(width, axis=1)
    picture = Image.fromarray((255 * np.stack([across, down, 0 * down], axis=-1)).round().astype(np.uint8))
    parts = transforms.test_transform(Preprocessing(100, 100, mean=(0, 0, 0), std=(1, 1, 1))).parts(picture)
    assert parts.shape == (2, 3, 100, 100)
    # The picture is resized to 195 × 130, so that 95 × 30 pixels are free: a quarter of them is on one side.
    expected = [[(95 / 4 + 50) / 195, (30 / 4 + 50) / 130], [(95 * 3 / 4 + 50) / 195, (30 * 3 / 4 + 50) / 130]]
    torch.testing.assert_close(parts[:, :2].mean(dim=(2, 3)), torch.tensor(expected), atol=0.01, rtol=0)


def test_a_squashed_picture_has_parts_of_its_whole_width() -> None:
    picture = Image.new("RGB", (400, 50))
    assert transforms.test_transform(Preprocessing(32, 32, squash=True)).parts(picture).shape == (2, 3, 32, 32)


def test_examples_have_parts_and_pictures_to_classify_have_none() -> None:
    estimator = FewShotClassifier(SmallNetwork()).fit(noise(4), ["a", "a", "b", "b"])
    assert all(example.parts is not None and len(example.parts) == 2 for example in estimator.examples_)
    assert all(image.parts is None for image in estimator.embed(noise(2)))
    assert all(image.parts is not None for image in estimator.embed(noise(2), parts=True))


def test_tiny_pictures_have_no_parts() -> None:
    """There is nothing more to see of them from nearer."""
    small, large = (np.zeros((side, 60, 3), dtype=np.uint8) for side in (15, 16))
    embedded = FewShotClassifier(SmallNetwork()).embed([small, large], parts=True)
    assert [image.parts is None for image in embedded] == [True, False]


def test_a_classifier_learns_from_the_parts() -> None:
    """Its rule is that of the classifier which is given the parts as further examples."""
    pictures, labels = noise(4), ["a", "a", "b", "b"]
    estimator = FewShotClassifier(SmallNetwork()).fit(pictures, labels)
    own = estimator.represent(estimator.examples_)
    parts = Parts.of(estimator.examples_, estimator.embedding_, 8, own).vectors
    everything = torch.cat([own, parts]).unsqueeze(0)
    targets = torch.tensor([[0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]])
    expected = create_classifier("logistic", C=10.0, equal_classes=True).rule(everything, targets, 2)
    torch.testing.assert_close(estimator.rule_.weights, expected.weights)
    torch.testing.assert_close(estimator.rule_.intercepts, expected.intercepts)


def test_all_pictures_can_be_looked_at_in_parts() -> None:
    """The scores of a picture and of its two parts are averaged."""
    pictures, labels = noise(6), ["a", "b"]
    whole, parts = (FewShotClassifier(SmallNetwork(), parts=which).fit(pictures[:2], labels) for which in CHOICES[1:])
    (image,) = parts.embed([pictures[2]], parts=True)
    views = torch.cat([image.features.unsqueeze(0), image.parts])
    scores = parts.rule_(parts.representations_of(views).unsqueeze(0))[0].double() * parts.confidence_.scale
    (found,) = parts.predict_proba([pictures[2]])
    np.testing.assert_allclose(found, torch.softmax(scores.mean(dim=0), dim=0).numpy(), rtol=1e-5)
    assert not np.allclose(found, whole.predict_proba([pictures[2]])[0])


def test_a_wrong_choice_is_named() -> None:
    with pytest.raises(UserError, match="one of none, examples, all, got 'some'"):
        FewShotClassifier(SmallNetwork(), parts="some").fit(noise(2), ["a", "b"])


def test_parts_are_saved(tmp_path: Path) -> None:
    """Also if only some of the examples have them; and a classifier without any has none in its file."""
    network = SmallNetwork()
    estimator = FewShotClassifier(network)
    mixed = [*estimator.embed(noise(2), parts=True), *estimator.embed(noise(4)[2:])]
    fitted = estimator.fit(mixed, ["a", "b", "a", "b"])
    fitted.save(tmp_path / "mixed.safetensors")
    again = FewShotClassifier.load(tmp_path / "mixed.safetensors", backbone=network)
    assert [example.parts is None for example in again.examples_] == [False, False, True, True]
    np.testing.assert_allclose(again.predict_proba(noise(6)), fitted.predict_proba(noise(6)), rtol=1e-6)
    plain = FewShotClassifier(network, parts="none").fit(noise(2), ["a", "b"])
    loaded = FewShotClassifier.load(plain.to_bytes(), backbone=network)
    assert all(example.parts is None for example in loaded.examples_)


def test_parts_are_held_out_with_their_example() -> None:
    """Else an example would be recognised by its own parts: here they are copies of it, and nothing else is alike."""
    random = torch.Generator().manual_seed(0)
    examples = torch.randn(12, 200, generator=random)
    labels = torch.arange(3).repeat_interleave(4)
    copies = Parts(examples.repeat(2, 1), torch.arange(12).repeat(2))
    logistic = create_classifier("logistic", C=10.0)
    with_copies = learn_confidence(logistic, examples, labels, 3, copies).familiarity.mean
    assert with_copies == pytest.approx(learn_confidence(logistic, examples, labels, 3).familiarity.mean, abs=0.02)


def test_the_parts_of_some_examples_are_numbered_anew() -> None:
    parts = Parts(torch.arange(8.0).reshape(4, 2), torch.tensor([0, 0, 2, 3]))
    chosen = parts.chosen([3, 0])
    assert chosen.owners.tolist() == [1, 1, 0]
    assert chosen.vectors.tolist() == [[0, 1], [2, 3], [6, 7]]
    vectors, labels = chosen.beside(torch.zeros(2, 2), torch.tensor([5, 6]), kept=torch.tensor([False, True]))
    assert labels.tolist() == [6, 6, 6]
    assert vectors.tolist() == [[0, 0], [0, 1], [2, 3]]
