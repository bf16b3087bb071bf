"""Second-order pooling against numpy, entry by entry and by eigenvalues; and planted data that it can tell apart."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from deepbdc import BDCPool
from deepbdc.classifiers import create_classifier
from deepbdc.pooling import AveragePool, CovarianceRootPool, SecondMomentPool
from deepbdc.pooling.covariance import second_moment

OUTPUTS = ["triangle", "weighted", "matrix"]
POOLS = [SecondMomentPool, CovarianceRootPool]
Draw = Callable[[int, int], Tensor]


def maps(n: int = 3, d: int = 5, h: int = 2, w: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(n, d, h, w, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def naive_moment(x: Tensor, center: bool) -> np.ndarray:
    """The second moment of one map ``(d, h, w)``, position by position."""
    positions = [x[:, i, j].numpy() for i in range(x.shape[1]) for j in range(x.shape[2])]
    mean = sum(positions) / len(positions) if center else 0 * positions[0]
    return sum(np.outer(one - mean, one - mean) for one in positions) / len(positions)  # type: ignore[return-value]


def naive_vector(matrix: np.ndarray, output: str) -> Tensor:
    if output == "matrix":
        return torch.from_numpy(matrix)
    weight = math.sqrt(2) if output == "weighted" else 1.0
    d = len(matrix)
    return torch.tensor([matrix[k, j] * (1 if k == j else weight) for k in range(d) for j in range(k, d)])


def naive_iterations(eigenvalue: float, trace: float, iterations: int) -> float:
    """The iterations act on each eigenvalue alone."""
    y, z = eigenvalue / trace, 1.0
    for _ in range(iterations):
        step = (3 - z * y) / 2
        y, z = y * step, step * z
    return math.sqrt(trace) * y


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("center", [False, True])
@given(seed=st.integers(0, 2**31), n=st.integers(1, 3), d=st.integers(1, 6), p=st.integers(1, 7))
def test_second_moments_equal_a_naive_version(output: str, center: bool, seed: int, n: int, d: int, p: int) -> None:
    x = maps(n, d, 1, p, seed=seed)
    pool = SecondMomentPool(d, center=center, output=output)  # type: ignore[arg-type]
    found = pool(x)
    assert found[0].numel() == pool.out_features == pool.out_features_for(1, p)
    for image, one in zip(x, found, strict=True):
        moment = naive_moment(image, center)
        # Where centring leaves nothing but rounding errors, the root magnifies them.
        expected = np.sign(moment) * np.sqrt(np.abs(moment) + 1e-5) * (np.abs(moment) > 1e-12)
        torch.testing.assert_close(one, naive_vector(expected, output).double(), atol=4e-3 if p == 1 else 1e-8, rtol=0)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("center", [False, True])
@given(seed=st.integers(0, 2**31), d=st.integers(1, 6), p=st.integers(1, 9), iterations=st.integers(1, 8))
def test_roots_equal_those_of_an_eigen_decomposition(
    output: str, center: bool, seed: int, d: int, p: int, iterations: int
) -> None:
    x = maps(2, d, 1, p, seed=seed)
    pool = CovarianceRootPool(d, center=center, iterations=iterations, output=output)  # type: ignore[arg-type]
    for image, one in zip(x, pool(x), strict=True):
        moment = naive_moment(image, center)
        trace = float(np.trace(moment)) + 1e-10
        values, vectors = np.linalg.eigh(moment)
        roots = np.diag([naive_iterations(value, trace, iterations) for value in values])
        torch.testing.assert_close(one, naive_vector(vectors @ roots @ vectors.T, output).double(), atol=1e-8, rtol=0)


def test_many_iterations_converge_to_the_matrix_root() -> None:
    x = maps(d=4, h=5, w=5)
    root = CovarianceRootPool(4, iterations=20, output="matrix")(x)
    moments = second_moment(x.flatten(2), center=True)
    torch.testing.assert_close(root @ root, moments, atol=1e-10, rtol=0)
    for found, moment in zip(root, moments.numpy(), strict=True):
        values, vectors = np.linalg.eigh(moment)
        expected = torch.from_numpy(vectors @ np.diag(np.sqrt(values)) @ vectors.T)
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


def test_the_example_of_the_facts() -> None:
    """Positions (1, -1) and (3, 1)."""
    x = torch.tensor([[[1.0, 3.0]], [[-1.0, 1.0]]], dtype=torch.float64)[None]
    moment = torch.tensor([[5.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(second_moment(x.flatten(2))[0], moment)
    torch.testing.assert_close(second_moment(x.flatten(2), center=True)[0], torch.ones_like(moment))
    expected = torch.tensor([[2.236070, 1.000005], [1.000005, 1.000005]], dtype=torch.float64)
    torch.testing.assert_close(SecondMomentPool(2, output="matrix")(x)[0], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("center", [False, True])
def test_gradients(kind: type, output: str, center: bool) -> None:
    pool = kind(4, center=center, output=output)
    assert torch.autograd.gradcheck(pool, maps(n=2, d=4, h=2, w=3).requires_grad_())
    assert torch.autograd.gradgradcheck(pool, maps(n=2, d=4, h=2, w=3).requires_grad_())


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("center", [False, True])
def test_dead_channels_and_constant_maps_have_finite_gradients(kind: type, center: bool) -> None:
    x = torch.relu(maps(n=3, d=6, dtype=torch.float32))
    x[:, ::2] = 0
    x[1], x[2] = 0, 2.0
    x.requires_grad_()
    y = kind(6, center=center)(x)
    y.square().sum().backward()
    assert x.grad is not None
    assert torch.isfinite(y).all()
    assert torch.isfinite(x.grad).all()
    assert (y[1] == 0).all()


@pytest.mark.parametrize("kind", POOLS)
def test_weighted_vectors_keep_distances_and_inner_products_of_matrices(kind: type) -> None:
    a, b = kind(5, output="matrix")(maps())[:2]
    v, w = kind(5)(maps())[:2]
    torch.testing.assert_close(v @ w, (a * b).sum())
    torch.testing.assert_close((v - w).square().sum(), (a - b).square().sum())


@pytest.mark.parametrize("kind", POOLS)
def test_the_reduction_is_that_of_bdc_pooling(kind: type) -> None:
    torch.manual_seed(0)
    ours = kind(6, reduce_to=4)
    torch.manual_seed(0)
    theirs = BDCPool(6, reduce_to=4)
    assert [type(layer) for layer in ours.reduction] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
    names = {name for name in theirs.state_dict() if name != "t"}
    assert set(ours.state_dict()) == names
    assert all(torch.equal(ours.state_dict()[name], theirs.state_dict()[name]) for name in names)
    x = maps(d=6, dtype=torch.float32)
    ours.eval()
    theirs.eval()
    torch.testing.assert_close(ours.reduce(x), theirs.reduce(x))
    torch.testing.assert_close(ours(x), kind(4)(theirs.reduce(x)))
    assert ours.out_features == 10


@pytest.mark.parametrize("kind", POOLS)
def test_moments_are_computed_in_float32_also_for_half_precision_maps(kind: type) -> None:
    x = torch.relu(maps(n=2, d=16, h=5, w=5, dtype=torch.float32))
    pool = kind(16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(pool(x), pool(x).float())
        assert pool(x.bfloat16()).dtype == torch.float32
        mixed = pool(x)
    assert torch.equal(mixed, pool(x))
    half = pool(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half, pool(x.bfloat16().float()).bfloat16())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SecondMomentPool(0), "must be positive"),
        (lambda: SecondMomentPool(4, eps=0), "eps must be positive"),
        (lambda: SecondMomentPool(4, output="vector"), "'triangle', 'weighted' or 'matrix'"),  # type: ignore[arg-type]
        (lambda: CovarianceRootPool(4, iterations=0), "iterations must be at least 1"),
        (lambda: CovarianceRootPool(4)(torch.zeros(2, 3, 2, 2)), r"CovarianceRootPool needs .* \(n, 4, h, w\)"),
    ],
)
def test_wrong_arguments_raise_clear_errors(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# Planted data: classes that differ in one property only.


def accuracy(
    pool: nn.Module, images: Callable[[int, int], Tensor], way: int, shot: int = 5, queries: int = 60
) -> float:
    """Right answers in percent of the nearest mean, where ``images(label, n)`` draws n maps of a class."""
    support = torch.cat([images(label, shot) for label in range(way)])
    query = torch.cat([images(label, queries) for label in range(way)])
    with torch.no_grad():
        scores = create_classifier("prototype")(pool(support), torch.arange(way).repeat_interleave(shot), pool(query))
    return 100 * float((scores.argmax(dim=1) == torch.arange(way).repeat_interleave(queries)).double().mean())


def standardised(x: Tensor) -> Tensor:
    """Maps ``(n, d, p)`` with mean 0 and covariance I, exactly, over the positions of each."""
    x = x - x.mean(dim=2, keepdim=True)
    root = torch.linalg.cholesky(second_moment(x))
    whitened: Tensor = torch.linalg.solve_triangular(root, x, upper=False)
    return whitened


def covariance_classes(way: int, d: int, p: int, seed: int = 0) -> Draw:
    """Channels with a covariance of the class, and a mean that is drawn alike for all classes."""
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randn(way, d, d, dtype=torch.float64, generator=generator) / math.sqrt(d)
    factors /= factors.square().sum(dim=2, keepdim=True).sqrt()  # equal variances: only correlations differ

    def images(label: int, n: int) -> Tensor:
        x = factors[label] @ torch.randn(n, d, p, dtype=torch.float64, generator=generator)
        x = x - x.mean(dim=2, keepdim=True) + 0.1 * torch.randn(n, d, 1, dtype=torch.float64, generator=generator)
        return x.unsqueeze(-1)

    return images


def test_classes_that_differ_only_in_their_covariance() -> None:
    images = covariance_classes(way=4, d=8, p=49)
    assert accuracy(AveragePool(8), images, way=4) == pytest.approx(25, abs=10)
    for pool in (SecondMomentPool(8), SecondMomentPool(8, center=True), CovarianceRootPool(8)):
        assert accuracy(pool, images, way=4) > 95


def dependence_classes(d: int, p: int, seed: int = 0) -> Draw:
    """Channels that are uncorrelated, each with the same distribution over positions: independent, or dependent.

    A channel is a normal variable times a scale that depends on the position. In class 0 every channel has its own
    order of the scales, in class 1 all channels have the same one: they are large together, with independent signs.
    Mean and covariance are made equal exactly, in each image; then each is changed by a linear map that is drawn alike
    for both classes, so that moments vary but do not tell the classes apart.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    shared = normal(p).exp()
    own = torch.stack([shared[torch.randperm(p, generator=generator)] for _ in range(d)])

    def images(label: int, n: int) -> Tensor:
        x = standardised((shared if label else own) * normal(n, d, p))
        mixing = torch.eye(d, dtype=torch.float64) + 0.02 * normal(n, d, d)
        return (mixing @ x).unsqueeze(-1)

    return images


