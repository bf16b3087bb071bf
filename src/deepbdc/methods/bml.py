"""BML: a global and a local view of each image, trained together, which learn from each other."""

from copy import deepcopy
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from deepbdc._modes import full_precision, separate_random_numbers
from deepbdc.backbones.base import Backbone, initialise
from deepbdc.classifiers import create_classifier
from deepbdc.classifiers.base import positive
from deepbdc.classifiers.prototype import class_means, similarities
from deepbdc.embedding import Embedding
from deepbdc.errors import UserError
from deepbdc.methods._heads import linear_head
from deepbdc.methods.base import EpisodicMethod, Head, at_least_float, methods
from deepbdc.pooling import PowerFlatten
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages import AugmentedImages, EpisodeBatches, EpisodeTraining, Inputs, Loss, Process, TrainingEpisode
from deepbdc.stages.batches import Batch
from deepbdc.stages.formulas import distillation_loss, percent_right
from deepbdc.stages.settings import StageSettings


class EpisodesInTime(EpisodeBatches):
    """The tensors of a `TrainingEpisode`, and which part ``()`` of the epochs of the stage has passed."""

    def __init__(
        self, images: AugmentedImages, settings: StageSettings, name: str, seed: int, process: Process
    ) -> None:
        super().__init__(images, settings, name, seed, process)
        self.epochs = settings.epochs

    def load(self, epoch: int, step: int, part: int) -> Batch:
        """Load one episode of this process."""
        return *super().load(epoch, step, part), torch.tensor(epoch / self.epochs)


class MutualLearning(EpisodeTraining):
    """The loss of BML, with its head over all training classes, which is needed in training only."""

    Batches = EpisodesInTime

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        self.head = inputs.method.head(inputs.classes)

    def forward(self, *batch: Tensor) -> Loss:
        """The tensors of a `TrainingEpisode`, and the part of the stage that has passed."""
        method, episode, passed = self.method, TrainingEpisode(*batch[:-1]), float(batch[-1])
        assert isinstance(method, BML)
        return self.with_losses(
            lambda: method.mutual_loss(self.head, episode, passed, self.label_smoothing), self.part(episode)
        )


