"""Checks a person's examples: labels that are probably wrong, pictures that occur twice, outliers, classes too alike.

Everything comes from the representations of the examples; no picture goes through the network again.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize, one_hot, softmax

from deepbdc.classifiers import create_classifier
from deepbdc.own_images.confidence import in_their_span, usual_scale
from deepbdc.own_images.pictures import EmbeddedImage

if TYPE_CHECKING:
    from deepbdc.estimator import FewShotClassifier

FEW = 3
"""With fewer examples than this, a class cannot be checked well, nor learnt well."""
SURE = 0.85
"""A label is called wrong if another class has more than this probability among the two of them."""
DOUBTFUL = 0.8
"""Above this probability, an example no longer teaches its label in the second round."""
NEAR = 0.99
"""Two pictures whose representations have this cosine similarity are probably the same picture."""
NEAR_IF_PIXELS_AGREE, PIXELS_AGREE = 0.82, 0.98
"""They are also the same picture, smaller, compressed, brighter or mirrored, if their representations have the first
similarity and their pixels, at 16 × 16, have the second correlation. Both are needed: drawings of one kind agree in
their pixels without being copies."""
_SIDE = 16
OUTLIER = 4.0
"""An outlier is less similar to its class than usual by this many (robust) standard deviations."""
ALIKE = 0.3
"""Two classes are too alike if this share of their examples is taken for the other one."""
C = 10.0


@dataclass(frozen=True)
class WrongLabel:
    """An example that is probably of another class than its label says."""

    index: int
    label: Any
    suggestion: Any
    """The class that it probably is of."""
    sureness: float
    """The probability of the suggested class against that of the label, each learnt from the other examples."""


@dataclass(frozen=True)
class Twins:
    """Two examples that are the same picture, or nearly so."""

    first: int
    second: int
    identical: bool
    similarity: float
    same_label: bool = True
    """If not, one of the two labels is wrong."""


@dataclass(frozen=True)
class Outlier:
    """An example that is unlike its own class, and like no other."""

    index: int
    label: Any
    similarity: float
    """The cosine similarity to the rest of its class."""
    usual: float
    """The median similarity of all examples to the rest of their class."""


@dataclass(frozen=True)
class AlikeClasses:
    """Two classes whose examples are often taken for each other."""

    first: Any
    second: Any
    confused: int
    """How many of their examples are taken for the other class."""
    examples: int
    """How many examples the two classes have."""


@dataclass(frozen=True)
class FewExamples:
    """A class with very few examples."""

    label: Any
    examples: int


@dataclass(frozen=True)
class ExampleReport:
    """What a check of examples found. Each list begins with what is most likely, or most serious."""

    classes: tuple[Any, ...]
    wrong_labels: tuple[WrongLabel, ...]
    twins: tuple[Twins, ...]
    outliers: tuple[Outlier, ...]
    alike: tuple[AlikeClasses, ...]
    few: tuple[FewExamples, ...]

    @property
    def findings(self) -> int:
        """How many things were found."""
        return sum(map(len, (self.wrong_labels, self.twins, self.outliers, self.alike, self.few)))


def check_examples(
    estimator: "FewShotClassifier", examples: Sequence[EmbeddedImage], labels: Sequence[Any]
) -> ExampleReport:
    """Check labelled pictures that ``estimator.embed`` has embedded.

    Args:
        estimator: A `FewShotClassifier`, fitted or not. Its network makes the representations.
        examples: The pictures.
        labels: The class of each.
    """
    return check_representations(estimator.represent(examples), labels, [example.thumbnail for example in examples])


@torch.no_grad()
def check_representations(
    representations: Tensor, labels: Sequence[Any], contents: Sequence[bytes] = ()
) -> ExampleReport:
    """Check labelled representations ``(n, features)``; ``contents`` are the thumbnails, by which copies are found."""
    classes, numbers = np.unique(np.array(labels), return_inverse=True)
    names, targets = classes.tolist(), torch.from_numpy(numbers).to(representations.device)
    cosines = normalize(representations, dim=1) @ normalize(representations, dim=1).T
    twins = [
        replace(pair, same_label=bool(numbers[pair.first] == numbers[pair.second]))
        for pair in _twins(cosines, contents)
    ]
    probabilities = left_out_probabilities(representations, targets, len(names), first_twins(twins, len(numbers)))
    wrong, guesses = _wrong_labels(probabilities, targets.cpu())
    wrong_labels = tuple(
        WrongLabel(index, names[numbers[index]], names[guesses[index]], sureness) for index, sureness in wrong
    )
    doubtful = {one.index for one in wrong_labels}
    return ExampleReport(
        classes=tuple(names),
        wrong_labels=wrong_labels,
        twins=tuple(twins),
        outliers=tuple(_outliers(cosines, targets, names, doubtful)),
        alike=tuple(_alike(guesses, targets.cpu().numpy(), names)),
        few=tuple(
            FewExamples(names[place], int(number)) for place, number in enumerate(np.bincount(numbers)) if number < FEW
        ),
    )


def first_twins(twins: Sequence[Twins], count: int) -> Tensor:
    """For each of ``count`` examples, the first one that is the same picture ``(count,)``."""
    first = torch.arange(count)
    for pair in sorted(twins, key=lambda pair: (pair.first, pair.second)):
        first[pair.second] = torch.minimum(first[pair.second], first[pair.first])
    return first


def left_out_probabilities(
    representations: Tensor, targets: Tensor, way: int, pictures: Tensor, rounds: int = 2
) -> Tensor:
    """Probabilities ``(n, way)`` of each example, learnt from the others.

    In the second round, examples that the first one calls wrong with certainty no longer teach their wrong label.

    Args:
        representations: ``(n, features)``.
        targets: Their classes ``(n,)``.
        way: The number of classes.
        pictures: A number for each example ``(n,)``. Those with the same one are copies, which are left out together: a
            copy would vouch for a wrong label.
        rounds: How often to learn.
    """
    if way == 1:
        return torch.ones(len(targets), 1, dtype=torch.float64)
    examples = in_their_span(representations)
    scale = usual_scale(examples, targets, way)
    teaches = torch.ones(len(targets), dtype=torch.bool)
    for _ in range(rounds):
        scores = _left_out_scores(examples, targets, way, teaches, pictures)
        probabilities = softmax(scale * scores, dim=1).cpu()
        teaches = _against(probabilities, targets.cpu())[0] <= DOUBTFUL
    return probabilities


def _against(probabilities: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The probability of the best other class against that of the label ``(n,)``, and which class that is ``(n,)``."""
    own = probabilities.gather(1, targets.unsqueeze(1))[:, 0]
    best, other = probabilities.scatter(1, targets.unsqueeze(1), -1.0).max(dim=1)
    return best / (best + own), other


