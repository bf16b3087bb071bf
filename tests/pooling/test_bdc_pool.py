"""The layer against a naive implementation with loops in float64."""

import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from deepbdc import BDCPool
from deepbdc.pooling import _bdc_operator
from deepbdc.pooling._bdc_operator import bdc_pool, bdc_pool_formula
from deepbdc.statistic import bdc_matrix

OUTPUTS = ("triangle", "weighted", "matrix")


def naive_layer(x: Tensor, t: float, output: str, eps: float = 1e-5) -> Tensor:
    """The representation of one sample ``(m, p)``, computed entry by entry."""
    m, p = x.shape
    rows = x.tolist()
    distance = [
        [math.sqrt(math.exp(t) / (2 * p) * math.dist(rows[k], rows[j]) ** 2 + eps) for j in range(m)] for k in range(m)
    ]
    mean = [sum(row) / m for row in distance]
    grand = sum(mean) / m
    a = [[distance[k][j] - mean[k] - mean[j] + grand for j in range(m)] for k in range(m)]
    if output == "matrix":
        return torch.tensor(a, dtype=x.dtype)
    weight = math.sqrt(2) if output == "weighted" else 1
    vector = [a[k][j] * (1 if k == j else weight) for k in range(m) for j in range(k, m)]
    return torch.tensor(vector, dtype=x.dtype)


def maps(n: int = 3, d: int = 6, h: int = 2, w: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(n, d, h, w, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("output", OUTPUTS)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 4),
    m=st.integers(2, 7),
    p=st.integers(1, 5),
    t=st.floats(-3, 3),
)
def test_equals_a_naive_version(output: _bdc_operator.Output, seed: int, n: int, m: int, p: int, t: float) -> None:
    x = maps(n, m, 1, p, seed=seed)
    pool = BDCPool(m, output=output).double()
    nn.init.constant_(pool.t, t)
    expected = torch.stack([naive_layer(x[i, :, 0], t, output) for i in range(n)])
    torch.testing.assert_close(pool(x), expected, atol=1e-10, rtol=1e-8)
    found = bdc_pool_formula(x.flatten(2), pool.t, output, 1e-5)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-8)


def test_positions_as_observations() -> None:
    x = maps()
    pool = BDCPool(6, observations="positions").double()
    expected = torch.stack([naive_layer(image.flatten(1).T, 0.0, "triangle") for image in x])
    torch.testing.assert_close(pool(x), expected)
    assert pool.out_features_for(2, 4) == expected.shape[1] == 36
    with pytest.raises(ValueError, match="out_features_for"):
        _ = pool.out_features