@methods.named("bml")
class BML(EpisodicMethod):
    """Zhou et al., "Binocular Mutual Learning for Improving Few-shot Classification", ICCV 2021.

    The backbone has a common trunk, and its last block twice: the global view G and the local view L, feature maps with
    r positions each. They are trained in one stage from random weights, with episodes:

    loss = 2 · global + local + 0.5 · mutual.

    The global loss is the cross-entropy over all training classes of each position of G, for all images. The local
    loss is the cross-entropy over the classes of the episode of each position x of L of the queries, with scores
    -‖x - p_c‖² and p_c the mean over the shots and positions of a class; `elastic_margins` makes the right class harder
    for positions that are not yet sure. The mutual loss takes the averages of G and L over positions as scores, and is
    T² (KL(softmax(G/T) ‖ softmax(L/T)) + KL(softmax(L/T) ‖ softmax(G/T))), with gradients to both.

    At test time an image is the square root of all positive entries of both maps, and s_c(q) = -‖q - p_c‖² with class
    means p_c: the sum of the scores of the two views. The margins grow from 0 in the first epoch; the authors may count
    epochs from 1. Inductive.

    Args:
        backbone: From images to feature maps. It must give its blocks (`Backbone.blocks_in_order`).
        shot: Support images per class; it changes nothing here.
        preprocessing: How images are prepared, if not as the backbone says.
        branch_blocks: How many of the last blocks each view has of its own.
        global_weight: Weight of the global loss.
        mutual_weight: Weight of the mutual loss.
        mutual_temperature: T.
        margin: Largest margin.
        power: Exponent of the entries of the maps at test time.
    """

    objectives: ClassVar = {"meta": MutualLearning}

    def __init__(
        self,
        backbone: Backbone,
        shot: int = 1,
        preprocessing: Preprocessing | None = None,
        branch_blocks: int = 1,
        global_weight: float = 2.0,
        mutual_weight: float = 0.5,
        mutual_temperature: float = 4.0,
        margin: float = 5.5,
        power: float = 0.5,
    ) -> None:
        if min(global_weight, mutual_weight, margin) < 0:
            raise UserError("global_weight, mutual_weight and margin must not be negative")
        views = TwoViews(backbone, branch_blocks)
        size = (preprocessing or backbone.preprocessing).input_size
        pool = PowerFlatten(views.out_channels, *views.map_size(size), power)
        super().__init__(
            Embedding(views, pool, preprocessing),
            create_classifier("prototype", similarity="euclidean"),
            branch_blocks=branch_blocks,
            global_weight=global_weight,
            mutual_weight=mutual_weight,
            mutual_temperature=positive("mutual_temperature", mutual_temperature),
            margin=margin,
        )

    def head(self, classes: int) -> nn.Module:
        """A linear head for each position of the global view."""
        return linear_head(self.embedding.backbone.out_channels // 2, classes)

    def features(self, images: Tensor) -> Tensor:
        """The averages of both maps, for losses that a recipe adds: ``(n, 2 d)``."""
        return self.embedding.reduced_map(images).mean(dim=(2, 3))

    def mutual_loss(self, head: Head, episode: TrainingEpisode, passed: float, label_smoothing: float = 0.0) -> Loss:
        """The three losses of an episode.

        Args:
            head: From vectors ``(n, d)`` to scores of all training classes.
            episode: The images.
            passed: Which part of the stage has passed, from 0 to 1.
            label_smoothing: Of the cross-entropies.
        """
        maps = self.embedding.reduced_map(episode.images)
        with full_precision(maps):
            of_whole, of_parts = at_least_float(maps).flatten(2).transpose(1, 2).chunk(2, dim=2)  # (n, r, d) each
            positions = of_whole.shape[1]
            classes = head(of_whole.flatten(0, 1))
            base_labels = episode.base_labels.repeat_interleave(positions)
            whole = cross_entropy(classes, base_labels, label_smoothing=label_smoothing)
            distances = self.local_distances(of_parts, episode)
            labels = episode.query_labels.repeat_interleave(positions)
            margins = elastic_margins(distances.detach(), labels, passed * self.settings["margin"])
            harder = distances + margins.unsqueeze(1) * one_hot(labels, distances.shape[1])
            local = cross_entropy(-harder, labels, label_smoothing=label_smoothing)
            mutual = mutual_divergence(of_whole.mean(dim=1), of_parts.mean(dim=1), self.settings["mutual_temperature"])
        value = self.settings["global_weight"] * whole + local + self.settings["mutual_weight"] * mutual
        numbers = {"global": whole, "local": local, "mutual": mutual}
        return Loss(
            value,
            {
                "accuracy": percent_right(-distances, labels),
                "global_accuracy": percent_right(classes, base_labels),
                **{name: number.detach() for name, number in numbers.items()},
            },
        )

    def local_distances(self, rows: Tensor, episode: TrainingEpisode) -> Tensor:
        """Squared distances of each position of the queries to the classes: ``(n, r, d) -> (q · r, way)``."""
        support, query = episode.split(rows)
        prototypes = class_means(support.mean(dim=1)[None], episode.support_labels[None], len(episode.classes))
        return -similarities(query.flatten(0, 1)[None], prototypes, "euclidean")[0]


class TwoViews(Backbone):
    """A backbone whose last blocks exist twice: ``(n, 3, h, w) -> (n, 2 d, h', w')``.

    Args:
        backbone: Its blocks are taken over; the copies of the last ones start from other random weights.
        branch_blocks: How many blocks exist twice.
    """

    def __init__(self, backbone: Backbone, branch_blocks: int = 1) -> None:
        super().__init__(2 * backbone.out_channels, backbone.preprocessing)
        blocks = backbone.blocks_in_order()
        if not 1 <= branch_blocks < len(blocks):
            raise UserError(f"branch_blocks must be 1 to {len(blocks) - 1} for this backbone, got {branch_blocks}")
        self.trunk = nn.Sequential(*blocks[:-branch_blocks])
        self.views = Beside(nn.Sequential(*blocks[-branch_blocks:]))

    def blocks_in_order(self) -> list[nn.Module]:
        """The blocks of the trunk, and the two views as one block."""
        return [*self.trunk, self.views]


class Beside(nn.Module):
    """The outputs of a layer and of a copy with other random weights, beside each other: channels double."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.second = layer, deepcopy(layer)
        with separate_random_numbers():
            initialise(self.second)

    def forward(self, x: Tensor) -> Tensor:
        """``(n, c, h, w) -> (n, 2 d, h', w')``."""
        return torch.cat([self.first(x), self.second(x)], dim=1)


def elastic_margins(distances: Tensor, labels: Tensor, largest: float) -> Tensor:
    """What is added to the distance of the right class: ``(n, way), (n,) -> (n,)``.

    It is largest · sigmoid((d_right - d_nearest wrong) / 10). Where the softmax of the distances is sure, which means
    that it gives more than a half to one class, it is 0.
    """
    right = one_hot(labels, distances.shape[1]).bool()
    wrong = distances.masked_fill(right, torch.inf).amin(dim=1)
    margins = largest * torch.sigmoid(0.1 * (distances[right] - wrong))
    sure = torch.softmax(-distances, dim=1).amax(dim=1) > 0.5
    return margins.masked_fill(sure, 0.0)


def mutual_divergence(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """T² (KL(p ‖ q) + KL(q ‖ p)), the mean over images, with p and q the softmax of scores ``(n, d)`` divided by T."""
    return distillation_loss(one, other, temperature) + distillation_loss(other, one, temperature)
