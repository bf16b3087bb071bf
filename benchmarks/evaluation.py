"""A whole evaluation, compared with one that embeds the images of every episode again; then the classifiers alone.

    python benchmarks/evaluation.py [--quick]

Both sides run in one process. The ratios carry over to other machines, the seconds do not. The time of our evaluation
is the median of three runs after a warm-up, because a first evaluation is slower. The other side takes much longer and
runs once. The report is printed and, without --quick, written to benchmarks/results/evaluation.txt.
"""

import argparse
import platform
import time
from pathlib import Path

import numpy as np
import torch

import classifiers
from deepbdc import BDCPool, Embedding, create_backbone
from deepbdc.classifiers import create_classifier
from deepbdc.data.dataset import ArrayDataset
from deepbdc.data.transforms import BatchTestTransform
from deepbdc.episodes import Episodes, sample_episodes
from deepbdc.evaluation import evaluate
from deepbdc.methods import Method
from deepbdc.preprocessing import Preprocessing
from measure import medians, peak_bytes, verdict

RESULTS = Path(__file__).parent / "results" / "evaluation.txt"
TARGET = 20.0


def made_dataset(classes: int, images: int) -> ArrayDataset:
    """Images of 32×32 pixels: each class is one random image, with different noise added for each of its images."""
    generator = np.random.default_rng(0)
    means = generator.uniform(0, 255, (classes, 1, 8, 8, 3)).repeat(4, axis=2).repeat(4, axis=3)
    pixels = np.clip(means + generator.normal(0, 150, (classes, images, 32, 32, 3)), 0, 255).astype(np.uint8)
    names = [f"class {label:02}" for label in range(classes)]
    labels = np.repeat(np.arange(classes), images)
    return ArrayDataset(pixels.reshape(-1, 32, 32, 3), labels, names, "made", "test")


@torch.inference_mode()
def embed_for_every_episode(method: Method, dataset: ArrayDataset, episodes: Episodes) -> list[float]:
    """Accuracies computed as in the released code, which embeds the images of each episode anew."""
    transform = BatchTestTransform(method.embedding.preprocessing)
    accuracies = []
    for episode in episodes:
        images = transform(dataset.images[np.concatenate([episode.support, episode.query])])
        support, query = method.embed(images).split([len(episode.support), len(episode.query)])
        scores = method.classify(support, torch.from_numpy(episode.support_labels), query)
        accuracies.append(100 * float((scores.argmax(dim=1).numpy() == episode.query_labels).mean()))
    return accuracies


def whole_evaluation(count: int) -> list[str]:
    """Time ``count`` episodes over 3,000 images with a small backbone."""
    torch.manual_seed(0)
    dataset = made_dataset(classes=20, images=150)
    backbone = create_backbone("conv4", width=0.5)
    embedding = Embedding(backbone, BDCPool(backbone.out_channels), Preprocessing(input_size=32, resize=32)).eval()
    method = Method(embedding, create_classifier("prototype"))
    episodes = sample_episodes(dataset, count=count)
    result = evaluate(method, dataset, episodes=episodes)
    ours = medians({"ours": lambda: evaluate(method, dataset, episodes=episodes)}, repeats=3)["ours"] / 1e3
    start = time.perf_counter()  # a single run is long enough to be timed
    accuracies = embed_for_every_episode(method, dataset, episodes)
    theirs = time.perf_counter() - start
    equal = sum(a == b for a, b in zip(result.accuracies.tolist(), accuracies, strict=True))
    memory = peak_bytes(lambda: evaluate(method, dataset, episodes=sample_episodes(dataset, count=100)))
    ratio = theirs / ours
    return [
        f"whole evaluation: {count} episodes (5-way 1-shot, 15 queries) over {len(dataset)} images, thin Conv4, d=32",
        f"  each image embedded once {ours:8.2f} s   for every episode {theirs:8.2f} s   {ratio:5.1f}x faster "
        f"(target {TARGET:g}x: {verdict(ratio >= TARGET)})",
        f"  accuracies equal in {equal} of {count} episodes (target all: {verdict(equal == count)}), mean {result}",
        f"  peak memory {memory / 2**20:.0f} MB",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few episodes and repeats; write no report file")
    quick = parser.parse_args().quick
    lines = [
        "Evaluation, float32: both sides in one run",
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}",
        "",
        *whole_evaluation(100 if quick else 2000),
    ]
    print("\n".join(lines), flush=True)
    for line in classifiers.report(quick):
        print(line, flush=True)
        lines.append(line)
    if not quick:
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
