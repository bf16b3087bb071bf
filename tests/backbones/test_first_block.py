"""The first block of a Conv4, computed fast, beside the same block layer by layer."""

import copy

import pytest
import torch
from torch import Tensor, nn

from deepbdc.backbones import _first_block as module
from deepbdc.backbones import create_backbone
from deepbdc.backbones._first_block import run_first_block


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the fast way for small batches as well, in slices of two images and a rest."""
    monkeypatch.setattr(module, "_WORTHWHILE", 0)
    monkeypatch.setattr(module, "_ENTRIES", 2 * 12 * 16 * 8)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each call of the fast way."""
    calls: list[int] = []
    original = module._slices
    monkeypatch.setattr(module, "_slices", lambda n, entries: calls.append(n) or original(n, entries))
    return calls


def make_block(dtype: torch.dtype = torch.float64, momentum: float | None = 0.1) -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8, momentum=momentum)
    block = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), norm, nn.MaxPool2d(2), nn.ReLU(inplace=True))
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.5, -0.7, 0.0, 2.0, -1.0, 0.3, -0.1, 1.0]))  # of both signs, and 0
        norm.bias.normal_()
    return block.to(dtype)


def make_images(dtype: torch.dtype = torch.float64) -> Tensor:
    """Images with flat areas, where the values of a square are equal."""
    images = torch.randn(5, 3, 12, 16, generator=torch.Generator().manual_seed(1))
    images[:, :, :6, :8] = 0.5
    images[0] = 3  # far from the others
    return images.to(dtype)


def results(block: nn.Sequential, out: Tensor) -> dict[str, Tensor]:
    """The output, all gradients and all statistics after a backward pass."""
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)
    (out * weights).sum().backward()
    gradients = {f"gradient of {name}": value.grad for name, value in block.named_parameters()}
    return {"out": out, **gradients, **dict(block.named_buffers())}  # type: ignore[dict-item]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_everything_is_as_layer_by_layer(channels_last: bool, momentum: float | None, used: list[int]) -> None:
    images = make_images()
    if channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    fast = make_block(momentum=momentum)
    plain = copy.deepcopy(fast)
    for _ in range(2):  # the second time from other running statistics
        for block in (fast, plain):
            block.zero_grad()
        found, expected = results(fast, run_first_block(fast, images)), results(plain, plain(images))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(
                found[name], value, atol=1e-9, rtol=1e-9, msg=lambda text, name=name: name + text
            )
    assert fast[1].num_batches_tracked == 2
    assert used


def test_rounding_in_single_precision() -> None:
    """The fast way is as near to double precision as the plain one, up to a factor."""
    exact = make_block()
    fast, plain = make_block(torch.float32), make_block(torch.float32)
    images = make_images()
    best = results(exact, exact(images))
    found = results(fast, run_first_block(fast, images.float()))
    expected = results(plain, plain(images.float()))
    for name, value in best.items():
        if name == "1.num_batches_tracked":
            continue
        size = value.abs().max() + 1
        plain_error = (expected[name].double() - value).abs().max() / size
        assert (found[name].double() - value).abs().max() / size < 10 * plain_error + 2e-6, name


def test_second_derivatives_are_those_of_the_formula(used: list[int]) -> None:
    fast = make_block()
    plain = copy.deepcopy(fast)
    images = make_images()
    found = []
    for block, run in ((fast, run_first_block), (plain, lambda block, images: block(images))):
        first = torch.autograd.grad(run(block, images).pow(2).sum(), list(block.parameters()), create_graph=True)
        found.append(torch.autograd.grad(sum(part.pow(2).sum() for part in first), [block[0].weight, block[1].weight]))
    assert used
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-7)


def test_frozen_parameters_have_no_gradient(used: list[int]) -> None:
    block = make_block()
    block[1].requires_grad_(False)
    run_first_block(block, make_images()).sum().backward()
    assert used
    assert block[0].weight.grad is not None
    assert block[1].weight.grad is None


@pytest.mark.parametrize(
    "case",
    ["evaluation", "frozen norm", "no gradients", "no statistics", "gradient of images", "odd", "hook", "autocast"],
)
def test_other_uses_go_layer_by_layer(case: str, used: list[int]) -> None:
    block, images = make_block(torch.float32), make_images(torch.float32)
    if case == "evaluation":
        block.eval()
    if case == "frozen norm":
        block[1].eval()
    if case == "no statistics":
        block[1].running_mean = block[1].running_var = block[1].num_batches_tracked = None
    if case == "odd":
        images = images[:, :, :11]
    seen: list[Tensor] = []
    if case == "hook":
        block[1].register_forward_hook(lambda module, inputs, output: seen.append(output))
    images.requires_grad_(case == "gradient of images")
    plain = copy.deepcopy(block)
    with torch.set_grad_enabled(case != "no gradients"), torch.autocast("cpu", enabled=case == "autocast"):
        found, expected = run_first_block(block, images), plain(images)
    assert torch.equal(found, expected)
    assert not used
    assert len(seen) == (2 if case == "hook" else 0)  # the copy has the hook as well


def test_small_batches_go_layer_by_layer(used: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORTHWHILE", 5 * 12 * 16 * 8)
    run_first_block(make_block(), make_images())
    assert not used


def test_a_conv4_uses_it_in_training_only(used: list[int]) -> None:
    network = create_backbone("conv4", width=0.125)
    images = torch.randn(4, 3, 32, 32)
    network.eval()
    expected = network(images)
    assert not used
    network.train()
    network(images)
    assert used
    composed = images
    network.eval()
    with torch.no_grad():
        for block in network.blocks_in_order():
            composed = block(composed)
    assert composed.shape == expected.shape


def test_exports_and_compiles(used: list[int]) -> None:
    network = create_backbone("conv4", width=0.125).train()
    program = torch.export.export(network, (torch.randn(4, 3, 32, 32),))
    assert not used
    names = [str(node.target) for node in program.graph.nodes]
    assert any("batch_norm" in name for name in names)
