"""Loading released weights. The tests write files with the authors' names themselves; the real ones are not at hand."""

import contextlib
import math
import os
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deepbdc import BDCPool, Embedding, create_backbone, load_released_checkpoint
from deepbdc.errors import UserError

THEIRS = {"backbone.": "feature.", "pool.reduction.": "dcov.conv_dr_block."}

FIRST_BLOCKS = {  # the number that a released file gives to the first block of each stage
    "resnet10": (4, 5, 6, 7),
    "resnet18": (4, 6, 8, 10),
    "resnet34": (4, 7, 11, 17),
}
IN_BLOCK = {
    "conv1": "C1",
    "bn1": "BN1",
    "conv2": "C2",
    "bn2": "BN2",
    "downsample.0": "shortcut",
    "downsample.1": "BNshortcut",
}


def embedding(seed: int, reduce_to: int | None = 8, name: str = "resnet12", removed: int = 1) -> Embedding:
    torch.manual_seed(seed)
    backbone = create_backbone(name, width=0.05, removed_downsamplings=removed)
    return Embedding(backbone, BDCPool(backbone.out_channels, reduce_to=reduce_to))


def released(model: Embedding, temperature: float) -> dict[str, Tensor]:
    """The state of a ResNet-12 ``model`` under the names of the released code."""
    state = {}
    for name, value in model.state_dict().items():
        for ours, theirs in THEIRS.items():
            if name.startswith(ours):
                state[theirs + name.removeprefix(ours)] = value
    state["dcov.temperature"] = torch.full((1, 1), temperature)
    return state


def released_resnet(name: str, model: Embedding, temperature: float) -> dict[str, Tensor]:
    """The state of a ``model`` with ResNet-10, 18 or 34 under the names of the released code."""
    state = {}
    for key, value in released(model, temperature).items():
        if match := re.fullmatch(r"feature\.layer(\d)\.(\d+)\.(downsample\.\d|\w+)\.(\w+)", key):
            number = FIRST_BLOCKS[name][int(match[1]) - 1] + int(match[2])
            key = f"feature.trunk.{number}.{IN_BLOCK[match[3]]}.{match[4]}"
        key = re.sub(r"^feature\.conv1", "feature.trunk.0", key)
        state[re.sub(r"^feature\.bn1", "feature.trunk.1", key)] = value
    return state


def randomise(model: Embedding) -> None:
    """Give batch norm, which starts with the same values in every layer, values that differ from layer to layer."""
    for value in model.state_dict().values():
        if value.dim() == 1:
            value.uniform_(0.5, 1.5)
        elif not value.is_floating_point():
            value.random_(2**31)


@pytest.mark.parametrize("reduce_to", [None, 8])
@pytest.mark.parametrize("nested", [False, True])
def test_loads_every_weight(tmp_path: Path, reduce_to: int | None, nested: bool) -> None:
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


@pytest.mark.parametrize("removed", [0, 1])  # the shortcuts of stage 4 have stride 2 or 1
@pytest.mark.parametrize("reduce_to", [None, 8])
@pytest.mark.parametrize("name", FIRST_BLOCKS)
def test_loads_resnets_for_224_pixels(tmp_path: Path, name: str, reduce_to: int | None, removed: int) -> None:
    source, target = embedding(0, reduce_to, name, removed).eval(), embedding(1, reduce_to, name, removed).eval()
    randomise(source)
    state = released_resnet(name, source, temperature=-5.0)
    torch.save({"epoch": 3, "state": state}, tmp_path / "best.tar")
    load_released_checkpoint(tmp_path / "best.tar", target)
    side = 14 if removed else 7
    source.state_dict()["pool.t"].fill_(-5.0).add_(math.log(2 * side * side))
    found, expected = target.state_dict(), source.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.isfinite(target.backbone(images)).all()
        assert torch.equal(target.backbone(images), source.backbone(images))
        assert torch.equal(target(images), source(images))


def test_names_of_resnet18_are_those_of_the_released_code() -> None:
    """Spot checks against the published description, so that the helper above is itself tested."""
    model = embedding(0, name="resnet18")
    state, ours = released_resnet("resnet18", model, -5.0), model.backbone.state_dict()
    assert torch.equal(state["feature.trunk.0.weight"], ours["conv1.weight"])
    assert torch.equal(state["feature.trunk.6.C1.weight"], ours["layer2.0.conv1.weight"])
    assert state["feature.trunk.6.BNshortcut.running_mean"].shape == ours["layer2.0.downsample.1.running_mean"].shape
    numbers = {int(key.split(".")[2]) for key in state if key.startswith("feature.trunk.")}
    assert numbers == {0, 1, *range(4, 12)}
    assert {int(key.split(".")[2]) for key in state if ".shortcut." in key} == {6, 8, 10}


