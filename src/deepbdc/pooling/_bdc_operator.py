"""BDC matrices of a batch of samples, computed fast: the arithmetic of `deepbdc.BDCPool`.

`bdc_pool_formula` is the definition, in ordinary differentiable operations. `bdc_pool` computes the same values in
blocks of samples whose matrices fit into the processor's cache, and has its own backward pass. It is a registered
operator, so that ``torch.compile`` calls it as it is instead of tracing its code.

Notation: x is ``(n, m, p)``, n samples of m observations of a p-vector; c = exp(t) / (2p); S_kl = ‖x_k - x_l‖², which
the matrix product x xᵀ gives; D = sqrt(c S + eps); r_k is the mean of row k of D, and g the mean of r;
A_kl = D_kl - r_k - r_l + g.

Backward pass: double centring is self-adjoint. So the gradient with respect to D, called G here, is the symmetrised and
double-centred gradient with respect to A. The gradient with respect to x_k is 2c Σ_l Q_kl (x_k - x_l), where Q_kl is
G_kl / D_kl: one more matrix product with x. Apart from eps, D depends on exp(t/2) x only, so the gradient with respect
to t is half the inner product of x and its gradient. The forward pass does not save D: the backward pass recovers it
from the output and r.

Autocast is off in all of this: distances are small differences of large numbers, and need the precision of x.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, cast

import torch
from torch import Tensor

from deepbdc._modes import full_precision
from deepbdc.statistic import bdc_vector, double_center

Output = Literal["triangle", "weighted", "matrix"]

# Matrix entries in a block of samples: on a CPU as many as its cache holds, elsewhere enough to keep the device busy.
_BLOCK_ENTRIES = {"cpu": 2**19}
_BLOCK_ENTRIES_ELSEWHERE = 2**24


def bdc_pool_formula(x: Tensor, t: Tensor, output: Output, eps: float) -> Tensor:
    """The definition of `bdc_pool` in ordinary operations. Export and second derivatives use it."""
    with full_precision(x):
        products = x @ x.transpose(1, 2)
        squares = products.diagonal(dim1=1, dim2=2)
        squared_distances = squares[:, :, None] + squares[:, None, :] - 2 * products
        matrix = double_center((_scale(x, t) * squared_distances.clamp(min=0) + eps).sqrt())
        return matrix if output == "matrix" else bdc_vector(matrix, output)


def bdc_pool(x: Tensor, t: Tensor, output: Output, eps: float) -> Tensor:
    """BDC representations of n samples: ``(n, m, p) -> (n, m(m+1)/2)``, or ``(n, m, m)`` for ``output="matrix"``."""
    return cast(Tensor, torch.ops.deepbdc.bdc_pool(x, t, output, eps)[0])


# The operators are defined by hand, because torch.library.custom_op imports the whole compiler when it is first called.
torch.library.define("deepbdc::bdc_pool", "(Tensor x, Tensor t, str output, float eps) -> (Tensor, Tensor)")
torch.library.define(
    "deepbdc::bdc_pool_backward",
    "(Tensor gradient, Tensor result, Tensor row_means, Tensor x, Tensor t, str output, float eps) -> (Tensor, Tensor)",
)


@torch.library.impl("deepbdc::bdc_pool", "CompositeExplicitAutograd")
def _forward(x: Tensor, t: Tensor, output: str, eps: float) -> tuple[Tensor, Tensor]:
    """The representations, and the row means r of the distances ``(n, m)``."""
    n, m, _ = x.shape
    scale = _plain(_scale(x, t))
    result = x.new_empty(_output_shape(n, m, output))
    row_means = x.new_empty(n, m)
    work = _Workspace(x, matrices=1)
    with full_precision(x):
        for rows in work.blocks():
            distances, means = work.matrices(0, rows), row_means[rows]
            torch.bmm(x[rows], x[rows].transpose(1, 2), out=distances)
            diagonal = distances.diagonal(dim1=1, dim2=2)
            squares = diagonal * scale
            work.add_outer_sum(distances, squares, squares + eps, old=-2 * scale)
            distances.clamp_(min=eps).sqrt_()
            diagonal.fill_(math.sqrt(eps))
            torch.mean(distances, dim=2, out=means)
            work.add_outer_sum(distances, -means, -_centred(means))
            _write_output(distances, output, result[rows])
    return result, row_means


@torch.library.register_fake("deepbdc::bdc_pool")
def _(x: Tensor, t: Tensor, output: str, eps: float) -> tuple[Tensor, Tensor]:
    n, m, _ = x.shape
    return x.new_empty(_output_shape(n, m, output)), x.new_empty(n, m)


@torch.library.impl("deepbdc::bdc_pool_backward", "CompositeExplicitAutograd")
def _backward(
    gradient: Tensor, result: Tensor, row_means: Tensor, x: Tensor, t: Tensor, output: str, eps: float
) -> tuple[Tensor, Tensor]:
    """The gradients with respect to x and t, from the gradient with respect to the representations."""
    x_gradient, t_gradient = x.new_empty(x.shape), torch.zeros_like(t)
    factor = -_plain(_scale(x, t))
    work = _Workspace(x, matrices=2)
    with full_precision(x):
        for rows in work.blocks():
            quotients = _symmetric_gradient(gradient[rows], output, work.matrices(0, rows))
            means = quotients.mean(dim=2) * -factor
            work.add_outer_sum(quotients, means, _centred(means), old=factor)
            distances = _read_output(result[rows], output, work.matrices(1, rows))
            work.add_outer_sum(distances, row_means[rows], _centred(row_means[rows]))
            quotients.div_(distances.clamp_(min=math.sqrt(eps)))
            diagonal = quotients.diagonal(dim1=1, dim2=2)
            diagonal.zero_()  # x_k - x_k is 0, but Q_kk = G_kk / sqrt(eps) is large and would leave rounding errors
            diagonal.sub_(quotients.sum(dim=2))
            torch.bmm(quotients, x[rows], out=x_gradient[rows])
            t_gradient += _inner_product(x[rows], x_gradient[rows]) / 2
    return x_gradient, t_gradient


@torch.library.register_fake("deepbdc::bdc_pool_backward")
def _(
    gradient: Tensor, result: Tensor, row_means: Tensor, x: Tensor, t: Tensor, output: str, eps: float
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), torch.empty_like(t)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, t, ctx.output, ctx.eps = inputs
    ctx.save_for_backward(x, t, *output)


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    x, t, result, row_means = ctx.saved_tensors
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        # The gradient will be differentiated again: autograd computes it from the formula, so that it can be.
        wanted = [tensor for tensor in (x, t) if tensor.requires_grad]
        with full_precision(x):
            value = bdc_pool_formula(x, t, ctx.output, ctx.eps)
            found = iter(torch.autograd.grad(value, wanted, gradient, create_graph=True))
        return next(found) if x.requires_grad else None, next(found) if t.requires_grad else None, None, None
    x_gradient, t_gradient = torch.ops.deepbdc.bdc_pool_backward(gradient, result, row_means, x, t, ctx.output, ctx.eps)
    return x_gradient, t_gradient, None, None


torch.library.register_autograd("deepbdc::bdc_pool", _differentiate, setup_context=_setup_context)


class _Workspace:
    """Buffers for one block of samples, reused for every block.

    They hold ``matrices`` m×m matrices per sample of the block, in total at most about one per sample of the batch.
    """

    def __init__(self, x: Tensor, matrices: int) -> None:
        n, m, _ = x.shape
        entries = _BLOCK_ENTRIES.get(x.device.type, _BLOCK_ENTRIES_ELSEWHERE)
        self.samples = n
        # The second bound keeps all buffers together, including the thin matrices below, smaller than n m×m matrices.
        most = max(1, min(math.ceil(entries / m**2), n * (m - 2) // (matrices * (m + 6))))
        # As few blocks as possible, all of nearly the same size.
        self.size = max(1, math.ceil(n / max(1, math.ceil(n / most))))
        self._matrices = x.new_empty(matrices, self.size, m, m)
        self._left = x.new_ones(self.size, m, 2)
        self._right = x.new_ones(self.size, 2, m)

    def blocks(self) -> Iterator[slice]:
        """Which samples belong to each block."""
        for start in range(0, self.samples, self.size):
            yield slice(start, min(start + self.size, self.samples))

    def matrices(self, which: int, rows: slice) -> Tensor:
        """The buffer number ``which``, ``(block, m, m)``, with unspecified content."""
        return self._matrices[which, : rows.stop - rows.start]

    def add_outer_sum(self, matrices: Tensor, u: Tensor, v: Tensor, old: float | Tensor = 1.0) -> None:
        """Replace each matrix M by old · M_kl + u_k + v_l, in place, for u and v ``(b, m)``.

        If matrix products have full precision, a product of two thin matrices does this in one pass over the memory.
        """
        if isinstance(old, float) and _products_are_exact():
            left, right = self._left[: len(u)], self._right[: len(u)]
            left[:, :, 0] = u
            right[:, 1] = v
            matrices.baddbmm_(left, right, beta=old)
        else:
            matrices.mul_(old).add_(u[:, :, None]).add_(v[:, None, :])


def _products_are_exact() -> bool:
    """Whether torch is set to compute float32 matrix products in full precision."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # the precision was set for a single backend, with torch's newer settings
        return False