def test_equals_the_bdc_matrix_of_the_statistic() -> None:
    """With eps → 0 and exp(t) = 2hw, the layer computes `bdc_matrix` of the channels."""
    x = maps(d=5, h=3, w=3)
    pool = BDCPool(5, output="matrix", eps=1e-30).double()
    nn.init.constant_(pool.t, math.log(2 * 9))
    torch.testing.assert_close(pool(x), bdc_matrix(x.flatten(2)), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("case", ["random", "equal channels", "zero"])
def test_gradients(output: _bdc_operator.Output, case: str) -> None:
    x = maps(n=3, d=5, h=1, w=7).flatten(2)
    if case == "equal channels":
        x[:, 1] = x[:, 2]
        x[1] = 1.3
    elif case == "zero":
        x = torch.zeros_like(x)
    x.requires_grad_()
    t = torch.tensor(0.3, dtype=x.dtype, requires_grad=True)

    def layer(x: Tensor, t: Tensor) -> Tensor:
        return bdc_pool(x, t, output, 1e-5)

    assert torch.autograd.gradcheck(layer, (x, t))
    assert torch.autograd.gradgradcheck(layer, (x, t))


def test_gradient_with_respect_to_only_one_input() -> None:
    x, t = maps().flatten(2), torch.zeros((), dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    bdc_pool(leaf, t, "triangle", 1e-5).sum().backward()
    assert leaf.grad is not None
    scale = t.clone().requires_grad_()
    (first,) = torch.autograd.grad(bdc_pool(x, scale, "triangle", 1e-5).square().sum(), scale, create_graph=True)
    (second,) = torch.autograd.grad(first, scale)
    assert torch.isfinite(second)


@pytest.mark.parametrize("output", OUTPUTS)
def test_block_size_does_not_change_the_result(output: _bdc_operator.Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one sample give the same result as larger blocks, of which the last one is shorter."""
    weights = torch.randn(13, 36 if output == "matrix" else 21, dtype=torch.float64)

    def run() -> list[Tensor]:
        x = maps(n=13).requires_grad_()
        pool = BDCPool(6, output=output).double()
        y = pool(x)
        (y.flatten(1) * weights).sum().backward()
        assert x.grad is not None
        assert pool.t.grad is not None
        return [y.detach(), x.grad, pool.t.grad]

    monkeypatch.setitem(_bdc_operator._BLOCK_ENTRIES, "cpu", 1)
    singly = run()
    for entries in (3 * 36, 2**19):
        monkeypatch.setitem(_bdc_operator._BLOCK_ENTRIES, "cpu", entries)
        for found, expected in zip(run(), singly, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


def float32_and_float64(x: Tensor, t: float = 0.0) -> list[tuple[Tensor, Tensor]]:
    """Pairs of (float32, float64): the output, the gradient with respect to x, and that with respect to t."""
    pairs = []
    weights = torch.randn(len(x), BDCPool(x.shape[1]).out_features, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.float32, torch.float64):
        leaf = x.to(dtype).requires_grad_()
        pool = BDCPool(x.shape[1]).to(dtype)
        nn.init.constant_(pool.t, t)
        y = pool(leaf)
        (y * weights.to(dtype)).sum().backward()
        assert leaf.grad is not None
        assert pool.t.grad is not None
        pairs.append([y.detach(), leaf.grad, pool.t.grad])
    return list(zip(*pairs, strict=True))


def dead_beside_large() -> Tensor:
    x = torch.relu(maps(d=64, h=10, w=10)) * 1e4
    x[:, ::2] = 0
    return x


@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize(
    ("x", "t"),
    [
        (torch.relu(maps(d=64, h=10, w=10)), 0.0),
        (torch.relu(maps(d=64, h=10, w=10)) * 100, 0.0),
        (torch.relu(maps(d=64, h=10, w=10)), 10.0),
        (dead_beside_large(), 0.0),
    ],
    ids=["usual", "large", "large t", "dead channels"],
)
def test_float32_agrees_with_float64(x: Tensor, t: float, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    for found, expected in float32_and_float64(x.float().double(), t):
        error = (found.double() - expected).abs().max() / expected.abs().max()
        assert error < 3e-5


def test_nearly_equal_channels_are_clamped() -> None:
    """In float32, their squared distance from a Gram product may be negative, and its size far larger than eps."""
    x = torch.relu(maps(d=32, h=10, w=10)) * 100
    x[:, 1:16] = x[:, :1] * (1 + 3e-7 * torch.randn(15, 1, 1, generator=torch.Generator().manual_seed(0)))
    products = x.float().flatten(2) @ x.float().flatten(2).transpose(1, 2)
    squares = products.diagonal(dim1=1, dim2=2)
    squared_distances = squares[:, :, None] + squares[:, None] - 2 * products
    assert squared_distances.min() < -0.1, "the test needs a case in which rounding makes them negative"
    for found, _ in float32_and_float64(x):
        assert torch.isfinite(found).all()


def test_a_precision_set_for_one_backend_is_accepted() -> None:
    code = """
import torch, deepbdc
torch.backends.cuda.matmul.fp32_precision = "tf32"
print(tuple(deepbdc.BDCPool(4)(torch.rand(2, 4, 3, 3)).shape))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(2, 10)", done.stderr


def test_differentiable_gradient_under_autocast() -> None:
    x = maps(n=2, d=5, h=3, w=3, dtype=torch.float32).requires_grad_()

    def gradient() -> Tensor:
        (found,) = torch.autograd.grad(BDCPool(5)(x).square().sum(), x, create_graph=True)
        return found

    expected = gradient()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(gradient(), expected)


def test_meta_device() -> None:
    with torch.device("meta"):
        assert BDCPool(8, reduce_to=4)(torch.empty(2, 8, 5, 5)).shape == (2, 10)


def test_rows_of_the_matrix_sum_to_zero_and_a_batch_of_one_works() -> None:
    matrix = BDCPool(6, output="matrix").double()(maps(n=1))
    assert matrix.shape == (1, 6, 6)
    torch.testing.assert_close(matrix.sum(dim=2), torch.zeros(1, 6, dtype=matrix.dtype), atol=1e-12, rtol=0)
    assert BDCPool(6)(maps(n=1, dtype=torch.float32)).shape == (1, 21)
    assert BDCPool(6)(maps(n=0, dtype=torch.float32)).shape == (0, 21)


def test_weighted_inner_product_is_the_trace() -> None:
    x = maps()
    a = BDCPool(6, output="matrix").double()(x)
    v = BDCPool(6, output="weighted").double()(x)
    torch.testing.assert_close(v[0] @ v[1], (a[0].T @ a[1]).trace())


def test_the_scale_is_relative_to_the_map_size() -> None:
    """Repeating every position does not change the representation, because distances are means over positions."""
    x = maps()
    pool = BDCPool(6).double()
    torch.testing.assert_close(pool(x.repeat(1, 1, 2, 3)), pool(x))


@pytest.mark.parametrize("reduce_to", [None, 4, 6])
def test_reduction(reduce_to: int | None) -> None:
    pool = BDCPool(6, reduce_to=reduce_to).double()
    d = 6 if reduce_to is None else reduce_to
    assert pool.out_features == d * (d + 1) // 2
    if reduce_to is None:
        assert [name for name, _ in pool.named_parameters()] == ["t"]
    else:
        kinds = [type(layer) for layer in pool.reduction.children()]
        assert kinds == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
        assert pool.state_dict()["reduction.0.weight"].shape == (reduce_to, 6, 1, 1)
        assert "reduction.0.bias" not in pool.state_dict()
    x = maps()
    expected = BDCPool(d).double()(pool.reduction(x))
    pool.load_state_dict(pool.state_dict())
    torch.testing.assert_close(pool(x), expected)


def test_reduction_starts_with_variance_two_over_fan_out() -> None:
    weight = BDCPool(640, reduce_to=128).state_dict()["reduction.0.weight"]
    assert weight.std().item() == pytest.approx(0.125, rel=0.02)


def test_channels_last_and_non_contiguous_maps() -> None:
    x = maps(n=2, d=6, h=4, w=5)
    pool = BDCPool(6).double()
    for other in (x.to(memory_format=torch.channels_last), x.transpose(2, 3)):
        leaf = other.detach().requires_grad_()
        y = pool(leaf)
        torch.testing.assert_close(y, pool(x))
        y.sum().backward()
        assert leaf.grad is not None


def test_autocast_keeps_distances_in_float32() -> None:
    x = torch.relu(maps(n=2, d=16, h=5, w=5, dtype=torch.float32))
    pool = BDCPool(16)
    exact = pool(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(pool(x), exact)
        reduced = BDCPool(16, reduce_to=8)
        y = reduced(x.requires_grad_())
        assert y.dtype == torch.float32
        y.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_maps_are_pooled_in_float32(dtype: torch.dtype) -> None:
    x = torch.relu(maps(n=2, d=16, h=5, w=5, dtype=torch.float32)).to(dtype)
    y = BDCPool(16).to(dtype)(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y, BDCPool(16)(x.float()).to(dtype))


def test_training_saves_no_matrices() -> None:
    """For the backward pass, the layer saves only the row means ``(n, d)`` in addition to input and output."""
    x = maps(n=4, d=32, h=3, w=3, dtype=torch.float32).requires_grad_()
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.data_ptr()] = tensor.numel()
        return tensor

    pool = BDCPool(32)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = pool(x)
    saved.pop(x.data_ptr())
    saved.pop(y.data_ptr(), None)
    beyond = sum(saved.values()) - (y.numel() if y.numel() in saved.values() else 0)
    assert beyond <= 4 * 32 + 8


def test_changing_the_output_in_place_raises_in_the_backward_pass() -> None:
    x = maps().requires_grad_()
    y = BDCPool(6).double()(x)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_index_tables_cached_in_inference_mode_work_in_training() -> None:
    _bdc_operator._triangle_of_matrix.cache_clear()
    _bdc_operator._matrix_of_triangle.cache_clear()
    pool = BDCPool(6).double()
    with torch.inference_mode():
        pool(maps())
    x = maps().requires_grad_()
    pool(x).sum().backward()
    assert x.grad is not None


def test_operator_is_registered_correctly() -> None:
    x, t = maps().flatten(2).requires_grad_(), torch.zeros((), dtype=torch.float64, requires_grad=True)
    for output in OUTPUTS:
        torch.library.opcheck(torch.ops.deepbdc.bdc_pool.default, (x, t, output, 1e-5))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.pool = BDCPool(16, reduce_to=8)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.pool(self.conv(images))
        return out


def test_compiles_without_graph_breaks() -> None:
    torch._dynamo.reset()
    net, images = Net(), maps(n=4, d=3, h=9, w=9, dtype=torch.float32)
    compiled: Callable[[Tensor], Tensor] = torch.compile(net, fullgraph=True, backend="aot_eager")

    def gradients(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        net.zero_grad()
        run(images).square().sum().backward()
        return [p.grad.clone() for p in net.parameters() if p.grad is not None]

    for found, expected in zip(gradients(compiled), gradients(net), strict=True):
        torch.testing.assert_close(found, expected)


def test_exports_with_a_dynamic_batch_to_standard_operators() -> None:
    net, images = Net().eval(), maps(n=4, d=3, h=9, w=9, dtype=torch.float32)
    exported = torch.export.export(net, (images,), dynamic_shapes={"images": {0: torch.export.Dim("n")}})
    assert not any("deepbdc" in str(node.target) for node in exported.graph.nodes)
    for n in (1, 3):
        torch.testing.assert_close(exported.module()(images[:n]), net(images[:n]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BDCPool(0), "must be positive"),
        (lambda: BDCPool(8, reduce_to=0), "must be positive"),
        (lambda: BDCPool(1), "at least 2"),
        (lambda: BDCPool(8, observations="pixels"), "'channels' or 'positions'"),
        (lambda: BDCPool(8, output="vector"), "'triangle', 'weighted' or 'matrix'"),
        (lambda: BDCPool(8, eps=0), "eps must be positive"),
        (lambda: BDCPool(8, eps=math.nan), "eps must be positive"),
        (lambda: BDCPool(8)(torch.zeros(2, 8, 3, 3, dtype=torch.int64)), "real numbers, got torch.int64"),
        (lambda: BDCPool(8)(torch.zeros(2, 7, 3, 3)), r"\(n, 8, h, w\), got \(2, 7, 3, 3\)"),
        (lambda: BDCPool(8)(torch.zeros(2, 8)), r"\(n, 8, h, w\), got \(2, 8\)"),
        (lambda: BDCPool(8, observations="positions")(torch.zeros(2, 8, 1, 1)), "too few positions"),
    ],
)
def test_wrong_arguments_raise_clear_errors(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("reduce_to", [None, 5])
def test_tokens_are_positions(reduce_to: int | None) -> None:
    """The tokens of a transformer give what the same numbers give as a map."""
    pool = BDCPool(8, reduce_to).eval()
    maps = torch.rand(2, 8, 3, 4)
    torch.testing.assert_close(pool(maps.flatten(2).transpose(1, 2)), pool(maps))


def test_tokens_can_be_differentiated() -> None:
    tokens = torch.rand(2, 6, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(BDCPool(8).double(), tokens)
