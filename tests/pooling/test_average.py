"""Averages over the cells of a grid."""

import pytest
import torch

from deepbdc.errors import UserError
from deepbdc.pooling import GridPool


def test_a_grid_has_the_means_of_its_cells(generator: torch.Generator) -> None:
    maps = torch.rand(2, 3, 4, 6, generator=generator)
    grid = GridPool(3, 2)(maps)
    assert grid.shape == (2, 3, 2, 2)
    for row in range(2):
        for column in range(2):
            cell = maps[:, :, 2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
            torch.testing.assert_close(grid[:, :, row, column], cell.mean(dim=(2, 3)))
    torch.testing.assert_close(grid.mean(dim=(2, 3)), maps.mean(dim=(2, 3)))


def test_a_grid_is_not_finer_than_the_map() -> None:
    with pytest.raises(UserError, match="4×6 positions is too small for a grid of 5×5"):
        GridPool(3, 5)(torch.zeros(1, 3, 4, 6))
    with pytest.raises(UserError, match="at least one cell"):
        GridPool(3, 0)