def _scale(x: Tensor, t: Tensor) -> Tensor:
    """The factor c of the squared distances."""
    return t.exp() / (2 * x.shape[2])


def _plain(number: Tensor) -> float | Tensor:
    """A Python number on a CPU. Elsewhere it stays a tensor, because reading its value would wait for the device."""
    return number.item() if number.device.type == "cpu" else number


def _inner_product(a: Tensor, b: Tensor) -> Tensor:
    """Σ a b, without a temporary tensor for the products."""
    return torch.dot(a.reshape(-1), b.reshape(-1))


def _centred(means: Tensor) -> Tensor:
    """The row means minus their mean, r - g, for r ``(b, m)``."""
    return means - means.mean(dim=1, keepdim=True)


def _output_shape(n: int, m: int, output: str) -> tuple[int, ...]:
    return (n, m, m) if output == "matrix" else (n, m * (m + 1) // 2)


def _write_output(matrices: Tensor, output: str, out: Tensor) -> None:
    """Write the matrices A into ``out``, in the form that ``output`` names. This overwrites ``matrices``."""
    if output == "matrix":
        out.copy_(matrices)
        return
    if output == "weighted":
        matrices.mul_(math.sqrt(2)).diagonal(dim1=1, dim2=2).div_(math.sqrt(2))
    b, m, _ = matrices.shape
    index = _triangle_of_matrix(m, matrices.device)
    torch.gather(matrices.view(b, -1), 1, index.expand(b, -1), out=out)


def _read_output(values: Tensor, output: str, out: Tensor) -> Tensor:
    """The inverse of `_write_output`: write the matrices A into ``out``, and return it."""
    if output == "matrix":
        return out.copy_(values)
    _spread(values, out)
    if output == "weighted":
        out.div_(math.sqrt(2)).diagonal(dim1=1, dim2=2).mul_(math.sqrt(2))
    return out


def _symmetric_gradient(gradient: Tensor, output: str, out: Tensor) -> Tensor:
    """Twice the symmetrised gradient with respect to A, from the gradient with respect to the output."""
    if output == "matrix":
        return torch.add(gradient, gradient.transpose(1, 2), out=out)
    _spread(gradient, out)
    diagonal = out.diagonal(dim1=1, dim2=2)
    if output == "weighted":
        out.mul_(math.sqrt(2))
        diagonal.mul_(math.sqrt(2))
    else:
        diagonal.mul_(2)
    return out


def _spread(vectors: Tensor, out: Tensor) -> None:
    """Expand triangles ``(b, m(m+1)/2)`` to symmetric matrices ``(b, m, m)``, written into ``out``."""
    b, m, _ = out.shape
    index = _matrix_of_triangle(m, vectors.device)
    torch.gather(vectors, 1, index.expand(b, -1), out=out.view(b, -1))


@lru_cache(maxsize=8)
def _triangle_of_matrix(m: int, device: torch.device) -> Tensor:
    """The index in the flattened matrix of each entry of the triangle."""
    with torch.inference_mode(False):
        return torch.ones(m, m, dtype=torch.bool, device=device).triu().flatten().nonzero().flatten()


@lru_cache(maxsize=8)
def _matrix_of_triangle(m: int, device: torch.device) -> Tensor:
    """The index in the triangle of each entry of the flattened matrix."""
    with torch.inference_mode(False):
        rows, columns = torch.triu_indices(m, m, device=device)
        index = torch.empty(m, m, dtype=torch.long, device=device)
        index[rows, columns] = index[columns, rows] = torch.arange(len(rows), device=device)
        return index.flatten()
