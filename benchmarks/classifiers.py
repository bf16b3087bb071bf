"""Episodes per second of the few-shot classifiers, compared with the usual code that handles one episode at a time.

`evaluation.py` runs this. The features are random. Both sides run alternately in one process, and the report compares
their medians.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import sklearn
import torch
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from deepbdc.classifiers import LogisticClassifier, logistic, prototype
from deepbdc.classifiers._products import class_weights, linear_scores, support_products
from deepbdc.classifiers._tasks import sorted_tasks
from deepbdc.classifiers.sgd_head import Form, SGDHeadClassifier
from measure import medians, peak_bytes, verdict

WAY, SHOT, QUERY, C = 5, 5, 15, 2.0
LOGISTIC_TARGET, GROWTH_TARGET, PROTOTYPE_TARGET, SGD_TARGET = 20, 3, 10, 20


def random_episodes(count: int, dimensions: int, query: int = QUERY) -> tuple[Tensor, Tensor, Tensor]:
    """Support, labels and query with d(d+1)/2 features, each the sum of one common vector, one per class and noise."""
    features = dimensions * (dimensions + 1) // 2
    common, classes = torch.randn(features), torch.randn(count, WAY, features) / 2
    labels = torch.arange(WAY).repeat_interleave(SHOT).expand(count, -1)

    def images(each: int) -> Tensor:
        return torch.randn(count, WAY * each, features).add_(classes.repeat_interleave(each, dim=1)).add_(common)

    return images(SHOT), labels, images(query)


def scikit_learn(support: Tensor, labels: Tensor, query: Tensor) -> np.ndarray:
    """The predicted classes ``(episodes, queries)`` of scikit-learn, fitted to the full features of each episode."""
    predicted = []
    with threadpool_limits(1):
        for s, y, q in zip(support.numpy(), labels.numpy(), query.numpy(), strict=True):
            s, q = (x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-6) for x in (s, q))
            predicted.append(LogisticRegression(C=C, max_iter=1000).fit(s, y).predict(q))
    return np.stack(predicted)


def broadcast(support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    """Minus squared distances to the prototypes, one episode at a time, with ``(query, way, features)`` arrays."""
    scores = []
    for s, q in zip(support, query, strict=True):
        prototypes = s.view(WAY, SHOT, -1).mean(dim=1)
        shape = len(q), WAY, q.shape[1]
        scores.append(-((q.unsqueeze(1).expand(shape) - prototypes.unsqueeze(0).expand(shape)) ** 2).sum(dim=2))
    return torch.stack(scores)


class HeadsAlone:
    """The same heads as those of a classifier, each trained by torch.optim.SGD from the same start in the same batches.

    Starts and batches are made beforehand, so that they are not timed.
    """

    def __init__(self, classifier: SGDHeadClassifier, support: Tensor, labels: Tensor) -> None:
        self.classifier = classifier
        self.tasks = [
            sorted_tasks(s[None], y[None], WAY, classifier.seed) for s, y in zip(support, labels, strict=True)
        ]
        self.starts = [classifier.start(tasks, WAY) for tasks in self.tasks]
        epochs = range(classifier.epochs)
        self.batches = [[b[0] for epoch in epochs for b in classifier.batches(tasks, epoch)] for tasks in self.tasks]

    @torch.enable_grad()
    def train(self) -> Tensor:
        """Train one head after the other: weights ``(episodes, way, features)``."""
        c, heads = self.classifier, []
        for tasks, start, batches in zip(self.tasks, self.starts, self.batches, strict=True):
            images, classes = tasks.support[0], tasks.labels[0]
            weight, offset = (value[0].clone().requires_grad_() for value in start)
            if c.cosine:
                images = images / (images.norm(dim=1, keepdim=True) + 1e-6)
            optimiser = torch.optim.SGD(
                [weight, offset], c.learning_rate, c.momentum, dampening=c.dampening, weight_decay=c.weight_decay
            )
            for batch in batches:
                if c.cosine:
                    logits = images[batch] @ (offset * normalize(weight, dim=1)).T
                else:
                    logits = images[batch] @ weight.T + offset[:, 0]
                optimiser.zero_grad()
                cross_entropy(c.scale * logits, classes[batch]).backward()
                optimiser.step()
            final = offset * normalize(weight, dim=1) if c.cosine else weight
            heads.append(c.scale * tasks.by_label(final[None].detach())[0])
        return torch.stack(heads)


def compare_sgd(episodes: int, repeats: int) -> list[str]:
    """Linear and cosine heads trained by SGD on 630 features, all at once and one at a time."""
    support, labels, _ = random_episodes(episodes, 35, query=0)
    part, lines = 4, []
    forms: list[tuple[Form, float]] = [("linear", 1.0), ("cosine", 2.0)]
    for form, scale in forms:
        classifier = SGDHeadClassifier(form, scale)
        heads_alone = HeadsAlone(classifier, support[:part], labels[:part])
        ms = medians({"ours": partial(classifier.rule, support, labels, WAY), "alone": heads_alone.train}, repeats)
        ours, alone = ms["ours"] / episodes, ms["alone"] / part
        weights = classifier.rule(support[:part], labels[:part], WAY).weights
        expected = heads_alone.train()
        error = (weights - expected).abs().max() / expected.abs().max()
        lines += [
            f"{form} heads trained by SGD for {classifier.epochs} epochs, {support.shape[-1]} features, "
            f"{episodes:,} episodes at once",
            f"  ours {ours:.2f} ms per episode ({1e3 / ours:,.0f} per second), one head at a time with torch.optim.SGD "
            f"{alone:.0f} ms ({1e3 / alone:,.1f} per second): {alone / ours:.0f}x "
            f"(target {SGD_TARGET}x: {verdict(alone / ours >= SGD_TARGET)})",
            f"  largest difference of a weight, relative to the largest weight: {error:.1e}",
        ]
    return lines


def compare_logistic(episodes: int, repeats: int) -> list[str]:
    """Our logistic regression at d = 128, and scikit-learn's on some of the same episodes."""
    support, labels, query = random_episodes(episodes, 128)
    part = 8
    classifier = logistic(C=C)
    ms = medians(
        {
            "ours": lambda: classifier(support, labels, query),
            "scikit-learn": lambda: scikit_learn(support[:part], labels[:part], query[:part]),
        },
        repeats,
    )
    ours, theirs = ms["ours"] / episodes, ms["scikit-learn"] / part
    same = classifier(support[:part], labels[:part], query[:part]).argmax(dim=-1).numpy()
    agreement = (same == scikit_learn(support[:part], labels[:part], query[:part])).mean()
    memory = peak_bytes(lambda: classifier(support, labels, query)) / episodes
    return [
        f"logistic, d=128 ({support.shape[-1]:,} features), {episodes} episodes at once",
        f"  ours {ours:.3f} ms per episode ({1e3 / ours:,.0f} per second), scikit-learn {theirs:.1f} ms "
        f"({1e3 / theirs:,.0f} per second): {theirs / ours:.1f}x "
        f"(target {LOGISTIC_TARGET}x: {verdict(theirs / ours >= LOGISTIC_TARGET)})",
        f"  same predicted class for {agreement:.2%} of the queries; extra memory {memory / 2**10:.0f} KB per episode",
    ]