def _left_out_scores(
    examples: Tensor, targets: Tensor, way: int, teaches: Tensor, pictures: Tensor, folds: int = 10
) -> Tensor:
    """Scores ``(n, way)`` of logistic regression. Each fold is scored by what is learnt from the others that teach."""
    members = one_hot(targets, way)
    ranks = ((members.cumsum(dim=0) * members).sum(dim=1) - 1)[pictures]  # copies are in the same fold
    folds = min(folds, max(int(members.sum(dim=0).max()), 2))
    scores = examples.new_zeros(len(targets), way)
    classifier = create_classifier("logistic", C=C, equal_classes=True)
    for fold in range(folds):
        out = ranks % folds == fold
        if not out.any():
            continue
        learnt = ~out & teaches
        known = torch.unique(targets[learnt])
        if len(known) < 2:
            continue
        column = torch.full((way,), -1, dtype=torch.long).index_fill(0, known, 0)
        column[known] = torch.arange(len(known))
        found = classifier(examples[learnt], column[targets[learnt]], examples[out])
        # A class without any other example cannot be recognised: it gets the lowest score.
        rows = found.min(dim=1, keepdim=True).values.expand(-1, way).clone()
        rows[:, known] = found
        scores[out] = rows
    return scores


def _wrong_labels(probabilities: Tensor, targets: Tensor) -> tuple[list[tuple[int, float]], NDArray[np.int64]]:
    """The indices of wrong labels with their sureness, the surest first; and the most probable class of each example.

    Examples of a class that has no other example are never called wrong, because nothing speaks for their label.
    """
    sureness, guess = _against(probabilities, targets)
    counts = torch.bincount(targets, minlength=probabilities.shape[1])
    found = [
        (index, float(sureness[index]))
        for index in range(len(targets))
        if sureness[index] > SURE and counts[targets[index]] > 1 and probabilities.shape[1] > 1
    ]
    guesses = torch.where(sureness > 0.5, guess, targets).numpy()
    return sorted(found, key=lambda pair: -pair[1]), guesses


