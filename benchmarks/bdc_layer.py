"""Time and memory of the BDC layer, compared with a literal implementation of the paper's Eq. 6 and the Gram product.

    python benchmarks/bdc_layer.py [--quick] [--compile]

All variants run alternately in one process, and the report compares their medians. The ratios carry over to other
machines, the milliseconds do not. The report is printed and, without --quick, written to
benchmarks/results/bdc_layer.txt.
"""

import argparse
import math
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from deepbdc import BDCPool
from deepbdc.pooling._bdc_operator import bdc_pool_formula
from measure import medians, peak_bytes, verdict

RESULTS = Path(__file__).parent / "results" / "bdc_layer.txt"


@dataclass(frozen=True)
class Case:
    """The size of a batch, n maps of d channels and hw positions, and the targets.

    ``forward_target`` and ``training_target`` are the least speed-up over Eq. 6, ``gram_target`` is the longest time of
    the forward pass, in multiples of the time of the Gram product.
    """

    n: int
    d: int
    hw: int
    forward_target: float
    training_target: float
    gram_target: float = math.inf


CASES = (
    Case(80, 640, 100, forward_target=15, training_target=15, gram_target=2.2),
    Case(80, 256, 100, forward_target=7, training_target=7),
    Case(64, 128, 100, forward_target=3.5, training_target=4),
    Case(64, 128, 196, forward_target=3.5, training_target=4),
    Case(75, 64, 100, forward_target=1, training_target=1),
)
INFERENCE_MEMORY_TARGET = 8 * 2**20


def equation_6(x: Tensor, t: Tensor) -> Tensor:
    """Eq. 6 taken literally, ``(n, d, hw) -> (n, d(d+1)/2)``: six dense products with the all-ones matrix.

    Like the released code, it creates the constant matrices for every image in every call.
    """
    n, d, hw = x.shape
    ones, identity = torch.ones(n, d, d), torch.eye(d).repeat(n, 1, 1)
    gram = x @ x.transpose(1, 2)
    squared = ones @ (gram * identity) + (gram * identity) @ ones - 2 * gram
    distances = torch.sqrt(torch.exp(t) / (2 * hw) * squared.clamp(min=0) + 1e-5)
    matrix = distances - (distances @ ones + ones @ distances) / d + ones @ distances @ ones / d**2
    rows, columns = torch.triu_indices(d, d)
    return matrix.view(n, -1)[:, rows * d + columns]


def training_step(layer: Callable[[Tensor, Tensor], Tensor], x: Tensor, t: Tensor, gradient: Tensor) -> object:
    """The forward and the backward pass."""
    y = layer(x, t)
    return y, torch.autograd.grad(y, (x, t), gradient)


def report(case: Case, repeats: int, with_compile: bool) -> list[str]:
    """Measure one case, and return the lines of its report."""
    n, d, hw = case.n, case.d, case.hw
    maps = torch.relu(torch.randn(n, d, 1, hw))
    pool = BDCPool(d).eval()
    layers: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "Eq. 6": equation_6,
        "layer": lambda x, t: pool(x.unsqueeze(2)),
    }
    if with_compile:
        layers["compiled"] = torch.compile(lambda x, t: bdc_pool_formula(x, t, "triangle", 1e-5))
    x, gradient = maps.squeeze(2), torch.randn(n, pool.out_features)

    def forward(layer: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], object]:
        return torch.no_grad()(lambda: layer(x, pool.t))

    def training(layer: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], object]:
        leaf = x.clone().requires_grad_()
        return lambda: training_step(layer, leaf, pool.t, gradient)

    gram = {"Gram": torch.no_grad()(lambda: x @ x.transpose(1, 2))}
    forward_ms = medians(gram | {name: forward(layer) for name, layer in layers.items()}, repeats)
    training_ms = medians({name: training(layer) for name, layer in layers.items()}, repeats)

    output_bytes, input_bytes = gradient.nbytes, x.nbytes
    inference = peak_bytes(forward(layers["layer"])) - output_bytes
    trained = peak_bytes(training(layers["layer"])) - output_bytes - input_bytes
    matrix_per_image = 4 * d * d * n
    over_gram = forward_ms["layer"] / forward_ms["Gram"]

    def line(what: str, ms: dict[str, float], target: float) -> str:
        ratio = ms["Eq. 6"] / ms["layer"]
        compiled = f"  compiled formula {ms['compiled']:8.2f} ms" if "compiled" in ms else ""
        return (
            f"  {what:17} {ms['layer']:8.2f} ms  Eq. 6 {ms['Eq. 6']:8.1f} ms  "
            f"{ratio:6.1f}x faster  (target {target:g}x: {verdict(ratio >= target)}){compiled}"
        )

    over_target = f" (target {case.gram_target:g}x: {verdict(over_gram <= case.gram_target)})"
    return [
        f"n={n} d={d} hw={hw}",
        line("forward", forward_ms, case.forward_target),
        line("forward+backward", training_ms, case.training_target),
        f"  Gram alone        {forward_ms['Gram']:8.2f} ms  the forward pass takes {over_gram:.2f}x of that"
        + (over_target if math.isfinite(case.gram_target) else ""),
        f"  extra memory      inference {inference / 2**20:.1f} MB "
        f"(target 8 MB: {verdict(inference <= INFERENCE_MEMORY_TARGET)}), training {trained / 2**20:.1f} MB "
        f"(target one d×d matrix per image, {matrix_per_image / 2**20:.1f} MB: "
        f"{verdict(trained <= matrix_per_image)}); "
        f"index tables kept between calls {(8 * d * d + 4 * d * (d + 1)) / 2**20:.1f} MB",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure only once; write no report file")
    parser.add_argument("--compile", action="store_true", help="also torch.compile the formula (needs a C++ compiler)")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    lines = [
        "BDC layer, float32: medians of interleaved runs",
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}",
        "extra memory: the peak, without the input, the output and their gradients",
    ]
    print("\n".join(lines))
    for case in CASES:
        repeats = 1 if arguments.quick else 7 if case.d > 256 else 51
        new = ["", *report(case, repeats, arguments.compile)]
        print("\n".join(new), flush=True)
        lines += new
    if not arguments.quick:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
