"""`FewShotClassifier` on real images: BDC against average pooling, calibration, and the rejection of unknown classes.

    python benchmarks/own_images.py --data FOLDER [--episodes 2000] [--quick]

FOLDER holds cifar_fs_valtest.npz and omniglot.npz. Episodes are drawn from the test classes. The mean vector that some
rows subtract is the mean of 500 images of validation classes, without their labels. All rows of a table use the same
episodes, and differences are paired. Needs the packages of '.[test]'. The report is printed and, without --quick,
written to benchmarks/results/own_images.txt.
"""

import argparse
import platform
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepbdc import FewShotClassifier, load_dataset
from deepbdc._fingerprint import weights_fingerprint
from deepbdc.classifiers import Classifier, create_classifier
from deepbdc.data.dataset import ArrayDataset, Dataset
from deepbdc.embedding import Embedding
from deepbdc.episodes import Episodes, sample_episodes
from deepbdc.estimator import EmbeddedImage
from deepbdc.evaluation import EvaluationResult, evaluate
from deepbdc.feature_bank import FeatureBank, build_bank
from deepbdc.methods import Method
from deepbdc.own_images.networks import find_embedding
from deepbdc.own_images.reading import map_fingerprint
from measure import verdict

RESULTS = Path(__file__).parent / "results" / "own_images.txt"
SHOTS = (1, 5)
UNLABELLED = 500
MOST_ERROR = 0.1
C = 10.0


def smaller(dataset: Dataset, per_class: int) -> Dataset:
    """The first ``per_class`` images of each class."""
    assert isinstance(dataset, ArrayDataset)
    labels = dataset.labels.numpy()
    chosen = np.concatenate([np.flatnonzero(labels == label)[:per_class] for label in range(len(dataset.class_names))])
    return ArrayDataset(dataset.images[chosen], labels[chosen], dataset.class_names, dataset.name, dataset.split)


def splits(data: Path, quick: bool) -> Iterator[tuple[str, Dataset, Dataset]]:
    """The name, the test split and the validation split of each data set."""
    for name, source in (("CIFAR-FS", "cifar_fs"), ("Omniglot", str(data / "omniglot.npz"))):
        test, val = (load_dataset(source, split, root=data) for split in ("test", "val"))
        if quick:
            test = smaller(test, 20)
        yield name, test, val


class Centred(Classifier):
    """The classifier of `FewShotClassifier`, applied after the mean vector is subtracted."""

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.logistic = create_classifier("logistic", C=C)

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        return self.logistic.score(support - self.mean, support_labels, query - self.mean, way)  # type: ignore[operator]


@torch.no_grad()
def represented(embedding: Embedding, maps: FeatureBank) -> FeatureBank:
    """A feature bank of representations, computed from a bank of feature maps."""
    features = torch.cat([embedding.represent(part) for part in maps.features.split(256)])
    weights = weights_fingerprint(embedding)
    return replace(
        maps, features=features, kept="representations, float32", embedding=embedding, weights_fingerprint=weights
    )


@torch.no_grad()
def unlabelled_mean(embedding: Embedding, dataset: Dataset) -> Tensor:
    """The mean representation of some images, whose labels are not used."""
    assert isinstance(dataset, ArrayDataset)
    chosen = np.random.default_rng(0).permutation(len(dataset))[:UNLABELLED]
    images = ArrayDataset(
        dataset.images[chosen], np.zeros(len(chosen), dtype=np.int64), ["unlabelled"], "unlabelled", "val"
    )
    return build_bank(embedding, images).rows(np.arange(len(chosen))).mean(dim=0)


def pooling(name: str, maps: FeatureBank, test: Dataset, val: Dataset, episodes: int) -> list[str]:
    """Compare BDC with average pooling, with and without subtracting the mean vector."""
    lines = [
        f"{name}, {len(test.class_names)} test classes, 5-way, {episodes} episodes, logistic regression, C = {C:g}"
    ]
    lines += [f"  {'':28}{'1-shot':>16}{'5-shot':>16}     BDC minus average, paired"]
    drawn = {shot: sample_episodes(test, 5, shot, 15, episodes, 0) for shot in SHOTS}
    results: dict[tuple[str, bool], dict[int, EvaluationResult]] = {}
    for pool in ("average", "bdc"):
        embedding = find_embedding("efficientnet_lite0", pool, None, "cpu")
        bank = represented(embedding, maps)
        for subtract in (False, True):
            mean = unlabelled_mean(embedding, val) if subtract else None
            method = Method(embedding, create_classifier("logistic", C=C) if mean is None else Centred(mean))
            results[pool, subtract] = {shot: evaluate(method, test, episodes=drawn[shot], bank=bank) for shot in SHOTS}
        del bank
    for subtract in (False, True):
        for pool in ("average", "bdc"):
            own = results[pool, subtract]
            row = f"  {pool + (' minus mean vector' if subtract else ''):28}" + "".join(
                f"{own[shot]!s:>16}" for shot in SHOTS
            )
            if pool == "bdc":
                paired = [own[shot].compare(results["average", subtract][shot]) for shot in SHOTS]
                row += "     " + " / ".join(f"{one.difference:+.2f} ± {one.ci95:.2f}" for one in paired)
            lines.append(row)
    return lines


