"""What a training stage is made of: its settings, the batches that it is given, and the objective that it minimises."""

from deepbdc.stages.batches import (
    AugmentedImages,
    Batches,
    EpisodeBatches,
    PairedEpisodeBatches,
    Process,
    ShuffledBatches,
    TrainingEpisode,
)
from deepbdc.stages.formulas import Loss
from deepbdc.stages.losses import NamedLoss, losses
from deepbdc.stages.objectives import (
    Classification,
    Distillation,
    EpisodeTraining,
    Inputs,
    Objective,
    PairedEpisodes,
)
from deepbdc.stages.settings import (
    BatchSettings,
    DistillationSettings,
    EpisodeSettings,
    GroupSettings,
    LossSettings,
    StageSettings,
)

__all__ = [
    "AugmentedImages",
    "BatchSettings",
    "Batches",
    "Classification",
    "Distillation",
    "DistillationSettings",
    "EpisodeBatches",
    "EpisodeSettings",
    "EpisodeTraining",
    "GroupSettings",
    "Inputs",
    "Loss",
    "LossSettings",
    "NamedLoss",
    "Objective",
    "PairedEpisodeBatches",
    "PairedEpisodes",
    "Process",
    "ShuffledBatches",
    "StageSettings",
    "TrainingEpisode",
    "losses",
]
