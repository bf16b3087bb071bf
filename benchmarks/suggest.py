"""`deepbdc suggest` against random choice: the accuracy by the number of labels.

    python benchmarks/suggest.py cifar_fs FOLDER/cub FOLDER/cars --root FOLDER --cache FOLDER

A task has 20 classes, which begin with one example each. In each round, ten pictures of the rest are chosen and get
their true labels, by `deepbdc suggest` or at random; then the classifier is fitted again. The accuracy is that on
pictures that were never to choose from. The row "needs" has the number of labels at which the suggestions first reach
the accuracy that random choice has with the labels of the column, by linear interpolation.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepbdc import FewShotClassifier
from deepbdc.classifiers import create_classifier
from deepbdc.own_images.confidence import in_their_span, usual_scale
from deepbdc.own_images.suggesting import choose
from embedded import Embedded, arguments, embedded

RESULTS = Path(__file__).parent / "results" / "suggest.txt"
ROUNDS, STEP, TESTED = 10, 10, 15


def probabilities(support: Tensor, labels: Tensor, query: Tensor, way: int) -> Tensor:
    """Those of `FewShotClassifier`: logistic regression, with the usual scale of its confidence."""
    scores = create_classifier("logistic", C=10.0, equal_classes=True)(support, labels, query)
    return torch.softmax(usual_scale(support, labels, way) * scores, dim=1)


def curve(vectors: Tensor, labels: NDArray[np.int64], seed: int, suggests: bool) -> list[float]:
    """The accuracy in % after each round."""
    random = np.random.default_rng(seed)
    way = int(labels.max()) + 1
    order = [random.permutation(np.flatnonzero(labels == label)) for label in range(way)]
    tested = np.concatenate([indices[:TESTED] for indices in order])
    known = [int(indices[TESTED]) for indices in order]
    pool = np.concatenate([indices[TESTED + 1 :] for indices in order]).tolist()
    accuracies = []
    for last in (*[False] * ROUNDS, True):
        targets = torch.from_numpy(labels[known])
        found = probabilities(vectors[known], targets, vectors[np.concatenate([tested, pool])], way)
        right = found[: len(tested)].argmax(dim=1).numpy() == labels[tested]
        accuracies.append(100 * float(right.mean()))
        if last:
            return accuracies
        if suggests:
            first, second = found[len(tested) :].topk(2, dim=1).values.T
            places = [place for place, _ in choose(vectors[pool], vectors[known], 1 - (first - second), STEP)]
        else:
            places = random.permutation(len(pool))[:STEP].tolist()
        known += [pool[place] for place in places]
        pool = [index for place, index in enumerate(pool) if place not in set(places)]
    raise AssertionError("the last round returns")


def reached(accuracies: NDArray[np.float64], wanted: float, counts: NDArray[np.int64]) -> str:
    """At how many labels a curve first has the wanted accuracy."""
    above = np.flatnonzero(accuracies >= wanted)
    if not len(above):
        return f">{counts[-1]}"
    place = int(above[0])
    if place == 0:
        return str(counts[0])
    low, high = accuracies[place - 1], accuracies[place]
    return f"{counts[place - 1] + (wanted - low) / (high - low) * (counts[place] - counts[place - 1]):.0f}"


def report(data: Embedded, repeats: int) -> list[str]:
    vectors = in_their_span(FewShotClassifier().represent(data.pictures)).float()
    counts = data.labels.max() + 1 + STEP * np.arange(ROUNDS + 1)
    means = {}
    for name, suggests in (("random", False), ("suggest", True)):
        means[name] = np.mean([curve(vectors, data.labels, seed, suggests) for seed in range(repeats)], axis=0)
    lines = [f"{data.name:10}{name:9}" + "".join(f"{value:7.1f}" for value in mean) for name, mean in means.items()]
    needed = [reached(means["suggest"], float(wanted), counts) for wanted in means["random"]]
    lines.append(f"{'':10}{'needs':9}" + "".join(f"{number:>7}" for number in needed))
    return lines


def main() -> None:
    given = arguments(__doc__).parse_args()
    counts = given.classes + STEP * np.arange(ROUNDS + 1)
    lines = [f"accuracy in % by number of labels, {given.classes} classes, mean of {given.repeats} tasks", ""]
    lines.append(f"{'data':10}{'choice':9}" + "".join(f"{count:7}" for count in counts))
    for name in given.data:
        lines += report(embedded(name, given.root, given.classes, given.pictures, given.cache), given.repeats)
        print("\n".join(lines[-3:]), flush=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
