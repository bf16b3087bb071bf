"""`FewShotClassifier` on real pictures: representations, networks, centring, probabilities and "none of these".

    python benchmarks/own_images.py --cub FOLDER --cars FOLDER --data FOLDER --maps FOLDER [--tasks 300]

The folders of CUB and Cars hold ``test/CLASS/PICTURE``; --data holds cifar_fs_valtest.npz and omniglot.npz. Everything
was chosen on the validation classes (--split val repeats that); the report is on the test classes. Feature maps are
computed once and kept in the folder --maps. The baseline is what people would take otherwise: the features that the
network itself classifies, with logistic regression. Differences are paired. The report is printed and written to
benchmarks/results/own_images.txt (for the test classes).
"""

import argparse
import platform
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepbdc.classifiers import create_classifier
from deepbdc.own_images.centring import LEAST_BALANCE, effective_classes
from deepbdc.own_images.confidence import Confidence, class_directions, in_their_span, learn_confidence
from deepbdc.own_images.familiarity import likeness, simulated_similarities
from deepbdc.own_images.parts import Parts
from measure import verdict
from own_maps import OUTSIDE, REPRESENTATIONS, C, Pictures, Tasks, draw, products_of, scores, unit, without_mean

RESULTS = Path(__file__).parent / "results" / "own_images.txt"
NETWORKS = ("efficientnet_lite0", "efficientnet_lite2")
PHOTOS = ("CUB", "Cars", "CIFAR-FS")
WAYS = {"CUB": (5, 10, 20), "Cars": (5, 10, 20), "CIFAR-FS": (5, 10, 15)}
ROWS = {
    **{kind: (kind, False, False) for kind in REPRESENTATIONS},
    "own, parts of examples": ("own", True, False),
    "both, parts of examples": ("both", True, False),
    "both, parts of all": ("both", True, True),
}
"""The representation, and whether the network also looks at parts of the examples, and of the queries."""
RATES = (0.05, 0.1, 0.2)
DEFAULT = "both, parts of examples"
OTHERS = 5
"""Classes of each task that have no examples."""


def accuracies(found: Tensor, labels: Tensor) -> Tensor:
    """The accuracy in each task, in percent."""
    return 100 * (found.argmax(dim=-1) == labels).double().mean(dim=1)


def interval(values: Tensor) -> float:
    return float(1.96 * values.std() / len(values) ** 0.5)


