"""The softmax classifier against a linear layer trained by torch, one episode at a time."""

import pytest
import torch
from torch import Tensor, nn

from deepbdc.classifiers import create_classifier
from deepbdc.classifiers.softmax import training_batches
from tests.classifiers.conftest import MakeEpisodes


def trained_layer(support: Tensor, labels: Tensor, query: Tensor, epochs: int, batch_size: int, seed: int) -> Tensor:
    """Logits of an explicit layer that starts from zero."""
    layer = nn.Linear(support.shape[-1], int(labels.max()) + 1).to(support.dtype)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimiser = torch.optim.SGD(layer.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-3)
    for batch in training_batches(len(support), epochs, batch_size, seed):
        optimiser.zero_grad()
        nn.functional.cross_entropy(layer(support[batch]), labels[batch]).backward()
        optimiser.step()
    with torch.no_grad():
        result: Tensor = layer(query)
    return result


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
@pytest.mark.parametrize("shots", [[1, 1], [2, 5, 2], [5] * 5])
@pytest.mark.parametrize("features", [3, 60])
def test_agrees_with_torch(
    make_episodes: MakeEpisodes, shots: list[int], features: int, dtype: torch.dtype, tolerance: float
) -> None:
    support, labels, query = make_episodes(shots, features, episodes=2, dtype=dtype)
    scores = create_classifier("softmax", epochs=15, seed=3)(support, labels, query)
    for episode in range(2):
        expected = trained_layer(support[episode], labels[episode], query[episode], 15, 4, 3)
        torch.testing.assert_close(scores[episode], expected, rtol=tolerance, atol=tolerance)


def test_normalised(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 3], features=10, dtype=torch.float64)
    scores = create_classifier("softmax", epochs=10, normalize=True, batch_size=3)(support, labels, query)
    support, query = (x / (x.norm(dim=-1, keepdim=True) + 1e-6) for x in (support, query))
    torch.testing.assert_close(scores[0], trained_layer(support[0], labels[0], query[0], 10, 3, 0))


def test_the_seed_decides(make_episodes: MakeEpisodes) -> None:
    episodes = make_episodes([3, 3], features=10)
    first, again, other = (create_classifier("softmax", epochs=2, seed=seed)(*episodes) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_every_epoch_sees_every_image_once_in_a_new_order() -> None:
    batches = training_batches(images=9, epochs=3, batch_size=4, seed=0)
    assert [len(batch) for batch in batches] == [4, 4, 1] * 3
    epochs = [torch.cat(batches[i : i + 3]).tolist() for i in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(9)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
