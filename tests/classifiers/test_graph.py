"""The graph network against loops over graphs, nodes and pairs; its options; gradcheck."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deepbdc.classifiers.graph import EdgeLayer, GraphClassifier, GraphLayer, Norm
from tests.classifiers.conftest import MakeEpisodes


def classifier(features: int = 5, **options: Any) -> GraphClassifier:
    """Narrow, in float64 and evaluation mode, with norms that are not those of the start."""
    torch.manual_seed(0)
    made = GraphClassifier(features, **{"reduce_to": 3, "hidden": 4, **options}).double()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            if module.track_running_stats:
                nn.init.uniform_(module.running_mean, -0.3, 0.3)  # type: ignore[arg-type]
                nn.init.uniform_(module.running_var, 0.5, 1.5)  # type: ignore[arg-type]
    return made.eval()


def leaky(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.01 * x)


def normalised(norm: Norm, rows: list[Tensor]) -> list[Tensor]:
    """Rows of one episode."""
    values = torch.stack(rows)
    mean, variance = norm.norm.running_mean, norm.norm.running_var
    if mean is None or variance is None:
        mean, variance = values.mean(dim=0), values.var(dim=0, correction=0)
    return list((values - mean) / (variance + norm.norm.eps).sqrt() * norm.norm.weight + norm.norm.bias)


Graphs = list[list[list[Tensor]]]  # graphs[run][graph][node]


def naive_layer(layer: GraphLayer, runs: Graphs) -> Graphs:
    """All graphs of one episode. The runs share their edges."""
    graphs, nodes = range(len(runs[0])), range(len(runs[0][0]))
    keys = [(g, i, j) for g in graphs for i in nodes for j in range(i)]
    rows = [torch.stack([(run[g][i] - run[g][j]).abs() for run in runs]).mean(dim=0) for g, i, j in keys]
    for part in layer.edges:
        assert isinstance(part, EdgeLayer)
        rows = [leaky(row) for row in normalised(part.norm, [part.linear.weight @ row for row in rows])]
    edges = {key: float(layer.weight(row).exp()) for key, row in zip(keys, rows, strict=True)}
    computed = []
    for run in runs:
        for g in graphs:
            for i in nodes:
                weights = [edges[g, max(i, j), min(i, j)] if j != i else 0.0 for j in nodes]
                around = torch.zeros_like(run[g][i])
                for j in nodes:
                    around += weights[j] / sum(weights) * run[g][j]
                computed.append(layer.nodes(torch.cat([run[g][i], around])))
    if layer.norm is not None:
        before = [node for run in runs for graph in run for node in graph]
        after = [leaky(row) for row in normalised(layer.norm, computed)]
        computed = [torch.cat(both) for both in zip(before, after, strict=True)]
    following = iter(computed)
    return [[[next(following) for _ in nodes] for _ in graphs] for _ in runs]


@torch.no_grad()
def naive(made: GraphClassifier, support: Tensor, labels: Tensor, query: Tensor, groups: list[list[int]]) -> Tensor:
    """One episode; ``groups`` says which queries are in one graph."""
    way = int(labels.max()) + 1
    rows = normalised(made.norm, [made.reduction(row) for row in torch.cat([support, query])])
    vectors, queries = rows[: len(support)], rows[len(support) :]

    def code(label: int, run: int) -> Tensor:
        if made.slots is None:
            return torch.tensor([float(label == run), float(label != run)], dtype=torch.float64)
        return torch.eye(way, dtype=torch.float64)[label]

    runs: Graphs = []
    for run in range(way if made.slots is None else 1):
        known = [torch.cat([x, code(label, run)]) for x, label in zip(vectors, labels.tolist(), strict=True)]
        unknown = [torch.cat([x, torch.zeros_like(code(0, 0))]) for x in queries]
        runs.append([known + [unknown[place] for place in group] for group in groups])
    for layer in made.layers:
        assert isinstance(layer, GraphLayer)
        runs = naive_layer(layer, runs)
    scores = torch.full((len(query), way), torch.nan, dtype=torch.float64)
    for number, run_graphs in enumerate(runs):
        for group, nodes in zip(groups, run_graphs, strict=True):
            for place, row in zip(group, nodes[len(support) :], strict=True):
                scores[place, number if made.slots is None else slice(None)] = row
    return scores


GROUPS = {("one", 4): [[0], [1], [2], [3]], ("way", 4): [[0, 2], [1, 3]], ("way", 6): [[0, 3], [1, 4], [2, 5]]}


@pytest.mark.parametrize("statistics", ["running", "batch"])
@pytest.mark.parametrize("slots", [None, 2])
@pytest.mark.parametrize(("queries_per_graph", "queries"), GROUPS)
def test_equals_loops(
    queries_per_graph: str, queries: int, slots: int | None, statistics: str, make_episodes: MakeEpisodes
) -> None:
    support, labels, query = make_episodes([1, 2], 5, episodes=2, queries=queries, dtype=torch.float64)
    made = classifier(slots=slots, queries_per_graph=queries_per_graph, statistics=statistics)
    with torch.no_grad():
        scores = made(support, labels, query)
        single = made.float()(support.float(), labels, query.float())
    torch.testing.assert_close(single.double(), scores, rtol=1e-3, atol=1e-4)
    made.double()
    for episode in range(2):
        groups = GROUPS[queries_per_graph, queries]
        expected = naive(made, support[episode], labels[episode], query[episode], groups)
        torch.testing.assert_close(scores[episode], expected, rtol=1e-4, atol=1e-5)  # weights went through float32


def test_graphs_repeat_queries_where_they_are_too_few(make_episodes: MakeEpisodes) -> None:
    """Four queries and three classes: two graphs, and the last query slots begin again with the first queries."""
    support, labels, query = make_episodes([1, 1, 2], 5, queries=4, dtype=torch.float64)
    made = classifier(queries_per_graph="way")
    expected = naive(made, support[0], labels[0], query[0], [[0, 2, 0], [1, 3, 1]])
    with torch.no_grad():
        scores = made(support, labels, query)[0]
        torch.testing.assert_close(scores, expected)
        assert made(support, labels, query[:, :1]).shape == (1, 1, 3)


@pytest.mark.parametrize("options", [{}, {"queries_per_graph": "way"}, {"statistics": "batch"}])
def test_what_makes_it_transductive(options: dict[str, Any], make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 2], 5, queries=4, dtype=torch.float64)
    made = classifier(**options)
    with torch.no_grad():
        together, changed = made(support, labels, query), query.clone()
        changed[:, 1:] += 1
        same = torch.allclose(made(support, labels, changed)[:, 0], together[:, 0], rtol=1e-8)
    assert same != made.transductive
    assert made.transductive == bool(options)
    assert made.assumes_balanced_queries == ("queries_per_graph" in options)


def test_slots_are_a_number_of_classes(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([1, 1, 1], 5, dtype=torch.float64)
    with pytest.raises(ValueError, match="made for 5 classes, got 3"):
        classifier(slots=5)(support, labels, query)
    for wrong in ({"hidden": 1}, {"queries_per_graph": "two"}, {"statistics": "none"}, {"reduce_to": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            classifier(**wrong)


def test_its_random_numbers_change_no_others() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    GraphClassifier(4, reduce_to=3, hidden=4)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("statistics", ["running", "batch"])
def test_gradients(statistics: str, make_episodes: MakeEpisodes) -> None:
    # With seed 0, an input of LeakyReLU is nearer to its kink at 0 than the steps of gradcheck are long.
    support, labels, query = make_episodes([1, 2], 3, queries=2, seed=1, dtype=torch.float64)
    made = classifier(3, statistics=statistics, hidden=2)
    weights = {name: value for name, value in made.named_parameters() if "edges" in name or "reduction" in name}

    def scores(support: Tensor, query: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(weights, values, strict=True))
        result: Tensor = torch.func.functional_call(made, given, (support, labels, query))
        return result

    values = (support, query, *weights.values())
    assert torch.autograd.gradcheck(scores, tuple(value.detach().requires_grad_() for value in values))
