"""Optimal transport between two weighted sets, for many problems at once, with gradients.

A problem has a cost C ``(r, c)`` and positive weights a ``(r,)`` and b ``(c,)``, here normalised to sum to 1. Its value
is W = min Σ_ij F_ij C_ij over flows F ≥ 0 with row sums a and column sums b.

No layer for optimisation problems is needed for the gradient. By the envelope theorem it is the solution itself:
∂W/∂C = F, ∂W/∂a = u and ∂W/∂b = v, with the potentials of the dual problem, W = Σ_i a_i u_i + Σ_j b_j v_j. A constant
that moves from u to v changes nothing, because the normalisation of the weights removes it.
"""

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepbdc.errors import Note, UserError

Solver = Literal["exact", "entropic"]

_TOLERANCE = 1e-5
"""The entropic solver stops when the row sums of each flow are wrong by at most this, in sum."""
_MAX_ROUNDS = 500
"""After this many rounds the entropic solver gives up, with a warning."""
_SCALINGS = 10
"""Iterations of the entropic solver in the linear domain after each one in the log domain."""
_PROBLEMS_PER_THREAD = 64
"""The exact solver starts no thread for fewer."""

_Gradients = tuple[Tensor, Tensor, Tensor]


def transport(
    cost: Tensor,
    row_weights: Tensor,
    column_weights: Tensor,
    solver: Solver = "exact",
    regularisation: float = 0.02,
) -> Tensor:
    """The cost of optimal transport: ``(..., r, c), (..., r), (..., c) -> (...)``, computed in float64.

    The result has the dtype of ``cost`` and is differentiable once, with respect to all three. Where the solution of
    the problem or of its dual is not unique, as with equal weights, the exact gradient is one of the subgradients.

    Args:
        cost: C.
        row_weights: a, positive; divided by their sum.
        column_weights: b, positive; divided by their sum.
        solver: ``"exact"``: the network simplex of POT, one problem after the other on the CPU (we know of no exact
            solver for batches). ``"entropic"``: all problems at once, on any device. The value is Σ F C with the flow
            that minimises Σ F C + ε KL(F ‖ a bᵀ), found by Sinkhorn's algorithm. It is never smaller than the exact
            value, and at most ε log(min(r, c)) larger.
        regularisation: ε of the entropic solver.

    >>> transport(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0]))
    tensor(0.2500)
    """
    costs = cost.double().reshape(-1, *cost.shape[-2:])
    a, b = (weights.double().reshape(-1, weights.shape[-1]) for weights in (row_weights, column_weights))
    a, b = (weights / weights.sum(dim=-1, keepdim=True) for weights in (a, b))
    apply: Callable[..., Tensor] = _Exact.apply if checked_solver(solver) == "exact" else _Entropic.apply
    values = apply(costs, a, b, regularisation)
    return values.reshape(cost.shape[:-2]).to(cost.dtype)


def checked_solver(solver: Solver) -> Solver:
    """``solver``, if there is one of that name."""
    if solver not in get_args(Solver):
        raise UserError(f"solver must be one of {', '.join(get_args(Solver))}, got {solver!r}")
    return solver


