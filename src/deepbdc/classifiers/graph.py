"""A graph network: the support images and a query are nodes, and learnt edges carry labels to the query."""

from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import instance_norm, leaky_relu

from deepbdc._modes import separate_random_numbers
from deepbdc.classifiers.base import Classifier, membership, positive
from deepbdc.errors import UserError

QueriesPerGraph = Literal["one", "way"]
Statistics = Literal["running", "batch"]


class GraphClassifier(Classifier):
    """The graph network of Garcia and Bruna (ICLR 2018), as Tseng et al. (ICLR 2020) use it.

    A linear layer and batch norm reduce each representation to a vector of ``reduce_to`` numbers. A node x is such a
    vector beside its label, which is 0 for a query. In each of three layers, an edge network e weights all pairs of
    nodes by A_ij = softmax_j e(|x_i - x_j|), j ≠ i, and a layer computes y = LeakyReLU(norm(W [x ; A x])), which is
    appended to x. The last layer gives the scores of the queries, without norm and LeakyReLU.

    The original writes a label as a one-hot vector and ends in one score per class, so that it is tied to one number of
    classes (``slots``), and learns only from many examples that their order does not matter. By default this classifier
    runs the layers once for each class c instead, with the same weights. A label is then (1, 0) for the support images
    of c and (0, 1) for those of other classes, and the only output is the score of c. These runs share their edges,
    which are computed from the mean of |x_i - x_j| over the runs.

    An edge is the same in both directions, so each pair is computed once, and pairs of a node with itself never.

    Args:
        features: Numbers in a representation.
        reduce_to: Numbers in a node, besides the label.
        hidden: Half the width of the edge networks (their four hidden layers have 2, 2, 1 and 1 times as many channels)
            and twice that of a layer's output.
        slots: The number of classes for one-hot labels as in the original (None: any number of classes).
        queries_per_graph: ``"one"``, or ``"way"``: a graph has as many queries as classes, as in Tseng et al. Of q
            queries, query i is in one graph with i + g, i + 2 g, ..., where g = q / way. If queries are sorted by
            class, then each graph has one of each class, which the network can exploit. If q is not a multiple of the
            number of classes, some graphs repeat queries.
        statistics: What batch norm normalises by: ``"running"`` averages of the training, or those of the ``"batch"``,
            that is, all graphs of an episode, as in the original.
    """

    named_parameter_groups = {"graph": ("reduction", "norm", "layers")}  # noqa: RUF012

    def __init__(
        self,
        features: int,
        reduce_to: int = 128,
        hidden: int = 96,
        slots: int | None = None,
        queries_per_graph: QueriesPerGraph = "one",
        statistics: Statistics = "running",
    ) -> None:
        super().__init__(
            features=features,
            reduce_to=reduce_to,
            hidden=hidden,
            slots=slots,
            queries_per_graph=queries_per_graph,
            statistics=statistics,
        )
        if queries_per_graph not in get_args(QueriesPerGraph):
            raise UserError(f"queries_per_graph must be 'one' or 'way', got {queries_per_graph!r}")
        if statistics not in get_args(Statistics):
            raise UserError(f"statistics must be 'running' or 'batch', got {statistics!r}")
        if hidden < 2:
            raise UserError(f"hidden must be at least 2, got {hidden}")
        self.hidden, self.slots, self.queries_per_graph = hidden, slots, queries_per_graph
        width = int(positive("reduce_to", reduce_to))
        label, outputs = (2, 1) if slots is None else (int(positive("slots", slots)), slots)
        with separate_random_numbers():
            self.reduction = nn.Linear(features, width)
            self.norm = Norm(width, statistics)
            grown = hidden // 2
            self.layers = nn.Sequential(
                GraphLayer(width, label, hidden, grown, False, statistics),
                GraphLayer(width, label + grown, hidden, grown, False, statistics),
                GraphLayer(width, label + 2 * grown, hidden, outputs, True, statistics),
            )

    @property
    def transductive(self) -> bool:  # type: ignore[override]
        """Whether queries share graphs or statistics."""
        return self.queries_per_graph == "way" or self.settings["statistics"] == "batch"

    @property
    def assumes_balanced_queries(self) -> bool:  # type: ignore[override]
        """Whether a graph is made for one query of each class."""
        return self.queries_per_graph == "way"

    def score(self, support: Tensor, support_labels: Tensor, query: Tensor, way: int) -> Tensor:
        """``(e, s, features), (e, s), (e, q, features) -> (e, q, way)``."""
        if self.slots is not None and way != self.slots:
            raise UserError(f"this graph network is made for {self.slots} classes, got {way}: slots=None takes any")
        both = torch.cat([support, query], dim=1).to(self.reduction.weight.dtype)
        reduced: Tensor = self.norm(self.reduction(both))
        count, queries = support.shape[1], query.shape[1]
        per_graph = way if self.queries_per_graph == "way" else 1
        graphs = -(-queries // per_graph)
        slots = torch.arange(per_graph, device=query.device) * graphs
        places = (torch.arange(graphs, device=query.device)[:, None] + slots) % queries  # (g, queries of a graph)
        nodes = self._nodes(reduced[:, :count], reduced[:, count:][:, places], support_labels, way)
        computed: Tensor = self.layers(nodes)  # (e, runs, g, n, outputs)
        # Query i is in graph i % g, at place i // g of its queries.
        ordered = computed[..., count:, :].transpose(2, 3).flatten(2, 3)[:, :, :queries]
        scores = ordered[..., 0].transpose(1, 2) if self.slots is None else ordered[:, 0]
        return scores.to(query.dtype)

    def _nodes(self, support: Tensor, query: Tensor, labels: Tensor, way: int) -> Tensor:
        """Vectors and labels of all nodes: ``(e, s, d), (e, g, m, d) -> (e, runs, g, s + m, d + label)``.

        There is a run for each class, or one with slots.
        """
        codes = membership(labels, way, support.dtype)  # (e, s, way)
        codes = torch.stack([codes, 1 - codes], dim=-1).transpose(1, 2) if self.slots is None else codes.unsqueeze(1)
        (episodes, runs, _, length), (graphs, per_graph) = codes.shape, query.shape[1:3]
        vectors = torch.cat([support.unsqueeze(1).expand(-1, graphs, -1, -1), query], dim=2)
        none = codes.new_zeros(episodes, runs, graphs, per_graph, length)
        labelled = torch.cat([codes.unsqueeze(2).expand(-1, -1, graphs, -1, -1), none], dim=3)
        nodes = vectors.unsqueeze(1).expand(-1, runs, -1, -1, -1)
        return torch.cat([nodes, labelled], dim=-1)

    def working_memory(self, support: tuple[int, ...], query: tuple[int, ...]) -> int:
        """Hidden layers and differences of all pairs; there are at most as many classes as support images."""
        runs = support[0] if self.slots is None else 1
        nodes = support[0] + (support[0] if self.queries_per_graph == "way" else 1)
        pairs = query[0] * nodes * nodes // 2
        grown = 2 + self.hidden if self.slots is None else self.slots + self.hidden
        return 4 * 3 * pairs * (max(2 * self.hidden, int(self.settings["reduce_to"])) + runs * grown)


class GraphLayer(nn.Module):
    """Edges of all pairs of nodes, and a linear layer on each node beside the weighted mean of the others.

    Args:
        shared: The first numbers in a node, which are the same in all runs.
        own: The other numbers in a node.
        hidden: As for `GraphClassifier`.
        outputs: Numbers that the layer computes for each node.
        last: Return only these numbers, without norm and LeakyReLU; else they are appended to the node.
        statistics: As for `GraphClassifier`.
    """

    def __init__(self, shared: int, own: int, hidden: int, outputs: int, last: bool, statistics: Statistics) -> None:
        super().__init__()
        self.shared, channels = shared, shared + own
        widths = (channels, 2 * hidden, 2 * hidden, hidden, hidden)
        self.edges = nn.Sequential(*(EdgeLayer(before, after, statistics) for before, after in pairwise(widths)))
        self.weight = nn.Linear(hidden, 1)
        self.nodes = nn.Linear(2 * channels, outputs, bias=last)
        self.norm = None if last else Norm(outputs, statistics)

    def forward(self, nodes: Tensor) -> Tensor:
        """``(e, runs, g, n, channels) -> (e, runs, g, n, channels + outputs)``, or ``outputs`` in the last layer."""
        around = self.adjacency(nodes) @ nodes
        computed: Tensor = self.nodes(torch.cat([nodes, around], dim=-1))
        if self.norm is None:
            return computed
        return torch.cat([nodes, leaky_relu(self.norm(computed))], dim=-1)

    def adjacency(self, nodes: Tensor) -> Tensor:
        """Weights of the other nodes, which sum to 1: ``(e, runs, g, n, channels) -> (e, 1, g, n, n)``."""
        count = nodes.shape[-2]
        first, second = torch.triu_indices(count, count, offset=1, device=nodes.device)

        def differences(x: Tensor) -> Tensor:
            return (x[..., first, :] - x[..., second, :]).abs()

        of_vectors = differences(nodes[:, :1, ..., : self.shared])
        of_runs = differences(nodes[..., self.shared :]).mean(dim=1, keepdim=True)
        pairs: Tensor = self.weight(self.edges(torch.cat([of_vectors, of_runs], dim=-1))).squeeze(
            -1
        )  # (e, 1, g, pairs)
        place = torch.zeros(count, count, dtype=torch.long, device=nodes.device)
        place[first, second] = place[second, first] = torch.arange(len(first), device=nodes.device)
        itself = torch.eye(count, dtype=torch.bool, device=nodes.device)
        return pairs[..., place].masked_fill(itself, -torch.inf).softmax(dim=-1)


class EdgeLayer(nn.Module):
    """A linear layer, norm and LeakyReLU."""

    def __init__(self, before: int, after: int, statistics: Statistics) -> None:
        super().__init__()
        self.linear = nn.Linear(before, after, bias=False)
        self.norm = Norm(after, statistics)

    def forward(self, x: Tensor) -> Tensor:
        """``(..., before) -> (..., after)``."""
        return leaky_relu(self.norm(self.linear(x)))


class Norm(nn.Module):
    """Batch norm over all but the last dimension, or, with the statistics of the batch, over all but first and last.

    Args:
        channels: Size of the last dimension.
        statistics: ``"batch"`` has no running averages; each entry of the first dimension, which is an episode, has
            statistics of its own.
    """

    def __init__(self, channels: int, statistics: Statistics) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(channels, track_running_stats=statistics == "running")

    def forward(self, x: Tensor) -> Tensor:
        """``(e, ..., channels)``, normalised."""
        if self.norm.track_running_stats:
            normal: Tensor = self.norm(x.flatten(0, -2))
            return normal.reshape(x.shape)
        rows = x.flatten(1, -2).transpose(1, 2)  # (e, channels, rows)
        normal = instance_norm(rows, weight=self.norm.weight, bias=self.norm.bias, eps=self.norm.eps)
        return normal.transpose(1, 2).reshape(x.shape)