def representations(
    pictures: dict[str, Pictures], network: str, tasks: int, base: dict[tuple[str, int, int], Tensor]
) -> Iterator[str]:
    """Accuracy of each representation, minus that of the own features of the first network, which ``base`` keeps."""
    cells = [(name, way, shot) for name in pictures for way in (5, 15) for shot in (1, 5)]
    yield f"Accuracy in %, logistic regression, C = {C:g}; minus the first row, paired; {tasks} tasks (15-way: fewer)"
    yield f"  {network:26}" + "".join(f"{f'{name} {way}/{shot}':>14}" for name, way, shot in cells)
    for title, (kind, of_examples, of_queries) in ROWS.items():
        row = f"  {title:26}"
        for name, way, shot in cells:
            given = pictures[name]
            drawn = draw(given.labels, way, shot, tasks if way == 5 else tasks // 4)
            drawn = drawn.with_parts(given.views) if of_examples else drawn
            views = [drawn, *(drawn.seen_as(view) for view in given.views)] if of_queries else [drawn]
            found = sum(scores(one.of(given.products[kind]), drawn.support_labels, way) for one in views)
            assert isinstance(found, Tensor)
            right = accuracies(found, drawn.query_labels)
            first = (name, way, shot) not in base
            shown = right if first else right - base[name, way, shot]
            base.setdefault((name, way, shot), right)
            row += f"{float(shown.mean()):>{9 if first else '+9'}.2f} ±{interval(shown):.1f}"
        yield row


def centring(pictures: dict[str, Pictures], network: str, tasks: int) -> Iterator[str]:
    """What subtracting the mean of the pictures to classify changes, in folders of several kinds."""
    yield f"Subtracting the mean of the pictures to classify, {network}, {DEFAULT}; change of the accuracy in points"
    yield "  (always / by the rule of 'deepbdc classify --centre auto', which looks at the answers first)"
    yield f"  {'the folder shows':34}" + "".join(
        f"{name:>9} {way:>2}/1" + 10 * " " for name in PHOTOS for way in (5, 15)
    )
    folders = {
        "all classes": (1.0, 0),
        "all classes, and others": (1.0, 2),
        "half of the classes": (0.5, 0),
        "one class": (0, 0),
    }
    for title, (share, others) in folders.items():
        row = f"  {title:34}"
        for name in PHOTOS:
            for way in (5, 15):
                drawn = draw(pictures[name].labels, way, 1, tasks if way == 5 else tasks // 4, others)
                drawn = drawn.with_parts(pictures[name].views)
                always, ruled = _centred(drawn, pictures[name].products["both"], max(int(share * way), 1))
                row += f"{always:>+8.2f} / {ruled:>+6.2f}     "
        yield row


def _centred(drawn: Tasks, products: Tensor, classes: int) -> tuple[float, float]:
    """Changes of the accuracy if the folder shows only the first ``classes`` classes of a task, and the others."""
    own, shown = drawn.of(products), drawn.support.shape[1]
    asked = classes * 15
    pictured = torch.zeros(own.shape[1], dtype=own.dtype)
    pictured[shown : shown + asked] = 1
    pictured[shown + drawn.query.shape[1] :] = 1
    before = scores(own, drawn.support_labels, drawn.way)
    after = scores(unit(without_mean(own, pictured / pictured.sum())), drawn.support_labels, drawn.way)
    guesses = before.argmax(dim=-1)[:, pictured[shown:].bool()]
    allowed = torch.tensor([effective_classes(row.tolist()) >= LEAST_BALANCE * drawn.way for row in guesses])
    right = [accuracies(found[:, :asked], drawn.query_labels[:asked]) for found in (before, after)]
    change = right[1] - right[0]
    return float(change.mean()), float(torch.where(allowed, change, 0).mean())


def coordinates(products: Tensor) -> Tensor:
    """Vectors ``(n, n)`` with these inner products ``(n, n)``."""
    values, vectors = torch.linalg.eigh(products)
    found: Tensor = vectors * values.clamp(min=0).sqrt()
    return found


def answers(drawn: Tasks, given: Pictures, *more: Tensor) -> Iterator[tuple[Tensor, Tensor, Confidence, Tensor]]:
    """For each task: probabilities and likenesses of all queries, the confidence, and coordinates of the examples."""
    logistic = create_classifier("logistic", C=C)
    labels, shown = drawn.support_labels, drawn.support.shape[1]
    parts = torch.cat([drawn.support[:, :0], *(drawn.support + view for view in given.views)], dim=1)
    for whole in drawn.of(given.products["both"], *more, parts):
        vectors = coordinates(whole)
        examples, queries = vectors[:shown], vectors[shown : len(vectors) - parts.shape[1]]
        seen = Parts(vectors[len(vectors) - parts.shape[1] :], torch.arange(shown).repeat(len(given.views)))
        confidence = learn_confidence(logistic, examples, labels, drawn.way, seen)
        found = logistic(*seen.beside(examples, labels), queries)
        probabilities = torch.softmax(confidence.scale * found, dim=1)
        yield (
            probabilities,
            likeness(queries, class_directions(examples, labels, drawn.way), probabilities),
            confidence,
            examples,
        )


def rejection(pictures: dict[str, Pictures], network: str, tasks: int) -> Iterator[str]:
    """Share of known pictures kept at each promised rate, others rejected, AUROC, and calibration of probabilities."""
    yield (
        f"'None of these', {network}, {DEFAULT}, {tasks} tasks; near: {OTHERS} other classes of the set; "
        "far: other sets"
    )
    yield (
        f"  {'':12}{'accuracy':>9}{'ECE':>7}   known kept at"
        + "".join(f"{rate:>6}" for rate in RATES)
        + f"{'':7}   near rejected at"
        + "".join(f"{rate:>6}" for rate in RATES)
        + "   far at 0.05   AUROC near     far   before: kept, near, far"
    )
    for name in PHOTOS:
        given = pictures[name]
        far = torch.from_numpy(np.flatnonzero(given.labels == OUTSIDE)).expand(tasks, -1)
        classes = len(np.unique(given.labels[given.labels != OUTSIDE]))
        for way, shot in ((5, 1), (5, 2), *((way, 5) for way in WAYS[name] if way + OTHERS <= classes)):
            drawn = draw(given.labels, way, shot, tasks, OTHERS, query=10)
            yield f"  {name:9}{way:>2}/{shot}" + _rejection_row(drawn, given, far)


def _rejection_row(drawn: Tasks, given: Pictures, far: Tensor) -> str:
    known, near = drawn.query.shape[1], drawn.others.shape[1]
    kept: list[list[float]] = []
    found, right, sure, areas, earlier = [], [], [], [], []
    for probabilities, likenesses, confidence, examples in answers(drawn, given, far):
        familiar = confidence.familiarity.of(likenesses)
        parts = familiar[:known], familiar[known : known + near], familiar[known + near :]
        kept.append([(parts[0] >= rate).mean() for rate in RATES])
        found.append([*((parts[1] < rate).mean() for rate in RATES), (parts[2] < RATES[0]).mean()])
        areas.append([auroc(parts[0], part) for part in parts[1:]])
        right += (probabilities[:known].argmax(dim=1) == drawn.query_labels).tolist()
        sure += probabilities[:known].amax(dim=1).tolist()
        earlier.append(_before(examples, drawn, likenesses - 0.1 * probabilities.amax(dim=1), known, near))
    share, lost = np.mean(kept, axis=0), np.mean(found, axis=0)
    promised = all(abs(one - (1 - rate)) <= 0.05 for one, rate in zip(share, RATES, strict=True))
    text = f"{100 * np.mean(right):>7.1f} %{calibration_error(np.array(sure), np.array(right)):>7.3f}"
    text += " " * 16 + "".join(f"{100 * one:>6.1f}" for one in share) + f" {verdict(promised):>6}"
    text += " " * 20 + "".join(f"{100 * one:>6.1f}" for one in lost[:3]) + f"{100 * lost[3]:>14.1f}"
    text += "".join(f"{one:>11.3f}" for one in np.mean(areas, axis=0))
    return text + "   " + "".join(f"{100 * one:>8.1f}" for one in np.mean(earlier, axis=0))


def _before(examples: Tensor, drawn: Tasks, similarities: Tensor, known: int, near: int) -> list[float]:
    """Shares of known pictures kept, and of near and far ones rejected, with the threshold that was used before.

    It lay as many standard deviations below the mean similarity of held-out examples as above that of examples whose
    class was held out; with single examples, half of one above the latter.
    """
    inside, outside = simulated_similarities(in_their_span(examples), drawn.support_labels, drawn.way)
    high = inside[~inside.isnan()]
    low, spread = float(outside.mean()), float(outside.std(correction=0))
    if len(high):
        threshold = low + (float(high.mean()) - low) * spread / (spread + float(high.std(correction=0)))
    else:
        threshold = low + 0.5 * spread
    kept = (similarities >= threshold).double()
    return [
        float(kept[:known].mean()),
        1 - float(kept[known : known + near].mean()),
        1 - float(kept[known + near :].mean()),
    ]


def auroc(high: np.ndarray, low: np.ndarray) -> float:
    """The share of pairs in which the first is higher; ties count half."""
    return float((high[:, None] > low).mean() + (high[:, None] == low).mean() / 2)


def calibration_error(sure: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    """The expected calibration error: how far probability and accuracy are apart in bins of equal width."""
    places = np.minimum((sure * bins).astype(int), bins - 1)
    members = [places == place for place in range(bins)]
    return float(sum(abs(sure[one].sum() - right[one].sum()) for one in members if one.any()) / len(sure))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--cub", "--cars", "--data", "--maps"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--split", choices=("test", "val"), default="test")
    given = parser.parse_args()
    sources = (
        ("CUB", given.cub),
        ("Cars", given.cars),
        ("CIFAR-FS", given.data),
        ("Omniglot", given.data / "omniglot.npz"),
    )
    names = [*PHOTOS, *(["Omniglot"] if given.split == "test" else [])]
    lines = [
        f"python benchmarks/own_images.py --cub FOLDER --cars FOLDER --data FOLDER --maps FOLDER --tasks {given.tasks}"
    ]
    lines += [
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}; {given.split} classes",
        "",
    ]
    print("\n".join(lines), flush=True)

    def add(part: Iterator[str]) -> None:
        for line in chain(part, [""]):
            print(line, flush=True)
            lines.append(line)

    base: dict[tuple[str, int, int], Tensor] = {}
    for network in given.networks:
        pictures = {}
        for name in names:
            far = [other for other in PHOTOS if other != name] if name in PHOTOS else []
            pictures[name] = products_of(network, name, far, given.split, dict(sources), given.maps)
        add(representations(pictures, network, given.tasks, base))
        add(rejection(pictures, network, max(given.tasks // 4, 5)))
        add(centring(pictures, network, given.tasks))
    if given.split == "test":
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
