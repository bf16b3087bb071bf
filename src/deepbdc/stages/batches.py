"""What a training step is given: batches of augmented images with labels, or episodes.

A batch depends on its place (epoch, step, part, process) and the seed alone. So training can continue from any step,
any number of worker processes gives the same images, and each process of a distributed run loads its own part.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from deepbdc._seeds import derive
from deepbdc.data.dataset import Dataset, PixelDataset
from deepbdc.data.images import BadImage
from deepbdc.data.transforms import BatchTestTransform, BatchTrainTransform, test_transform, train_transform
from deepbdc.episodes import EpisodeStream
from deepbdc.errors import UserError
from deepbdc.preprocessing import Preprocessing
from deepbdc.stages.settings import Augmentation, BatchSettings, EpisodeSettings, StageSettings, limits

Batch = tuple[Tensor, ...]
"""The tensors of one part of a step; the first holds the images."""


@dataclass(frozen=True)
class Process:
    """The rank of this process, and the number of processes."""

    rank: int = 0
    count: int = 1


class TrainingEpisode(NamedTuple):
    """The tensors of one training episode, support images before query images."""

    images: Tensor
    """``(s + q, 3, size, size)``"""
    support_labels: Tensor
    """``(s,)``, from 0 to way - 1."""
    query_labels: Tensor
    """``(q,)``, from 0 to way - 1."""
    classes: Tensor
    """``(way,)``: the label that each class of the episode has in the training set."""

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``(s + q, ...)`` of the support and of the query images."""
        support, query = rows.split([len(self.support_labels), len(self.query_labels)])
        return support, query

    @property
    def base_labels(self) -> Tensor:
        """``(s + q,)``: the label of each image in the training set."""
        return self.classes[torch.cat([self.support_labels, self.query_labels])]


class AugmentedImages:
    """The images of a data set as the training sees them: prepared for the network and changed at random."""

    def __init__(self, dataset: Dataset, preprocessing: Preprocessing, augmentation: Augmentation) -> None:
        self.dataset = dataset
        self.preprocessing = preprocessing
        self.augmentation: Augmentation = augmentation
        self._single: Any = None
        if not isinstance(dataset, PixelDataset):
            if augmentation == "none":
                self._single = test_transform(preprocessing)
            else:
                self._single = train_transform(preprocessing, augmentation)

    def load(self, indices: NDArray[np.int64], seed: int) -> Tensor:
        """Images ``(n, 3, size, size)``, with random changes drawn from ``seed``."""
        if isinstance(self.dataset, PixelDataset):
            images = self.dataset.pixels(indices)
            if self.augmentation == "none":
                return BatchTestTransform(self.preprocessing)(images)
            generator = torch.Generator().manual_seed(seed)
            return BatchTrainTransform(self.preprocessing, generator, self.augmentation)(images)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return torch.stack([self._single(self.dataset.image(int(index))) for index in indices])


class Batches(ABC):
    """The steps of an epoch. Each step has one or more parts, which a process computes one after the other."""

    steps: int
    """Steps per epoch."""
    steps_depend_on_data: ClassVar[bool] = True
    """Whether a larger data set has more steps per epoch."""
    parts: int
    """Parts of a step that this process computes."""
    images_per_step: int
    """The largest number of images in a step, over all processes."""

    def __init__(
        self, images: AugmentedImages, settings: StageSettings, name: str, seed: int, process: Process
    ) -> None:
        self.images = images
        self.name = name
        self.seed = seed
        self.process = process

    @abstractmethod
    def load(self, epoch: int, step: int, part: int) -> Batch:
        """Load one part of a step."""

    def epoch(self, number: int, start: int, workers: int) -> Iterator[list[Batch]]:
        """The steps of an epoch from ``start`` on, each a list of its parts, loaded ahead.

        Pixels in memory are loaded by a thread, one part ahead; files by this many worker processes.
        """
        keys = [(number, step, part) for step in range(start, self.steps) for part in range(self.parts)]
        in_memory = isinstance(self.images.dataset, PixelDataset)
        batches = _one_ahead(self.load, keys) if in_memory else self._by_workers(keys, workers)
        for _ in range(start, self.steps):
            yield [next(batches) for _ in range(self.parts)]

    def _by_workers(self, keys: Sequence[tuple[int, int, int]], workers: int) -> Iterator[Batch]:
        """The batches of ``keys``, loaded by worker processes, or by this process if there are none."""
        loader = DataLoader(_Keyed(self), batch_size=None, sampler=keys, num_workers=workers)
        # The loader draws a number for its workers when it starts. It must not advance the global random stream.
        with torch.random.fork_rng(devices=[]):
            batches = iter(loader)
        for batch in batches:
            if isinstance(batch, BadImage):
                raise batch
            yield batch

    def describe(self, epoch: int, step: int) -> str:
        """The place of a step, for a message."""
        return f"epoch {epoch + 1}, step {step + 1} of {self.steps}"


