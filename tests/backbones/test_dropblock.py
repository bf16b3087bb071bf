import pytest
import torch
from torch import nn

from deepbdc import create_backbone
from deepbdc.backbones import DropBlock


def annealed(drop_rate: float, block_size: int = 5) -> DropBlock:
    """A DropBlock at the end of its annealing."""
    drop = DropBlock(drop_rate, block_size)
    drop.passes.fill_(drop.anneal_passes)
    return drop


@pytest.mark.parametrize("block_size", [1, 3, 5])
@pytest.mark.parametrize("drop_rate", [0.05, 0.1])
def test_drops_the_fraction_asked_for(drop_rate: float, block_size: int) -> None:
    torch.manual_seed(0)
    dropped = (annealed(drop_rate, block_size)(torch.ones(64, 64, 20, 20)) == 0).float().mean().item()
    # Blocks may overlap, so that a little less than drop_rate is dropped.
    assert 0.9 * drop_rate <= dropped <= 1.01 * drop_rate


def test_rescaling_keeps_the_mean() -> None:
    torch.manual_seed(0)
    x = torch.ones(8, 16, 10, 10)
    y = annealed(0.3)(x)
    assert y.mean().item() == pytest.approx(1, abs=1e-5)
    values = y.unique()
    assert len(values) == 2
    assert values[0] == 0
    assert values[1].item() == pytest.approx(x.numel() / (y > 0).sum().item())


def test_dropped_entries_form_whole_squares() -> None:
    """Every dropped entry lies in a completely dropped square of the block size. Channels differ."""
    torch.manual_seed(0)
    y = annealed(0.1, block_size=3)(torch.ones(4, 8, 12, 12))
    dropped = (y == 0).float()
    assert dropped.any()
    corners = -nn.functional.max_pool2d(-dropped, 3, stride=1)  # 1 where a whole square is dropped
    covered = nn.functional.max_pool2d(nn.functional.pad(corners, [2] * 4), 3, stride=1)
    assert torch.equal(covered, dropped)
    assert not torch.equal(dropped[:, 0], dropped[:, 1])


def test_keep_rate_is_annealed_over_training_passes() -> None:
    drop = DropBlock(0.1, anneal_passes=4)
    rates = []
    for _ in range(6):
        rates.append(drop.keep_rate().item())
        drop(torch.ones(1, 1, 8, 8))
    assert rates == pytest.approx([1, 0.975, 0.95, 0.925, 0.9, 0.9])
    drop.eval()
    x = torch.ones(1, 1, 8, 8)
    assert drop(x) is x
    assert drop.passes == 6


def test_the_state_dict_includes_the_annealing() -> None:
    drop = annealed(0.1)
    other = DropBlock(0.1)
    other.load_state_dict(drop.state_dict())
    assert other.keep_rate().item() == pytest.approx(0.9)


def test_a_map_smaller_than_the_block() -> None:
    y = annealed(0.5)(torch.ones(16, 16, 3, 3))
    assert (y == 0).any()
    assert torch.isfinite(y).all()


def test_half_precision() -> None:
    y = annealed(0.1)(torch.ones(16, 640, 10, 10, dtype=torch.float16))
    assert y.dtype == torch.float16
    assert y.float().mean().item() == pytest.approx(1, abs=1e-2)


def test_resnet12_uses_dropblock_only_on_request() -> None:
    assert not any(isinstance(m, DropBlock | nn.Dropout) for m in create_backbone("resnet12").modules())
    with_drop = create_backbone("resnet12", width=0.1, drop_rate=0.1)
    kinds = [type(stage[0].drop) for stage in with_drop.children()]
    assert kinds == [nn.Dropout, nn.Dropout, DropBlock, DropBlock]
    assert with_drop(torch.randn(2, 3, 84, 84)).shape == (2, 64, 10, 10)


@pytest.mark.parametrize("drop_rate", [-0.1, 1.0])
def test_a_wrong_rate_is_refused(drop_rate: float) -> None:
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        DropBlock(drop_rate)
