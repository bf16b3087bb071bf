"""On maps in which only one thing tells the classes apart, exactly those methods that can see it find the classes."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from planted_maps import CHANCE, CHANNELS, KINDS, Entry, entries, planted_maps, sight_of, why_not

EPISODES, QUERY = 24, 5


@pytest.mark.parametrize("entry", entries(), ids=str)
def test_a_method_finds_the_classes_if_it_can_see_what_tells_them_apart(entry: Entry) -> None:
    if reason := why_not(entry):
        pytest.skip(reason)
    sight = sight_of(entry)
    found = {kind: entry.accuracy(kind, EPISODES, QUERY) for kind in KINDS if kind not in sight.partly}
    wrong = {
        kind: accuracy
        for kind, accuracy in found.items()
        if (accuracy < 90 if kind in sight.sees else abs(accuracy - CHANCE) > 5)
    }
    assert not wrong, f"a method that sees {sight.title} should be right in {sight.sees}, elsewhere at chance: {found}"


def test_methods_that_start_from_random_weights_are_left_out() -> None:
    left_out = {entry.name for entry in entries() if why_not(entry)}
    assert {"ctm", "ctx", "feat", "relationnet"} <= left_out
    assert not left_out & {"protonet", "good_embed", "covnet", "adm", "meta_deepbdc", "stl_deepbdc", "dn4", "r2d2"}


def contents(kind: str, images: int = 6) -> Tensor:
    """Maps without noise, ``(way, images, positions, channels)``."""
    return KINDS[kind][0](images, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["covariance", "descriptors"])
def test_the_mean_is_the_same_in_each_image(kind: str) -> None:
    assert contents(kind).mean(dim=2).abs().max() < 1e-5
    assert contents(kind).std() > 0.9


def test_descriptors_have_the_same_second_moment_in_each_image() -> None:
    content = contents("descriptors")
    moments = content.transpose(-2, -1) @ content / content.shape[2]
    torch.testing.assert_close(moments, torch.eye(CHANNELS).expand_as(moments), rtol=0, atol=1e-5)
    assert (content[0, 0] @ content[1, 0].T).abs().max() < 15.5  # 16 for a descriptor that two classes share


def test_covariances_differ_in_the_order_of_the_channels_only() -> None:
    content = contents("covariance", images=4000).flatten(1, 2)
    covariances = content.transpose(-2, -1) @ content / content.shape[1]
    eigenvalues = torch.linalg.eigvalsh(covariances)
    torch.testing.assert_close(eigenvalues, eigenvalues[:1].expand_as(eigenvalues), rtol=0.05, atol=0.01)
    torch.testing.assert_close(covariances.diagonal(dim1=1, dim2=2), torch.ones(5, CHANNELS), rtol=0.05, atol=0)
    assert (covariances[0] - covariances[1]).abs().max() > 0.7


@pytest.mark.parametrize("kind", ["place", "dependence"])
def test_a_class_is_the_arrangement_of_the_positions(kind: str) -> None:
    """Each class has as many positions of each descriptor as every other class, at other places."""
    for image in contents(kind).flatten(0, 1):
        sizes = alike(image).sum(dim=1).sort().values
        assert sizes.tolist() == ([16] * 16 + [48] * 48 if kind == "place" else [16] * 64)
    one, same, other = (alike(contents(kind)[label, image]) for label, image in ((0, 0), (0, 1), (1, 0)))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def alike(image: Tensor) -> Tensor:
    """Which pairs of positions have the same descriptor, ``(positions, channels) -> (positions, positions)``."""
    return (image[:, None] == image[None]).all(dim=-1)


def test_each_episode_has_new_classes_and_the_same_seed_gives_the_same_maps() -> None:
    maps = planted_maps("place", 2, 1)
    assert not torch.allclose(maps.support[0].mean(dim=1), maps.support[1].mean(dim=1), atol=1)
    again = planted_maps.__wrapped__("place", 2, 1)
    assert torch.equal(maps.support, again.support)
    assert torch.equal(maps.query, again.query)