def compare_growth(episodes: int, repeats: int) -> list[str]:
    """Our logistic regression at d = 512 and d = 128. Products with the features are timed separately from the rest."""
    classifier = logistic(C=C)
    batches = {d: random_episodes(episodes, d) for d in (128, 512)}

    def with_features(d: int) -> object:
        support, _, query = batches[d]
        products, factors = support_products(support, True)
        weights = class_weights(support, factors, products[..., : WAY + 1])
        return products, linear_scores(query, weights[:, :-1], True)

    products = {d: support_products(batches[d][0], True)[0] for d in batches}

    def rest(d: int) -> object:
        assert isinstance(classifier, LogisticClassifier)
        return classifier.fit_products(products[d], batches[d][1], WAY)

    sides: dict[str, Callable[[], object]] = {}
    for d in batches:
        sides[f"whole {d}"] = partial(lambda d: classifier(*batches[d]), d)
        sides[f"products {d}"] = partial(with_features, d)
        sides[f"rest {d}"] = partial(rest, d)
    ms = medians(sides, repeats)
    lines = [f"logistic, growth with the number of features, {episodes} episodes at once, ms per episode"]
    for d in batches:
        whole, gram, fit = (ms[f"{part} {d}"] / episodes for part in ("whole", "products", "rest"))
        features = batches[d][0].shape[-1]
        lines.append(f"  d={d} ({features:,} features): total {whole:.3f}, Gram and other products with the features ")
        lines[-1] += f"{gram:.3f}, the rest {fit:.3f}"
    growth = ms["rest 512"] / ms["rest 128"]
    met = verdict(growth <= GROWTH_TARGET)
    return [*lines, f"  the rest at d=512 takes {growth:.2f}x the time at d=128 (target {GROWTH_TARGET}x: {met})"]


def compare_prototypes(episodes: int, repeats: int) -> list[str]:
    """Our prototype classifier at d = 640, and the one that broadcasts."""
    support, labels, query = random_episodes(episodes, 640)
    classifier = prototype(similarity="euclidean")
    ms = medians(
        {
            "ours": lambda: classifier(support, labels, query),
            "broadcast": lambda: broadcast(support, labels, query),
        },
        repeats,
    )
    ours, theirs = ms["ours"] / episodes, ms["broadcast"] / episodes
    error = (classifier(support, labels, query) - broadcast(support, labels, query)).abs().max()
    scale = broadcast(support, labels, query).abs().max()
    peaks = [
        peak_bytes(lambda: classifier(support, labels, query)) / episodes,  # grows with the number of episodes
        peak_bytes(lambda: broadcast(support, labels, query)),  # does not grow: one episode at a time
    ]
    return [
        f"prototypes, d=640 ({support.shape[-1]:,} features), {episodes} episodes at once",
        f"  ours {ours:.2f} ms per episode ({1e3 / ours:,.0f} per second), broadcast {theirs:.1f} ms "
        f"({1e3 / theirs:,.1f} per second): {theirs / ours:.1f}x "
        f"(target {PROTOTYPE_TARGET}x: {verdict(theirs / ours >= PROTOTYPE_TARGET)})",
        f"  extra memory per episode: ours {peaks[0] / 2**20:.1f} MB, broadcast {peaks[1] / 2**20:.0f} MB; "
        f"largest relative difference of scores {error / scale:.1e}",
    ]


def report(quick: bool) -> Iterator[str]:
    """Yield the lines of all comparisons, each as soon as it is measured."""
    torch.manual_seed(0)
    yield ""
    yield f"Classifiers, {WAY}-way {SHOT}-shot, {QUERY} queries per class: medians of alternating runs; "
    yield f"scikit-learn {sklearn.__version__} on one thread"
    for compare, episodes, repeats in (
        (compare_logistic, 32 if quick else 128, 3 if quick else 15),
        (compare_growth, 4 if quick else 8, 3 if quick else 15),
        (compare_prototypes, 2 if quick else 4, 3 if quick else 7),
        (compare_sgd, 64 if quick else 2048, 1 if quick else 3),
    ):
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")  # a fit that does not converge must not be timed
            yield from ["", *compare(episodes, repeats)]
