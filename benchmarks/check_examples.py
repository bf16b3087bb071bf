"""Planted wrong labels: how many of them `deepbdc check` finds, beside cleanlab's confident learning.

    python benchmarks/check_examples.py cifar_fs FOLDER/cub FOLDER/omniglot.npz --root FOLDER --cache FOLDER

A task has 10 classes with 5, 10 or 20 examples each, and every tenth label is replaced by that of another class of the
task, chosen at random. Precision is the share of wrong labels among those that are called wrong; recall is the share of
the wrong labels that are called so. cleanlab (Apache-2.0) gets the probabilities of the same network by scikit-learn's
cross-validation with logistic regression, as its documents advise; it is left out if it is not installed. The same
tasks without wrong labels show the false alarms. A second table adds near copies: the same picture smaller, and as a
JPEG of low quality.
"""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from deepbdc import FewShotClassifier
from deepbdc.own_images.checking import check_examples, check_representations
from deepbdc.own_images.confidence import in_their_span
from embedded import Embedded, arguments, embedded

RESULTS = Path(__file__).parent / "results" / "check_examples.txt"
WAY, SHOTS, WRONG = 10, (5, 10, 20), 0.1
Finder = Callable[[Tensor, NDArray[np.int64]], set[int]]


def ours(representations: Tensor, labels: NDArray[np.int64]) -> set[int]:
    return {found.index for found in check_representations(representations, labels.tolist()).wrong_labels}


def cleanlab(representations: Tensor, labels: NDArray[np.int64]) -> set[int]:
    from cleanlab.filter import find_label_issues
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    # Coordinates in their own span: the same inner products, so the same regression, in a fraction of the time.
    features = torch.nn.functional.normalize(in_their_span(representations), dim=1).numpy()
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    regression = LogisticRegression(C=10, max_iter=1000)
    probabilities = cross_val_predict(regression, features, labels, cv=folds, method="predict_proba")
    return set(np.flatnonzero(find_label_issues(labels, probabilities, n_jobs=1)).tolist())


def finders() -> dict[str, Finder]:
    try:
        import cleanlab as package
    except ImportError:
        return {"deepbdc check": ours}
    return {"deepbdc check": ours, f"cleanlab {package.__version__}": cleanlab}


def wrong_labels(data: Embedded, vectors: Tensor, repeats: int) -> list[str]:
    """Precision, recall and false alarms of each finder, over all tasks."""
    lines = []
    for shot in SHOTS:
        if shot > np.bincount(data.labels).min():
            continue
        counts = {name: np.zeros(4) for name in finders()}  # found and wrong, found, wrong, false alarms without any
        for seed in range(100, 100 + repeats):  # other tasks than those by which the threshold was chosen
            random = np.random.default_rng(seed)
            classes = random.permutation(data.labels.max() + 1)[:WAY]
            chosen = np.concatenate([random.permutation(np.flatnonzero(data.labels == one))[:shot] for one in classes])
            true = np.repeat(np.arange(WAY), shot)
            wrong = random.permutation(len(true))[: round(WRONG * len(true))]
            labels = true.copy()
            labels[wrong] = (true[wrong] + random.integers(1, WAY, len(wrong))) % WAY
            for name, find in finders().items():
                found, alarms = find(vectors[chosen], labels), find(vectors[chosen], true)
                counts[name] += (len(found & set(wrong.tolist())), len(found), len(wrong), len(alarms))
        for name, numbers in counts.items():
            hits, called, planted, none_planted = numbers.tolist()
            precision, recall = hits / max(called, 1.0), hits / planted
            f1 = 2 * precision * recall / max(precision + recall, 1e-9)
            false = none_planted / (repeats * WAY * shot)
            lines.append(
                f"{data.name:10}{shot:6}  {name:16}{100 * precision:10.1f}{100 * recall:9.1f}{100 * f1:8.1f}"
                f"{100 * false:22.1f}"
            )
    return lines


def near_copies(data: Embedded, count: int = 100) -> str:
    """How many near copies are found, and how many other pairs are taken for copies."""
    chosen = np.random.default_rng(0).permutation(len(data.pictures))[:count]
    originals = [Image.open(io.BytesIO(data.pictures[index].thumbnail)).convert("RGB") for index in chosen]
    estimator = FewShotClassifier()
    both = estimator.embed([*originals, *(_copy(image) for image in originals)])
    labels = [*data.labels[chosen].tolist()] * 2
    found = {(pair.first, pair.second) for pair in check_examples(estimator, both, labels).twins}
    planted = {(index, index + count) for index in range(count)}
    pairs = len(both) * (len(both) - 1) // 2 - count
    others = f"{len(found - planted)} of {pairs:,} other pairs taken for copies"
    return f"{data.name:10}{len(found & planted):5} of {count} copies found, {others}"


def _copy(image: Image.Image) -> Image.Image:
    small = image.resize((max(3 * image.width // 4, 1), max(3 * image.height // 4, 1)))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=60)
    return Image.open(content).convert("RGB")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--copies", action="store_true", help="also measure near copies, which are embedded anew")
    given = parser.parse_args()
    lines = [f"{WAY} classes, {100 * WRONG:.0f} % of the labels wrong, {given.repeats} tasks each, in %", ""]
    lines.append(f"{'data':10}{'shots':>6}  {'':16}{'precision':>10}{'recall':>9}{'F1':>8}{'called wrong of none':>22}")
    copies = []
    for name in given.data:
        data = embedded(name, given.root, given.classes, given.pictures, given.cache)
        vectors = FewShotClassifier().represent(data.pictures)
        lines += wrong_labels(data, vectors, given.repeats)
        if given.copies:
            copies.append(near_copies(data))
    text = "\n".join([*lines, *(["", "near copies", *copies] if copies else [])])
    print(text)
    RESULTS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