def _twins(cosines: Tensor, contents: Sequence[bytes]) -> list[Twins]:
    """Pairs of pictures that are identical or nearly so, the most similar first."""
    near = cosines >= NEAR
    if contents:
        agree = _pixel_correlations(contents).to(cosines.device) >= PIXELS_AGREE
        near |= agree & (cosines >= NEAR_IF_PIXELS_AGREE)
    first, second = torch.nonzero(torch.triu(near, diagonal=1), as_tuple=True)
    found = []
    for one, other in zip(first.tolist(), second.tolist(), strict=True):
        identical = bool(contents) and contents[one] == contents[other]
        # Cosines of identical pictures round differently on different processors: their order would, too.
        found.append(Twins(one, other, identical, 1.0 if identical else float(cosines[one, other])))
    return sorted(found, key=lambda pair: (not pair.identical, -pair.similarity))


def _pixel_correlations(contents: Sequence[bytes]) -> Tensor:
    """How the pixels of small pictures correlate ``(n, n)``; with the other picture mirrored, if that is more."""
    grey = torch.stack([_grey(content) for content in contents])
    straight, mirrored = grey.flatten(1), grey.flip(2).flatten(1)
    return torch.maximum(straight @ straight.T, straight @ mirrored.T)


def _grey(content: bytes) -> Tensor:
    """A picture file as grey values ``(16, 16)`` of mean 0 and length 1; zeros if it is of one colour or unreadable."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            small = image.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    except (OSError, SyntaxError, ValueError):
        return torch.zeros(_SIDE, _SIDE)
    values = torch.from_numpy(np.array(small, dtype=np.float32))
    return normalize((values - values.mean()).flatten(), dim=0).view(_SIDE, _SIDE)


def _outliers(cosines: Tensor, targets: Tensor, names: Sequence[Any], skipped: set[int]) -> list[Outlier]:
    """Examples whose similarity to the rest of their class is far below what is usual."""
    members = one_hot(targets, len(names)).to(cosines.dtype)
    counts = members.sum(dim=0)[targets]
    similarity = ((cosines @ members).gather(1, targets.unsqueeze(1))[:, 0] - 1) / (counts - 1).clamp(min=1)
    known = counts >= FEW
    if int(known.sum()) < 2 * FEW:
        return []
    usual = similarity[known].median()
    spread = 1.4826 * (similarity[known] - usual).abs().median().clamp(min=1e-3)
    far = known & (similarity < usual - OUTLIER * spread)
    found = [
        Outlier(index, names[int(targets[index])], float(similarity[index]), float(usual))
        for index in torch.nonzero(far).flatten().tolist()
        if index not in skipped
    ]
    return sorted(found, key=lambda outlier: outlier.similarity)


def _alike(guesses: NDArray[np.int64], targets: NDArray[np.int64], names: Sequence[Any]) -> list[AlikeClasses]:
    """Pairs of classes whose examples are often taken for each other, in both directions or in one."""
    found = []
    for one, other in combinations(range(len(names)), 2):
        pair = np.isin(targets, (one, other))
        mixed = int(np.sum(pair & np.isin(guesses, (one, other)) & (guesses != targets)))
        both = min(np.sum((targets == one) & (guesses == other)), np.sum((targets == other) & (guesses == one)))
        if mixed >= ALIKE * pair.sum() and mixed >= 2 and both >= 1:
            found.append(AlikeClasses(names[one], names[other], mixed, int(pair.sum())))
    return sorted(found, key=lambda classes: -classes.confused / classes.examples)