class _Exact(torch.autograd.Function):
    """The values ``(n,)`` of problems ``(n, r, c), (n, r), (n, c)`` with normalised weights, all in float64; no ε."""

    @staticmethod
    def forward(ctx: Any, cost: Tensor, a: Tensor, b: Tensor, epsilon: float) -> Tensor:
        flow, u, v = _solve_exactly(cost, a, b)
        ctx.save_for_backward(flow, u, v)
        return (flow * cost).sum(dim=(-2, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        return *_scaled(gradients[0], ctx.saved_tensors), None


class _Entropic(torch.autograd.Function):
    """The same with the flows of Sinkhorn's algorithm, for a given ε."""

    @staticmethod
    def forward(ctx: Any, cost: Tensor, a: Tensor, b: Tensor, epsilon: float) -> Tensor:
        flow = _sinkhorn(cost, a, b, epsilon)
        ctx.save_for_backward(flow, cost, a, b)
        ctx.epsilon = epsilon
        return (flow * cost).sum(dim=(-2, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        flow, cost, a, b = ctx.saved_tensors
        return *_scaled(gradients[0], _entropic_gradients(flow, cost, a, b, ctx.epsilon)), None


def _scaled(factors: Tensor, gradients: _Gradients) -> _Gradients:
    of_cost, of_a, of_b = gradients
    return factors[:, None, None] * of_cost, factors[:, None] * of_a, factors[:, None] * of_b


def _solve_exactly(cost: Tensor, a: Tensor, b: Tensor) -> _Gradients:
    """Flows and potentials by POT. It releases Python's lock, so that threads solve several problems at a time."""
    costs, sources, targets = (np.ascontiguousarray(tensor.detach().cpu().numpy()) for tensor in (cost, a, b))
    flows, u, v = (np.full_like(array, np.nan) for array in (costs, sources, targets))

    def solve(first: int, last: int) -> None:
        from ot import emd  # takes seconds to import

        for n in range(first, last):
            # Without the check and the centring that POT does by default, this takes three quarters of the time.
            flows[n], log = emd(sources[n], targets[n], costs[n], log=True, center_dual=False, check_marginals=False)
            u[n], v[n] = log["u"], log["v"]

    if all(np.isfinite(array).all() for array in (costs, sources, targets)):  # else the values are NaN
        count = len(costs)
        threads = max(1, min(torch.get_num_threads(), count // _PROBLEMS_PER_THREAD))
        bounds = np.linspace(0, count, threads + 1).astype(int).tolist()
        if threads == 1:
            solve(*bounds)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(solve, bounds[:-1], bounds[1:]))
    flow, rows, columns = (torch.from_numpy(array).to(cost.device) for array in (flows, u, v))
    return flow, rows, columns


def _sinkhorn(cost: Tensor, a: Tensor, b: Tensor, epsilon: float) -> Tensor:
    """The flows ``(n, r, c)`` of entropic transport. Problems that have converged take no part in further rounds."""
    flows = torch.full_like(cost, torch.nan)
    u, v = torch.zeros_like(a), torch.zeros_like(b)
    left = torch.arange(len(cost), device=cost.device)
    current = max(epsilon, float(cost.max() - cost.min()) if cost.numel() else 0.0)
    for _ in range(_MAX_ROUNDS):
        # One iteration in the log domain, where nothing overflows.
        log_a, log_b = a.log().unsqueeze(-1), b.log().unsqueeze(-2)
        u = -current * torch.logsumexp((v.unsqueeze(-2) - cost) / current + log_b, dim=-1)
        v = -current * torch.logsumexp((u.unsqueeze(-1) - cost) / current + log_a, dim=-2)
        flow = torch.exp((u.unsqueeze(-1) + v.unsqueeze(-2) - cost) / current + log_a + log_b)
        if current > epsilon:  # it starts large and is halved each time, which saves rounds
            current = max(epsilon, current / 2)
            continue
        flows[left] = flow
        running = (flow.sum(dim=-1) - a).abs().sum(dim=-1) > _TOLERANCE
        if not bool(running.any()):
            return flows
        left, cost, a, b, u, v, flow = (tensor[running] for tensor in (left, cost, a, b, u, v, flow))
        # Some in the linear domain, which take a fraction of the time.
        row_factors, column_factors = _scalings(flow, a, b)
        u, v = u + current * row_factors.log(), v + current * column_factors.log()
    warnings.warn(
        f"{len(left)} of {len(flows)} transport problems did not converge: use a larger regularisation, or the exact "
        "solver",
        Note,
        stacklevel=2,
    )
    return flows


def _scalings(flow: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of rows and columns ``(n, r), (n, c)`` with which the sums of a flow are nearer to a and b."""
    smallest = torch.finfo(flow.dtype).tiny ** 0.5
    columns = torch.ones_like(b).unsqueeze(-1)
    for _ in range(_SCALINGS):
        rows = a.unsqueeze(-1) / (flow @ columns).clamp(min=smallest)
        columns = b.unsqueeze(-1) / (flow.transpose(-2, -1) @ rows).clamp(min=smallest)
    return rows.squeeze(-1), columns.squeeze(-1)


def _entropic_gradients(flow: Tensor, cost: Tensor, a: Tensor, b: Tensor, epsilon: float) -> _Gradients:
    """The gradient of W = Σ F C with respect to C, a and b, from the optimality conditions of F.

    Let x_i + y_j be the least-squares fit to C_ij with the weights F_ij: a x + F y = (F∘C) 1 and Fᵀx + b y = (F∘C)ᵀ 1.
    Then ∂W/∂C = F∘(1 - (C - x - y)/ε), ∂W/∂a = x and ∂W/∂b = y.
    """
    moved = flow * cost
    share = flow / a.unsqueeze(-1)  # F_ij / a_i
    right = moved.sum(dim=-2) - (share.transpose(-2, -1) @ moved.sum(dim=-1, keepdim=True)).squeeze(-1)
    # x eliminated. The last two terms choose one of the solutions, which differ by constants where the flow connects
    # all rows and columns, and by more where it hardly does.
    matrix = torch.diag_embed(b) - share.transpose(-2, -1) @ flow
    matrix = matrix + b.unsqueeze(-1) * b.unsqueeze(-2) + 1e-12 * torch.diag_embed(b)
    y = torch.linalg.solve(matrix, right)
    x = moved.sum(dim=-1) / a - (share @ y.unsqueeze(-1)).squeeze(-1)
    return flow * (1 - (cost - x.unsqueeze(-1) - y.unsqueeze(-2)) / epsilon), x, y
