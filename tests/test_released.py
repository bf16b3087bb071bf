"""Files with the names of the authors' published weights, made here: the real ones cannot be fetched."""

import contextlib
import math
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deepbdc import BDCPool, Embedding, create_backbone, load_released_checkpoint

THEIRS = {"backbone.": "feature.", "pool.reduction.": "dcov.conv_dr_block."}


def embedding(seed: int, reduce_to: int | None = 8) -> Embedding:
    torch.manual_seed(seed)
    backbone = create_backbone("resnet12", width=0.05)
    return Embedding(backbone, BDCPool(backbone.out_channels, reduce_to=reduce_to))


def released(model: Embedding, temperature: float) -> dict[str, Tensor]:
    """The state of ``model`` under the names of the released code."""
    state = {}
    for name, value in model.state_dict().items():
        for ours, theirs in THEIRS.items():
            if name.startswith(ours):
                state[theirs + name.removeprefix(ours)] = value
    state["dcov.temperature"] = torch.full((1, 1), temperature)
    return state


@pytest.mark.parametrize("reduce_to", [None, 8])
@pytest.mark.parametrize("nested", [False, True])
def test_loads_all_of_it(tmp_path: Path, reduce_to: int | None, nested: bool) -> None:
    source, target = embedding(0, reduce_to).eval(), embedding(1, reduce_to).eval()
    state = released(source, temperature=-5.0)
    assert "feature.layer1.0.conv1.weight" in state
    torch.save({"epoch": 3, "state": state} if nested else state, tmp_path / "best.tar")
    assert load_released_checkpoint(tmp_path / "best.tar", target) is target
    # Their exp(t) · distance² is our exp(t) / (2hw) · distance² on the 10×10 map.
    assert target.pool.t.item() == pytest.approx(-5.0 + math.log(200), abs=1e-6)
    torch.nn.init.constant_(source.pool.t, -5.0 + math.log(200))
    images = torch.randn(2, 3, 84, 84)
    with torch.no_grad():
        torch.testing.assert_close(target(images), source(images))


def test_initial_temperature_is_our_zero(tmp_path: Path) -> None:
    target = embedding(0)
    torch.save(released(target, temperature=math.log(1 / 200)), tmp_path / "x.tar")
    load_released_checkpoint(tmp_path / "x.tar", target)
    assert target.pool.t.item() == pytest.approx(0, abs=1e-6)


def test_refuses_to_load_in_part(tmp_path: Path) -> None:
    source, target = embedding(0), embedding(1)
    state = released(source, -5.0)
    del state["feature.layer4.0.bn3.weight"]
    state["classifier.weight"] = torch.zeros(64, 36)
    state["dcov.conv_dr_block.1.bias"] = torch.zeros(9)
    torch.save(state, tmp_path / "x.tar")
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(ValueError, match="nothing was loaded") as caught:
        load_released_checkpoint(tmp_path / "x.tar", target)
    message = str(caught.value)
    assert "missing in the file: backbone.layer4.0.bn3.weight" in message
    assert "left over in the file: classifier.weight" in message
    assert "dcov.conv_dr_block.1.bias (file (9,), model (8,))" in message
    assert all(torch.equal(before[name], value) for name, value in target.state_dict().items())


def test_head_can_be_left_out(tmp_path: Path) -> None:
    state = released(embedding(0), -5.0)
    state["classifier.weight"] = torch.zeros(64, 36)
    torch.save(state, tmp_path / "x.tar")
    load_released_checkpoint(tmp_path / "x.tar", embedding(1), ignore=["classifier."])


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_code_in_the_file_is_not_run(tmp_path: Path) -> None:
    torch.save({"state": Evil(tmp_path / "trace")}, tmp_path / "x.tar")
    with pytest.raises(ValueError, match="read safely"):
        load_released_checkpoint(tmp_path / "x.tar", embedding(0))
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("content", [b"", b"not weights at all"])
def test_other_files_are_answered_in_words(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(ValueError, match="not a file of weights"):
        load_released_checkpoint(tmp_path / "x.tar", embedding(0))


def test_names_are_reported_as_the_file_has_them(tmp_path: Path) -> None:
    state = released(embedding(0), -5.0) | {"feature.classifier.weight": torch.zeros(3)}
    torch.save(state, tmp_path / "x.tar")
    with pytest.raises(ValueError, match=r"left over in the file: feature\.classifier\.weight"):
        load_released_checkpoint(tmp_path / "x.tar", embedding(1))
    load_released_checkpoint(tmp_path / "x.tar", embedding(1), ignore=["feature.classifier"])
    with pytest.raises(TypeError, match="list of beginnings"):
        load_released_checkpoint(tmp_path / "x.tar", embedding(1), ignore="feature.classifier")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool.t": torch.zeros(())}, r"the same weight twice, as dcov\.temperature and as pool\.t"),
        ({"dcov.temperature": torch.zeros(2)}, r"dcov\.temperature \(file \(2,\), model \(\)\)"),
    ],
)
def test_odd_files(tmp_path: Path, change: dict[str, Tensor], message: str) -> None:
    torch.save(released(embedding(0), -5.0) | change, tmp_path / "x.tar")
    with pytest.raises(ValueError, match=message):
        load_released_checkpoint(tmp_path / "x.tar", embedding(1))


def test_two_sets_of_weights_are_not_chosen_between(tmp_path: Path) -> None:
    state = released(embedding(0), -5.0)
    torch.save({"teacher": state, "state": state}, tmp_path / "x.tar")
    with pytest.raises(ValueError, match="2 mapping"):
        load_released_checkpoint(tmp_path / "x.tar", embedding(1))


def test_damaged_files(tmp_path: Path) -> None:
    torch.save(released(embedding(0), -5.0), tmp_path / "x.tar")
    whole = (tmp_path / "x.tar").read_bytes()
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        place = int(torch.randint(len(whole) - 9000, len(whole), (), generator=generator))
        (tmp_path / "x.tar").write_bytes(whole[:place] + b"\x00\xff\x80" + whole[place + 3 :])
        with contextlib.suppress(ValueError):  # and nothing else
            load_released_checkpoint(tmp_path / "x.tar", embedding(1))


def test_a_file_without_weights(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "x.tar")
    with pytest.raises(ValueError, match="no mapping"):
        load_released_checkpoint(tmp_path / "x.tar", embedding(0))
