"""BDC of the tokens of a vision transformer: shapes and speed, and accuracy on the built-in network.

    python benchmarks/tokens.py            write benchmarks/results/tokens.txt
    python benchmarks/tokens.py --quick    measure once; write nothing

Shapes and speed are those of timm's ViT-Tiny with random weights, which need no download and take the same time. They
say nothing about accuracy. For that, this script takes the built-in EfficientNet-Lite2: the positions of its map, given
as tokens, have the same BDC vector as the map (checked here on drawn pictures), and `benchmarks/own_images.py` measured
the accuracy of that vector.
"""

import argparse
import platform
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import deepbdc
from deepbdc.app.example import draw_example
from measure import medians

RESULTS = Path(__file__).parent / "results" / "tokens.txt"
ACCURACY = Path(__file__).parent / "results" / "own_images.txt"
TRANSFORMER = "vit_tiny_patch16_224"
NETWORK = "efficientnet_lite2"


def speed(repeats: int, images: int = 16) -> list[str]:
    """Shapes, and milliseconds for a batch: the transformer alone, and what each pooling of its tokens adds."""
    import timm

    transformer = timm.create_model(TRANSFORMER).eval()
    batch = torch.rand(images, 3, 224, 224)
    pools = {f"BDC, reduced to {d}": deepbdc.BDCPool(192, reduce_to=d).eval() for d in (64, 128)}
    pools["BDC, all 192 channels"] = deepbdc.BDCPool(192).eval()
    with torch.no_grad():
        tokens = transformer.forward_features(batch)[:, transformer.num_prefix_tokens :]
        sides: dict[str, Callable[[], Tensor]] = {
            "transformer": lambda: transformer.forward_features(batch),
            "average of the tokens": lambda: tokens.mean(dim=1),
        }
        sides |= {name: partial(pool, tokens) for name, pool in pools.items()}
        times = medians({name: torch.no_grad()(run) for name, run in sides.items()}, repeats)
        lines = [f"{TRANSFORMER}, random weights, {images} images of 224×224: tokens {tuple(tokens.shape)}"]
        for name, run in sides.items():
            share = 100 * times[name] / times["transformer"]
            lines.append(f"  {name:24} {times[name]:9.2f} ms {share:7.2f} % of the transformer  {tuple(run().shape)}")
    return lines


def same_vectors() -> list[str]:
    """The largest difference between BDC of a map of the built-in network and BDC of its positions as tokens."""
    network = deepbdc.create_backbone(NETWORK, pretrained=True).eval()
    pictures = [one.image.convert("RGB").resize((256, 256)) for one in draw_example()]
    images = torch.stack([torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255 for picture in pictures])
    with torch.no_grad():
        maps = network(images)
        tokens = maps.flatten(2).transpose(1, 2)
        pool = deepbdc.BDCPool(maps.shape[1]).eval()
        difference = (pool(maps) - pool(tokens)).abs().max()
    return [
        f"{NETWORK}: maps {tuple(maps.shape)} of {len(pictures)} drawn pictures, as tokens {tuple(tokens.shape)}",
        f"  largest difference between their BDC vectors: {float(difference):.1e}",
    ]


def gains(text: str, network: str = NETWORK) -> list[tuple[str, float]]:
    """BDC minus the average of the same map, 5-way, by data set and shots: from the output of own_images.py."""
    part = text[text.index(f"\n  {network} ") :].splitlines()
    columns = re.findall(r"(\S+ \d+/\d+)", part[1])
    rows = {line.split()[0]: [float(value) for value in re.findall(r"([+-]\d+\.\d+) ±", line)] for line in part[3:5]}
    both = zip(columns, rows["bdc"], rows["average"], strict=True)
    return [(column, bdc - average) for column, bdc, average in both if " 5/" in column]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure once; write no report file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    lines = [
        "python benchmarks/tokens.py",
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "",
        *speed(1 if arguments.quick else 15),
        "",
        *same_vectors(),
        "  accuracy, BDC minus the average of the same positions, in points (from results/own_images.txt):",
        *(f"    {column:14} {gain:+.1f}" for column, gain in gains(ACCURACY.read_text(encoding="utf-8"))),
    ]
    print("\n".join(lines))
    if not arguments.quick:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