def as_embedded(maps: FeatureBank) -> list[EmbeddedImage]:
    """The images of a bank of feature maps, in the form that `FewShotClassifier` accepts."""
    network = map_fingerprint(find_embedding("efficientnet_lite0", None, None, "cpu"))
    return [EmbeddedImage(str(index), row, str(index).encode(), network) for index, row in enumerate(maps.features)]


def honesty(name: str, maps: FeatureBank, test: Dataset, count: int) -> list[str]:
    """Measure the calibration of `FewShotClassifier`, and how well it rejects images of other classes."""
    images = as_embedded(maps)
    lines = [
        f"{name}: probabilities and 'none of these' of FewShotClassifier, {count} tasks each",
        f"  {'':16}{'accuracy':>9}{'mean prob.':>11}{'ECE':>7}            known kept   others rejected",
    ]
    for way, shot in ((2, 1), (5, 1), (10, 1), (17, 1), (2, 5), (5, 5), (10, 5), (17, 5)):
        episodes = sample_episodes(test, way + 3, shot, 5, count, 1)
        lines.append(f"  {way:>2}-way {shot}-shot  " + honesty_row(images, episodes, way))
    return lines


def honesty_row(images: list[EmbeddedImage], episodes: Episodes, way: int) -> str:
    """One kind of task. The last three classes of each episode have queries, but no examples: all must be rejected."""
    # Imported after deepbdc, because it imports torchvision.
    from torchmetrics.functional.classification import multiclass_calibration_error

    probabilities, true, sureness, known = [], [], [], []
    for episode in episodes:
        taught = episode.support_labels < way
        classifier = FewShotClassifier().fit(
            [images[index] for index in episode.support[taught]], episode.support_labels[taught]
        )
        answers = list(classifier.classify([images[index] for index in episode.query]))
        asked = episode.query_labels < way
        probabilities += [answer.probabilities for answer, one in zip(answers, asked, strict=True) if one]
        true += episode.query_labels[asked].tolist()
        sureness += [not answer.rejected for answer in answers]
        known += asked.tolist()
    found, labels = torch.tensor(np.array(probabilities)), torch.tensor(true)
    error = float(multiclass_calibration_error(found, labels, num_classes=way, n_bins=15, norm="l1"))
    right = float((found.argmax(dim=1) == labels).float().mean())
    kept, asked_known = np.array(sureness), np.array(known)
    return (
        f"{100 * right:>7.1f} %{100 * float(found.max(dim=1).values.mean()):>9.1f} %{error:>8.3f} "
        f"({verdict(error <= MOST_ERROR)})"
        f"{100 * kept[asked_known].mean():>8.1f} %{100 * (~kept[~asked_known]).mean():>14.1f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--tasks", type=int, default=200, help="tasks for calibration and rejection")
    parser.add_argument("--quick", action="store_true", help="few images and episodes; write no report file")
    given = parser.parse_args()
    episodes, tasks = (50, 10) if given.quick else (given.episodes, given.tasks)
    lines = [f"python benchmarks/own_images.py --data FOLDER --episodes {episodes} --tasks {tasks}"]
    lines += [f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"]
    print("\n".join(lines), flush=True)
    for name, test, val in splits(given.data, given.quick):
        embedding = find_embedding("efficientnet_lite0", None, None, "cpu")
        # The budget fits the 7×7 maps, but not the longer BDC vectors, so that the bank keeps the maps.
        maps = build_bank(embedding, test, budget=4 * 320 * 49 * len(test), progress=sys.stderr.isatty())
        assert maps.kept == "reduced maps, float32", maps.kept
        for part in (pooling(name, maps, test, val, episodes), honesty(name, maps, test, tasks)):
            print("\n" + "\n".join(part), flush=True)
            lines += ["", *part]
    if not given.quick:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