def _one_ahead(load: Callable[[int, int, int], Batch], keys: Sequence[tuple[int, int, int]]) -> Iterator[Batch]:
    """The batches of ``keys``; a thread loads the next one while the caller computes."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        following: list[Future[Batch]] = []
        for key in keys:
            following.append(pool.submit(load, *key))
            if len(following) == 2:
                yield following.pop(0).result()
        for last in following:
            yield last.result()


class _Keyed(TorchDataset[Batch | BadImage]):
    """Batches as a torch data set, so that torch's loader can fetch an item by its key (epoch, step, part)."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __getitem__(self, key: Any) -> Batch | BadImage:
        try:
            return self.batches.load(*key)
        except BadImage as error:  # returned, not raised: the loader would wrap it in words of its own
            return error


class ShuffledBatches(Batches):
    """All images in a new order in every epoch: (images ``(n, 3, s, s)``, labels ``(n,)``).

    A step has ``batch_size`` images over all processes; the last images of an epoch that do not fill a step are
    left out.
    """

    def __init__(
        self, images: AugmentedImages, settings: StageSettings, name: str, seed: int, process: Process
    ) -> None:
        assert isinstance(settings, BatchSettings)
        super().__init__(images, settings, name, seed, process)
        count = len(images.dataset)
        self.batch_size = min(settings.batch_size, count)
        pieces = settings.accumulate * process.count
        if self.batch_size % pieces:
            raise UserError(
                f"{name}: a batch of {self.batch_size} images cannot be cut into equal parts for {process.count} "
                f"processes × accumulate={settings.accumulate}: choose a batch_size that is a multiple of {pieces}"
            )
        if settings.small_size is not None and settings.small_size > images.preprocessing.input_size:
            raise UserError(
                f"{name}.small_size is {settings.small_size}, larger than the images of the network, which have "
                f"{images.preprocessing.input_size} pixels"
            )
        self.small_epochs, self.small_size = settings.small_epochs, settings.small_size
        self.parts = settings.accumulate
        self.steps = count // self.batch_size
        self.images_per_step = self.batch_size

    def load(self, epoch: int, step: int, part: int) -> Batch:
        """Load this process's images of one part of a step."""
        indices = self.piece(epoch, step, part)
        piece = part * self.process.count + self.process.rank
        images = self.images.load(indices, derive(self.seed, self.name, "images", epoch, step, piece))
        if epoch < self.small_epochs:
            images = interpolate(images, size=self.small_size, mode="bilinear", antialias=True)
        return images, self.images.dataset.labels[torch.from_numpy(indices)]

    def piece(self, epoch: int, step: int, part: int) -> NDArray[np.int64]:
        """The images of this process in one part of a step, as indices of the data set."""
        chosen = self._order(epoch)[step * self.batch_size : (step + 1) * self.batch_size]
        number = part * self.process.count + self.process.rank
        size = self.batch_size // (self.parts * self.process.count)
        return chosen[number * size : (number + 1) * size]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """The order of the images in an epoch; the last one asked for is kept."""
        known: tuple[int, NDArray[np.int64]] | None = getattr(self, "_known", None)
        if known is None or known[0] != epoch:
            generator = torch.Generator().manual_seed(derive(self.seed, self.name, "order", epoch))
            known = (epoch, torch.randperm(len(self.images.dataset), generator=generator).numpy())
            self._known = known
        return known[1]


class EpisodeBatches(Batches):
    """Episodes; each part of a step is one `TrainingEpisode`."""

    steps_depend_on_data = False
    episodes_in_part: ClassVar[int] = 1
    """Episodes of the same classes, without a common image, that are given as one `TrainingEpisode`."""

    def __init__(
        self, images: AugmentedImages, settings: StageSettings, name: str, seed: int, process: Process
    ) -> None:
        assert isinstance(settings, EpisodeSettings)
        super().__init__(images, settings, name, seed, process)
        self.per_step = settings.episodes_per_step
        if self.per_step % process.count:
            raise UserError(
                f"{name}: {self.per_step} episodes per step cannot be shared equally by {process.count} "
                f"processes: choose {name}.episodes_per_step as a multiple of {process.count}"
            )
        if settings.episodes < self.per_step:
            raise UserError(f"{name}: {settings.episodes} episodes per epoch do not fill a step of {self.per_step}")
        self.parts = self.per_step // process.count
        self.steps = settings.episodes // self.per_step
        several = self.episodes_in_part
        (fewest, most), query = limits(settings.shot), several * settings.query
        shot = several * fewest, several * most
        self.images_per_step = self.per_step * limits(settings.way)[1] * (shot[1] + query)
        stream_seed = derive(seed, name, "episodes")
        self.stream = EpisodeStream(images.dataset, settings.way, shot, query, stream_seed)

    def load(self, epoch: int, step: int, part: int) -> Batch:
        """Load one episode of this process."""
        number = (epoch * self.steps + step) * self.per_step + part * self.process.count + self.process.rank
        episode = self.stream[number]
        indices = np.concatenate([episode.support, episode.query])
        images = self.images.load(indices, derive(self.seed, self.name, "images", number))
        labels = (episode.support_labels, episode.query_labels, episode.classes)
        return images, *(torch.from_numpy(values) for values in labels)


class PairedEpisodeBatches(EpisodeBatches):
    """Pairs of episodes of the same classes, without a common image.

    Each part of a step is one `TrainingEpisode` with twice the ``shot`` and twice the ``query`` of the settings; which
    half of the images of a class belongs to which episode is up to the method.
    """

    episodes_in_part = 2
