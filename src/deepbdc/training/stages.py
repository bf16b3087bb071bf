"""The three stages: what is computed in a step of each, and what it is computed on."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from deepbdc._modes import evaluating
from deepbdc.backbones import create_backbone
from deepbdc.errors import UserError
from deepbdc.methods import Method, create_method
from deepbdc.training.batches import Batches, EpisodeBatches, Images, Process, ShuffledBatches
from deepbdc.training.recipe import Distill, Meta, Optimisation, Pretrain, Recipe
from deepbdc.training.seeds import derive


@dataclass(frozen=True)
class Stage:
    """One training from beginning to end: ``pretrain``, ``distill-1``, ``distill-2``, ..., ``meta``."""

    name: str
    settings: Optimisation
    start: str | None = None
    """The stage whose result this one goes on from; without one it starts from random weights."""


def stages_of(recipe: Recipe) -> list[Stage]:
    """The stages of a recipe, in order."""
    stages: list[Stage] = []
    if recipe.pretrain is not None:
        stages.append(Stage("pretrain", recipe.pretrain))
    if recipe.distill is not None:
        for generation in range(1, recipe.distill.generations + 1):
            stages.append(Stage(f"distill-{generation}", recipe.distill))
    if recipe.meta is not None:
        stages.append(Stage("meta", recipe.meta, start=stages[-1].name if stages else None))
    if not stages:
        raise UserError("the recipe has no stage: give it pretrain, distill or meta")
    return stages


def build_method(recipe: Recipe, shot: int | None = None) -> Method:
    """The method of a recipe with random weights, for tasks of ``shot`` shots (default: those of its validation)."""
    options = dict(recipe.backbone)
    backbone = create_backbone(options.pop("name"), **options)
    preprocessing = backbone.preprocessing.resized(recipe.size)
    shot = recipe.validation.shot if shot is None else shot
    method = create_method(recipe.method, backbone, shot, preprocessing, **recipe.options)
    for stage in stages_of(recipe):
        kind = stage.name.partition("-")[0]
        if kind not in method.stages:
            raise UserError(
                f"{recipe.method} is not trained by a stage {kind!r}, only by {' and '.join(method.stages)}: "
                f"remove {kind} from the recipe"
            )
    return method


class Task(nn.Module):
    """What is optimised in a stage: from one part of a step to its loss and the share of right answers."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    @abstractmethod
    def forward(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss, with its gradient, and the accuracy in percent."""


class PretrainTask(Task):
    """Cross-entropy of a linear head on the representation, after dropout."""

    def __init__(self, method: Method, classes: int, dropout: float) -> None:
        super().__init__(method)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(method.embedding.out_features, classes)
        nn.init.zeros_(self.head.bias)

    def logits(self, images: Tensor) -> Tensor:
        """Scores of all classes, ``(n, classes)``."""
        scores: Tensor = self.head(self.dropout(self.method.embed(images)))
        return scores

    def forward(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Images ``(n, 3, s, s)`` and labels ``(n,)``."""
        images, labels = batch
        logits = self.logits(images)
        return functional.cross_entropy(logits, labels), _percent(logits, labels)


class DistillTask(PretrainTask):
    """Cross-entropy with the labels, and with the softened answers of a frozen teacher in evaluation mode."""

    def __init__(self, method: Method, classes: int, dropout: float, teacher: PretrainTask, settings: Distill) -> None:
        super().__init__(method, classes, dropout)
        teacher.requires_grad_(False)
        self._teacher = (teacher,)  # in a tuple: it is neither trained nor saved with the student
        self.temperature = settings.temperature
        self.distillation_weight = settings.distillation_weight

    def forward(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Images ``(n, 3, s, s)`` and labels ``(n,)``."""
        images, labels = batch
        logits = self.logits(images)
        (teacher,) = self._teacher
        with evaluating(teacher), torch.no_grad():
            answers = teacher.to(images.device).logits(images)
        weight = self.distillation_weight
        by_labels = functional.cross_entropy(logits, labels)
        by_teacher = distillation_loss(logits, answers, self.temperature)
        return (1 - weight) * by_labels + weight * by_teacher, _percent(logits, labels)


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² · KL(softmax(teacher / T) ‖ softmax(student / T)), the mean over images: ``(n, classes) -> ()``."""
    expected = functional.log_softmax(teacher / temperature, dim=1)
    given = functional.log_softmax(student / temperature, dim=1)
    return temperature**2 * functional.kl_div(given, expected, reduction="batchmean", log_target=True)


class MetaTask(Task):
    """Cross-entropy of the method's own scores of the queries of an episode."""

    def forward(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """One episode: images ``(s + q, 3, size, size)``, labels ``(s,)`` of the first, ``(q,)`` of the others.

        All go through the network together, so that batch norm sees support and query alike.
        """
        images, support_labels, query_labels = batch
        representations = self.method.embed(images)
        support, query = representations.split([len(support_labels), len(query_labels)])
        scores = self.method.classify(support.float(), support_labels, query.float())
        return functional.cross_entropy(scores, query_labels), _percent(scores, query_labels)


def _percent(scores: Tensor, labels: Tensor) -> Tensor:
    return 100 * (scores.detach().argmax(dim=1) == labels).float().mean()


def build_task(recipe: Recipe, stage: Stage, classes: int, teacher: PretrainTask | None = None) -> Task:
    """The task of a stage with the initial weights that the seed says."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(recipe.seed, stage.name, "weights"))
        settings = stage.settings
        if isinstance(settings, Meta):
            return MetaTask(build_method(recipe, settings.shot))
        method = build_method(recipe)
        if isinstance(settings, Distill):
            assert teacher is not None
            return DistillTask(method, classes, recipe.dropout, teacher, settings)
        return PretrainTask(method, classes, recipe.dropout)


def build_batches(recipe: Recipe, stage: Stage, images: Images, process: Process) -> Batches:
    """The batches of a stage."""
    settings: Any = stage.settings
    if isinstance(settings, Meta):
        return EpisodeBatches(images, settings, stage.name, recipe.seed, process)
    assert isinstance(settings, Pretrain)
    return ShuffledBatches(images, settings, stage.name, recipe.seed, process)
