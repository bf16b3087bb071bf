"""Figure 1, drawn from the modules."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from deepbdc.backbones import create_backbone
from deepbdc.errors import UserError
from deepbdc.report.instantiations import draw, instantiations


def texts(backbone: str, **options: float) -> list[str]:
    """All lines of both halves."""
    halves = instantiations(create_backbone(backbone, **options))
    return [line for half in halves for step in half.steps for line in (step.title, *step.lines)]


def test_shapes_and_parameters_come_from_the_modules() -> None:
    meta, stl = instantiations("conv4")
    assert [step.title for step in meta.steps] == [
        "Backbone",
        "1×1 reduction",
        "BDC matrix",
        "Vector",
        "Prototypes",
        "Similarity",
    ]
    assert [step.title for step in stl.steps[4:]] == ["Linear head", "Logistic regression"]
    backbone, reduction, matrix, vector, prototypes, similarity = (step.lines for step in meta.steps)
    assert backbone == ("conv4", "map 64 × 10 × 10", "113,088 parameters")
    assert reduction[1:] == ("map 64 × 10 × 10", f"{64 * 64 + 2 * 64:,} parameters")
    assert matrix[-1] == "64 × 64"
    assert vector[-1] == "2,080 numbers"
    assert prototypes[-1] == "3 × 2,080"
    assert similarity[:2] == ("−‖query − prototype‖²", "scores 3 × 3")
    assert stl.steps[4].lines[:2] == ("2,080 → 64 classes", f"{2080 * 64 + 64:,} parameters")


def test_another_backbone_changes_the_texts() -> None:
    narrow = texts("conv4", width=0.25, removed_downsamplings=0)
    assert "map 16 × 5 × 5" in narrow
    assert "16 × 16" in narrow
    assert "136 numbers" in narrow
    assert "136 → 64 classes" in narrow
    residual = texts("resnet12", width=0.3)  # 192 channels: Meta keeps them, STL has the 128 of the paper
    assert residual.count("map 192 × 10 × 10") == 3  # two backbones, and the reduction of Meta
    assert "map 128 × 10 × 10" in residual
    assert "192 × 192 (first 64 shown)" in residual


def test_the_matrix_is_the_bdc_matrix_of_the_first_image() -> None:
    for half in instantiations(create_backbone("conv4", width=0.25)):
        assert half.matrix.shape == (16, 16)
        assert torch.equal(half.matrix, half.matrix.T)
        assert half.matrix.sum(dim=0).abs().max() < 1e-4  # double-centred
        assert half.matrix.abs().max() > 1e-2


def test_the_weights_are_the_same_every_time_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, second = (instantiations("conv4")[0] for _ in range(2))
    assert torch.equal(first.matrix, second.matrix)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_picture(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"figure.{suffix}"
    draw(path, create_backbone("conv4", width=0.25))
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    if suffix == "png":
        with Image.open(path) as image:
            assert image.width > 1500
    else:
        assert path.read_bytes()[:5] == {"pdf": b"%PDF-", "svg": b"<?xml"}[suffix]


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must end in .png, .pdf or .svg"):
        draw(tmp_path / "figure.txt")
