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
from deepbdc.stages.objectives import (
    Classification,
    Distillation,
    EpisodeTraining,
    Inputs,
    Loss,
    Objective,
    PairedEpisodes,
)
from deepbdc.stages.settings import BatchSettings, DistillationSettings, EpisodeSettings, GroupSettings, StageSettings

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
    "Objective",
    "PairedEpisodeBatches",
    "PairedEpisodes",
    "Process",
    "ShuffledBatches",
    "StageSettings",
    "TrainingEpisode",
]
