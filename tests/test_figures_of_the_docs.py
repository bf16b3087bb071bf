"""Numbers that figures and pages take from kept outputs are read correctly."""

from pathlib import Path

import pytest
import torch

import deepbdc
from tests.scripts import ROOT, script

OUTPUT = """
Accuracy in %, minus the first row
  efficientnet_lite0               CUB 5/1       CUB 5/5      CUB 15/1
  own                           82.90 ±1.1    94.68 ±0.4    65.56 ±1.6
  average                      -10.32 ±0.8    -3.66 ±0.4   -11.25 ±1.0
  bdc                           -2.64 ±0.4    -0.59 ±0.2    -2.05 ±0.6
  both                          -0.76 ±0.3    -0.11 ±0.2    -0.48 ±0.4

  efficientnet_lite2               CUB 5/1       CUB 5/5      CUB 15/1
  own                           +3.22 ±0.8    +1.21 ±0.3    +5.18 ±1.1
  average                       -7.54 ±0.9    -2.08 ±0.4    -8.49 ±1.1
  bdc                           +2.10 ±0.7    +1.02 ±0.3    +4.17 ±1.0
  both                          +3.04 ±0.7    +1.31 ±0.3    +5.36 ±1.0
"""


def test_gains_of_the_figure() -> None:
    gains = script("bdc_gain", "docs").frozen_gains(OUTPUT)
    assert gains == {"birds": {1: pytest.approx(-0.18), 5: pytest.approx(0.10)}}


def test_words_of_the_figure() -> None:
    words = script("bdc_gain", "docs").words
    assert [words(points) for points in (1.23, -0.2, -0.01)] == ["+1.2", "−0.2", "0.0"]


def test_the_figure_is_drawn_from_what_is_kept(tmp_path: Path) -> None:
    script("bdc_gain", "docs").draw(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_gains_of_tokens() -> None:
    assert script("tokens").gains(OUTPUT) == [("CUB 5/1", pytest.approx(9.64)), ("CUB 5/5", pytest.approx(3.10))]


def test_the_table_of_the_page_has_the_kept_gains() -> None:
    tokens = script("tokens")
    found = [f"{gain:+.1f}" for _, gain in tokens.gains(tokens.ACCURACY.read_text(encoding="utf-8"))]
    row = "| " + " | ".join(f"{one} / {five}" for one, five in zip(found[::2], found[1::2], strict=True)) + " |"
    assert row in (ROOT / "docs" / "layer.md").read_text(encoding="utf-8")
    assert all(gain in tokens.RESULTS.read_text(encoding="utf-8") for gain in found)


def test_positions_of_the_built_in_network_as_tokens_have_the_vector_of_its_map(generator: torch.Generator) -> None:
    network = deepbdc.create_backbone("efficientnet_lite0", pretrained=True).eval()
    with torch.no_grad():
        maps = network(torch.rand(2, 3, 96, 96, generator=generator))
        pool = deepbdc.BDCPool(maps.shape[1]).eval()
        torch.testing.assert_close(pool(maps.flatten(2).transpose(1, 2)), pool(maps))
