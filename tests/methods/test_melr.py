"""The loss of a pair of episodes against a twin, and how a pair is drawn and divided."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import deepbdc
from deepbdc.backbones import create_backbone
from deepbdc.methods.melr import MELR, _halves
from deepbdc.stages import TrainingEpisode
from tests.classifiers.test_cross_episode import naive_read

Episode = tuple[Tensor, Tensor, Tensor, Tensor]


def create(**options: float) -> MELR:
    torch.manual_seed(0)
    method = deepbdc.create_method("melr", create_backbone("conv4", width=0.0625), **options)
    assert isinstance(method, MELR)
    torch.nn.init.normal_(method.classifier.value.weight, std=0.5)
    return method.double()


def naive_loss(method: MELR, first: Episode, second: Episode) -> tuple[Tensor, int]:
    """The loss, and which episode teaches. An episode is (support, support labels, query, query labels)."""
    made, way = method.classifier, int(first[1].max()) + 1
    prototypes, asked = [], []
    for own, other in ((first, second), (second, first)):
        support = [naive_read(made, row, other[0]) for row in own[0]]
        prototypes.append(
            [
                torch.stack([row for row, label in zip(support, own[1].tolist(), strict=True) if label == c]).mean(0)
                for c in range(way)
            ]
        )
        asked += [naive_read(made, row, other[0]) for row in own[2]]
    labels = torch.cat([first[3], second[3]])
    scores = [
        torch.stack([torch.stack([-(q - p).square().sum() / made.temperature for p in ps]) for q in asked])
        for ps in prototypes
    ]
    count = len(first[3])
    losses = cross_entropy(scores[0][:count], labels[:count]), cross_entropy(scores[1][count:], labels[count:])
    right = [int((found.argmax(dim=1) == labels).sum()) for found in scores]
    teacher = 0 if right[0] >= right[1] else 1
    T = method.distillation_temperature
    expected, given = torch.softmax(scores[teacher] / T, dim=1), torch.softmax(scores[1 - teacher] / T, dim=1)
    divergence = T**2 * (expected * (expected.log() - given.log())).sum(dim=1).mean()
    return sum(losses) / 2 + method.consistency * divergence, teacher


def episode(shot: int, generator: torch.Generator) -> Episode:
    labels, asked = torch.arange(3).repeat(shot), torch.arange(3).repeat(2)
    support, query = (
        torch.randn(len(of), 4, generator=generator, dtype=torch.float64) + of[:, None] for of in (labels, asked)
    )
    return support, labels, query, asked


@pytest.mark.parametrize("shot", [1, 2])
def test_equals_the_twin_whichever_episode_teaches(shot: int, generator: torch.Generator) -> None:
    method, teachers = create(temperature=3.0, consistency=0.7, distillation_temperature=2.0), set()
    for _ in range(6):
        first, second = episode(shot, generator), episode(shot, generator)
        found = method.pair_loss((first[:2], second[:2]), (first[2:], second[2:]))
        expected, teacher = naive_loss(method, first, second)
        torch.testing.assert_close(found.value.detach(), expected.detach())
        teachers.add(teacher)
    assert teachers == {0, 1}


def test_the_teacher_gets_no_gradient(generator: torch.Generator) -> None:
    """The prototypes of the teacher are moved by the agreement through the queries only."""
    method = create(consistency=1.0, temperature=1.0)
    torch.nn.init.zeros_(method.classifier.value.weight)  # nothing is read, so each image matters where it is only
    labels, apart = torch.arange(2), torch.tensor([[0.0, 0, 0, 0], [2, 2, 2, 2]], dtype=torch.float64)
    teacher, student = apart.clone().requires_grad_(), apart.flip(0).clone().requires_grad_()
    queries = ((apart, labels), (apart, labels))
    values = []
    for consistency in (0.0, 1.0):
        method.consistency = consistency
        loss = method.pair_loss(((teacher, labels), (student, labels)), queries).value
        values.append(torch.autograd.grad(loss, [teacher, student]))
    torch.testing.assert_close(values[0][0], values[1][0])
    assert not torch.allclose(values[0][1], values[1][1])


def test_halves_share_no_image_and_have_the_same_classes() -> None:
    labels = torch.tensor([0, 1, 0, 2, 1, 2, 0, 0])
    first, second = _halves(torch.arange(8.0)[:, None], labels)
    assert first[0].flatten().tolist() == [0, 1, 3, 6]
    assert second[0].flatten().tolist() == [2, 4, 5, 7]
    assert first[1].tolist() == [0, 1, 2, 0]
    assert second[1].tolist() == [0, 1, 2, 0]


def test_an_episode_with_twice_the_images_is_a_pair(generator: torch.Generator) -> None:
    method = create().eval()
    images = torch.rand(12, 3, 16, 16, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    with torch.no_grad():
        found = method.episode_loss(TrainingEpisode(images, *labels, torch.tensor([3, 5])))
        rows = method.embed(images)
        first = rows[[0, 2]], torch.tensor([0, 1]), rows[[4, 6, 8, 10]], torch.tensor([0, 0, 1, 1])
        second = rows[[1, 3]], torch.tensor([0, 1]), rows[[5, 7, 9, 11]], torch.tensor([0, 0, 1, 1])
        expected, _ = naive_loss(method, first, second)
    torch.testing.assert_close(found.value, expected)


def test_wrong_values() -> None:
    with pytest.raises(ValueError, match="consistency must not be negative"):
        create(consistency=-1.0)
