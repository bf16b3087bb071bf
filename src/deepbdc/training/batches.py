"""What a step of the training is given: augmented images with labels, or episodes.

A batch is made of its place (epoch, step, part, process) alone. So training can go on from anywhere, any number of
worker processes gives the same images, and each process of a distributed run draws its own part.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from deepbdc.data.dataset import ArrayDataset, Dataset
from deepbdc.data.images import BadImage
from deepbdc.data.transforms import BatchTrainTransform, train_transform
from deepbdc.episodes import EpisodeStream
from deepbdc.errors import UserError
from deepbdc.preprocessing import Preprocessing
from deepbdc.training.recipe import Augmentation, Meta, Pretrain
from deepbdc.training.seeds import derive

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Process:
    """Which process of how many this is."""

    rank: int = 0
    count: int = 1


class Images:
    """Augmented training images of a data set."""

    def __init__(self, dataset: Dataset, preprocessing: Preprocessing, augmentation: Augmentation) -> None:
        self.dataset = dataset
        self.preprocessing = preprocessing
        self.augmentation: Augmentation = augmentation
        self._single = None if isinstance(dataset, ArrayDataset) else train_transform(preprocessing, augmentation)

    def load(self, indices: NDArray[np.int64], seed: int) -> Tensor:
        """Images ``(n, 3, size, size)``, with random changes drawn from ``seed``."""
        if isinstance(self.dataset, ArrayDataset):
            generator = torch.Generator().manual_seed(seed)
            return BatchTrainTransform(self.preprocessing, generator, self.augmentation)(self.dataset.images[indices])
        assert self._single is not None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return torch.stack([self._single(self.dataset.image(int(index))) for index in indices])


class Batches(ABC):
    """Steps of an epoch, each in one or more parts that are computed one after the other."""

    steps: int
    """Steps an epoch."""
    parts: int
    """Parts of a step that this process computes."""
    images_per_step: int
    """In all processes together."""

    @abstractmethod
    def load(self, epoch: int, step: int, part: int) -> Batch:
        """One part of a step."""

    def epoch(self, number: int, start: int, workers: int) -> Iterator[list[Batch]]:
        """The steps of an epoch from ``start`` on, each a list of its parts, loaded ahead by worker processes."""
        keys = [(number, step, part) for step in range(start, self.steps) for part in range(self.parts)]
        loader = DataLoader(_Keyed(self), batch_size=None, sampler=keys, num_workers=workers)
        # The loader draws one number for its workers when it starts; the global stream is not ours to spend.
        with torch.random.fork_rng(devices=[]):
            batches = iter(loader)
        for _ in range(start, self.steps):
            parts = [next(batches) for _ in range(self.parts)]
            for part in parts:
                if isinstance(part, BadImage):
                    raise part
            yield parts

    def describe(self, epoch: int, step: int) -> str:
        """The place of a step, for a message."""
        return f"epoch {epoch + 1}, step {step + 1} of {self.steps}"


class _Keyed(TorchDataset[Batch | BadImage]):
    """The form in which torch's loader takes batches: an item is found by its key."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __getitem__(self, key: Any) -> Batch | BadImage:
        try:
            return self.batches.load(*key)
        except BadImage as error:  # as a value: a worker process would wrap it in its own words
            return error


class ShuffledBatches(Batches):
    """All images in a new order every epoch: (images ``(n, 3, s, s)``, labels ``(n,)``).

    ``batch_size`` images are a step, whatever the number of processes; the few that do not fill one are left out.
    """

    def __init__(self, images: Images, stage: Pretrain, name: str, seed: int, process: Process) -> None:
        count = len(images.dataset)
        self.batch_size = min(stage.batch_size, count)
        pieces = stage.accumulate * process.count
        if self.batch_size % pieces:
            raise UserError(
                f"{name}: a batch of {self.batch_size} images cannot be cut into equal parts for {process.count} "
                f"processes × accumulate={stage.accumulate}: choose a batch_size that is a multiple of {pieces}"
            )
        self.images = images
        self.name = name
        self.seed = seed
        self.process = process
        self.parts = stage.accumulate
        self.steps = count // self.batch_size
        self.images_per_step = self.batch_size

    def load(self, epoch: int, step: int, part: int) -> Batch:
        """This process's images of one part of a step."""
        chosen = self._order(epoch)[step * self.batch_size : (step + 1) * self.batch_size]
        piece = part * self.process.count + self.process.rank
        size = self.batch_size // (self.parts * self.process.count)
        indices = chosen[piece * size : (piece + 1) * size]
        images = self.images.load(indices, derive(self.seed, self.name, "images", epoch, step, piece))
        return images, self.images.dataset.labels[torch.from_numpy(indices)]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        known: tuple[int, NDArray[np.int64]] | None = getattr(self, "_known", None)
        if known is None or known[0] != epoch:
            generator = torch.Generator().manual_seed(derive(self.seed, self.name, "order", epoch))
            known = (epoch, torch.randperm(len(self.images.dataset), generator=generator).numpy())
            self._known = known
        return known[1]


class EpisodeBatches(Batches):
    """Episodes, one a part: (images ``(s + q, 3, size, size)``, support labels ``(s,)``, query labels ``(q,)``)."""

    def __init__(self, images: Images, stage: Meta, name: str, seed: int, process: Process) -> None:
        if stage.episodes_per_step % process.count:
            raise UserError(
                f"{name}: {stage.episodes_per_step} episodes a step cannot be shared equally by {process.count} "
                f"processes: choose {name}.episodes_per_step as a multiple of {process.count}"
            )
        if stage.episodes < stage.episodes_per_step:
            raise UserError(
                f"{name}: {stage.episodes} episodes an epoch do not make a step of {stage.episodes_per_step}"
            )
        self.images = images
        self.name = name
        self.seed = seed
        self.process = process
        self.per_step = stage.episodes_per_step
        self.parts = stage.episodes_per_step // process.count
        self.steps = stage.episodes // stage.episodes_per_step
        self.images_per_step = self.per_step * stage.way * (stage.shot + stage.query)
        stream_seed = derive(seed, name, "episodes")
        self.stream = EpisodeStream(images.dataset, stage.way, stage.shot, stage.query, stream_seed)

    def load(self, epoch: int, step: int, part: int) -> Batch:
        """One episode of this process."""
        number = (epoch * self.steps + step) * self.per_step + part * self.process.count + self.process.rank
        episode = self.stream[number]
        indices = np.concatenate([episode.support, episode.query])
        images = self.images.load(indices, derive(self.seed, self.name, "images", number))
        return images, torch.from_numpy(episode.support_labels), torch.from_numpy(episode.query_labels)
