"""How far the entropic solver of optimal transport is from the exact one, on tasks of DeepEMD.

    python benchmarks/transport.py | tee benchmarks/results/transport.txt

The tasks are 5-way 1-shot with 15 queries per class and maps of 25 positions with 640 channels, as of ResNet-12 at
84 px: 75 × 5 problems each. Features are random. Each position has one of 25 parts, in another order in every image;
its vector is the sum of one for the class, one for the part, one for the part in this class, and noise, through a leaky
ReLU. No time is measured.
"""

import argparse
import warnings

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from deepbdc.classifiers.transport import TransportClassifier

WAY, QUERY, CHANNELS, SIDE, SCALE = 5, 15, 640, 5, 12.5
NOISE = 5.0
REGULARISATIONS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005)


def random_tasks(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Support ``(count, 5, ...)``, its labels, and queries ``(count, 75, ...)`` of random classes."""
    positions = SIDE * SIDE
    of_class = torch.randn(count, WAY, 1, CHANNELS, 1)
    parts = torch.randn(count, 1, 1, CHANNELS, positions) + torch.randn(count, WAY, 1, CHANNELS, positions)

    def images(each: int) -> Tensor:
        order = torch.rand(count, WAY, each, 1, positions).argsort(dim=-1).expand(-1, -1, -1, CHANNELS, -1)
        placed = parts.expand(-1, -1, each, -1, -1).gather(-1, order)
        maps = leaky_relu(0.2 * of_class + placed + NOISE * torch.randn_like(placed), 0.1)
        return maps.reshape(count, WAY * each, CHANNELS, SIDE, SIDE)

    return images(1), torch.arange(WAY).expand(count, -1), images(QUERY)


def row(regularisation: float, tasks: tuple[Tensor, Tensor, Tensor], exact: Tensor) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        scores = scores_of(TransportClassifier(SCALE, solver="entropic", regularisation=regularisation), tasks)
    error = scores - exact
    relative = error - error.mean(dim=-1, keepdim=True)
    same = (scores.argmax(dim=-1) == exact.argmax(dim=-1)).double().mean()
    converged = "no" if any("converge" in str(warning.message) for warning in caught) else "yes"
    return (
        f"{regularisation:>8g}{error.abs().mean():>14.4f}{error.abs().max():>10.4f}"
        f"{relative.abs().mean():>14.4f}{relative.abs().max():>10.4f}{100 * same:>15.1f} %{converged:>12}"
    )


def scores_of(classifier: TransportClassifier, tasks: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    scores: Tensor = classifier(*tasks)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=8)
    count = parser.parse_args().tasks
    torch.manual_seed(0)
    tasks = random_tasks(count)
    with torch.no_grad():
        exact = scores_of(TransportClassifier(SCALE), tasks)
        right = (exact.argmax(dim=-1) == torch.arange(WAY).repeat_interleave(QUERY)).double().mean()
        spread = (exact - exact.mean(dim=-1, keepdim=True)).abs().mean()
        print(f"{count} tasks, {exact.numel()} problems of {SIDE * SIDE} × {SIDE * SIDE} positions")
        print(f"exact scores: mean {exact.mean():.3f}, mean distance from the mean of a query {spread:.3f}, ", end="")
        print(f"{100 * right:.1f} % right")
        print()
        print("Differences of scores between the entropic solver and the exact one (scores have the factor 12.5):")
        print(
            f"{'ε':>8}{'mean':>14}{'largest':>10}{'of a query*':>14}{'largest':>10}{'same class':>17}{'converged':>12}"
        )
        for regularisation in REGULARISATIONS:
            print(row(regularisation, tasks, exact), flush=True)
        print("* without what all classes of a query have in common, which the softmax does not see")


if __name__ == "__main__":
    main()