def test_classes_that_differ_only_in_a_non_linear_dependence_of_channels() -> None:
    """The BDC matrix of positions tells them apart, if the positions with large channels are the same in all images.

    Second moments cannot, and neither can the BDC matrix of channels: see the next test.
    """
    images = dependence_classes(d=16, p=100)
    for pool in (SecondMomentPool(16), CovarianceRootPool(16), BDCPool(16).double()):
        assert accuracy(pool, images, way=2, queries=200) == pytest.approx(50, abs=8)
    assert accuracy(BDCPool(16, observations="positions").double(), images, way=2, queries=200) > 95


def test_the_bdc_matrix_of_channels_is_a_function_of_their_second_moments() -> None:
    """‖x_k - x_l‖² / p = M_kk + M_ll - 2 M_kl, so images with equal second moments have equal BDC matrices."""
    images = dependence_classes(d=8, p=50)
    x = [standardised(images(label, 1).squeeze(-1)).unsqueeze(-1) for label in (0, 1)]
    assert not torch.allclose(x[0], x[1])
    pool = BDCPool(8).double()
    torch.testing.assert_close(pool(x[0]), pool(x[1]), atol=1e-10, rtol=0)
    other = maps(d=8, h=5, w=5)
    moments = second_moment(other.flatten(2))
    squares = moments.diagonal(dim1=1, dim2=2)
    distances = ((squares[:, :, None] + squares[:, None] - 2 * moments).clamp(min=0) / 2 + 1e-5).sqrt()
    rows = distances.mean(dim=2, keepdim=True)
    expected = distances - rows - rows.transpose(1, 2) + rows.mean(dim=1, keepdim=True)
    torch.testing.assert_close(BDCPool(8, output="matrix").double()(other), expected)