@pytest.mark.parametrize(
    ("of_file", "of_model", "message"),
    [
        ("resnet18", "resnet34", r"the file holds 8 residual blocks .*the model has 16 \(3 \+ 4 \+ 6 \+ 3\)"),
        ("resnet34", "resnet18", r"the file holds 16 residual blocks .*the model has 8 \(2 \+ 2 \+ 2 \+ 2\)"),
        ("resnet18", "resnet10", "the file holds 8 residual blocks .*the model has 4 "),
        ("resnet18", "resnet12", r"not in the model: feature\.trunk\.0\.weight"),
    ],
)
def test_another_depth_is_refused(tmp_path: Path, of_file: str, of_model: str, message: str) -> None:
    torch.save(released_resnet(of_file, embedding(0, name=of_file), -5.0), tmp_path / "x.tar")
    target = embedding(1, name=of_model)
    before = {key: value.clone() for key, value in target.state_dict().items()}
    with pytest.raises(UserError, match=message) as caught:
        load_released_checkpoint(tmp_path / "x.tar", target)
    assert "nothing was loaded" in str(caught.value)
    assert all(torch.equal(before[key], value) for key, value in target.state_dict().items())


def test_a_resnet_file_that_does_not_fit_is_described(tmp_path: Path) -> None:
    state = released_resnet("resnet18", embedding(0, name="resnet18"), -5.0)
    del state["feature.trunk.6.shortcut.weight"]
    state["feature.trunk.5.BN2.bias"] = torch.zeros(99)
    for name in ("trunk.2.weight", "trunk.5.C3.weight", "trunk.x.C1.weight", f"trunk.{'9' * 5000}.C1.weight"):
        state[f"feature.{name}"] = torch.zeros(1)
    torch.save(state, tmp_path / "x.tar")
    with pytest.raises(UserError) as caught:
        load_released_checkpoint(tmp_path / "x.tar", embedding(1, name="resnet18"))
    message = str(caught.value)
    assert "missing in the file: backbone.layer2.0.downsample.0.weight\n" in message
    assert "not in the model: feature.trunk.2.weight, feature.trunk.5.C3.weight, feature.trunk.9999" in message
    assert "feature.trunk.5.BN2.bias (file (99,), model (3,))" in message


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
    assert "not in the model: classifier.weight" in message
    assert "dcov.conv_dr_block.1.bias (file (9,), model (8,))" in message
    assert all(torch.equal(before[name], value) for name, value in target.state_dict().items())


def test_the_head_can_be_skipped(tmp_path: Path) -> None:
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
def test_files_that_are_not_weights_get_a_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(ValueError, match="not a file of weights"):
        load_released_checkpoint(tmp_path / "x.tar", embedding(0))


def test_names_are_reported_as_the_file_has_them(tmp_path: Path) -> None:
    state = released(embedding(0), -5.0) | {"feature.classifier.weight": torch.zeros(3)}
    torch.save(state, tmp_path / "x.tar")
    with pytest.raises(ValueError, match=r"not in the model: feature\.classifier\.weight"):
        load_released_checkpoint(tmp_path / "x.tar", embedding(1))
    load_released_checkpoint(tmp_path / "x.tar", embedding(1), ignore=["feature.classifier"])
    with pytest.raises(TypeError, match="list of prefixes"):
        load_released_checkpoint(tmp_path / "x.tar", embedding(1), ignore="feature.classifier")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool.t": torch.zeros(())}, r"the same weight twice, as dcov\.temperature and as pool\.t"),
        ({"dcov.temperature": torch.zeros(2)}, r"dcov\.temperature \(file \(2,\), model \(\)\)"),
    ],
)
def test_duplicate_or_misshapen_weights_are_refused(tmp_path: Path, change: dict[str, Tensor], message: str) -> None:
    torch.save(released(embedding(0), -5.0) | change, tmp_path / "x.tar")
    with pytest.raises(ValueError, match=message):
        load_released_checkpoint(tmp_path / "x.tar", embedding(1))


def test_two_sets_of_weights_are_refused(tmp_path: Path) -> None:
    state = released(embedding(0), -5.0)
    torch.save({"teacher": state, "state": state}, tmp_path / "x.tar")
    with pytest.raises(ValueError, match="2 mapping"):
        load_released_checkpoint(tmp_path / "x.tar", embedding(1))


def test_damaged_files_raise_only_value_errors(tmp_path: Path) -> None:
    torch.save(released(embedding(0), -5.0), tmp_path / "x.tar")
    whole = (tmp_path / "x.tar").read_bytes()
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        place = int(torch.randint(len(whole) - 9000, len(whole), (), generator=generator))
        (tmp_path / "x.tar").write_bytes(whole[:place] + b"\x00\xff\x80" + whole[place + 3 :])
        with contextlib.suppress(ValueError):  # any other exception fails the test
            load_released_checkpoint(tmp_path / "x.tar", embedding(1))


def test_a_file_without_weights_is_refused(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "x.tar")
    with pytest.raises(ValueError, match="no mapping"):
        load_released_checkpoint(tmp_path / "x.tar", embedding(0))
