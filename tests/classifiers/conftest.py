"""Episodes with known structure, made here."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

MakeEpisodes = Callable[..., tuple[Tensor, Tensor, Tensor]]


@pytest.fixture(autouse=True)
def on_one_thread() -> Iterator[None]:
    """Two threads that wait for each other over tiny products take many times as long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_episodes() -> MakeEpisodes:
    """Class-structured features around a common offset; labels are in no order."""

    def make(
        shots: list[int],
        features: int,
        episodes: int = 1,
        queries: int = 12,
        offset: float = 1.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        way = len(shots)
        labels = torch.repeat_interleave(torch.arange(way), torch.tensor(shots)).repeat(episodes, 1)
        order = torch.rand(labels.shape, generator=generator).argsort(dim=-1)
        labels = labels.gather(1, order)
        centres = offset * normal(features) + normal(episodes, way, features)
        support = centres.gather(1, labels.unsqueeze(-1).expand(-1, -1, features))
        query = centres[:, torch.arange(queries) % way]
        support = support + 2 * normal(*support.shape)
        query = query + 2 * normal(*query.shape)
        return support.to(dtype), labels, query.to(dtype)

    return make
