"""The numbers of a table: each row's results on the same episodes, or the reason why there is none."""

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from deepbdc._files import write_json
from deepbdc.data.dataset import Dataset
from deepbdc.data.shrunk import shrunk
from deepbdc.episodes import Episodes, sample_episodes
from deepbdc.errors import UserError
from deepbdc.evaluation import EvaluationResult, episodes_fingerprint, evaluate
from deepbdc.gallery import load_result
from deepbdc.methods import Method
from deepbdc.paper.experiments import Experiment, Row
from deepbdc.paper.settings import NotPossible, Setting
from deepbdc.paper.trainings import Training, carry_out, training_of
from deepbdc.preprocessing import AtTestTime
from deepbdc.provenance import looks_of, origin, record_look
from deepbdc.recipes import Evaluation, Recipe, build_method
from deepbdc.runs import MODEL, load_run, source_of_run
from deepbdc.training.run import Interrupted, TrainingError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Cell:
    """One number of ours: a result and the run that made it, or the reason why there is none."""

    result: EvaluationResult | None = None
    run: Path | None = None
    reason: str = ""
    other_seeds: tuple[EvaluationResult, ...] = ()
    """The results of the same training with other seeds, if there are any."""
    seed: int | None = None
    """The seed of the training."""
    looks: int | None = None
    """How often the run has looked at these test classes, this result included."""


@dataclass(frozen=True)
class FilledRow:
    """A row with its results."""

    row: Row
    cells: dict[int, Cell]
    """By shots."""
    recipes: dict[int, Recipe] = field(default_factory=dict)
    """What trained it, by shots; empty if there is no recipe."""


class Bench:
    """Fills the cells of experiments in one setting, within a budget of time.

    Args:
        setting: The data, the network and the folders.
        console: Where to print what is being done.
        seconds: After this time no further training is started. None: no limit.
        quiet: Whether to print only the tables.
        train: Whether to train what is missing. If not, rows without a finished run stay empty.
    """

    def __init__(
        self,
        setting: Setting,
        console: "Console",
        seconds: float | None = None,
        quiet: bool = False,
        train: bool = True,
    ) -> None:
        self.setting, self.console, self.quiet, self.train = setting, console, quiet, train
        self._budget = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    @cached_property
    def splits(self) -> dict[str, Dataset]:
        """The data set."""
        return self.setting.load_data()

    def check(self, chosen: Iterable[Experiment]) -> None:
        """Raise an error if a setting is wrong for all rows: no such data, recipes or network, or no such value."""
        self.setting.check()
        self.splits  # noqa: B018 - loads the data
        rows = [(row, shot) for experiment in chosen for row in experiment.rows for shot in experiment.shots]
        mistake: UserError | None = None
        for row, shot in rows:
            try:
                build_method(self.setting.recipe(row, shot))
                return
            except NotPossible:
                continue
            except UserError as error:
                mistake = mistake or error
        if mistake is not None:
            raise mistake

    def fill(self, experiment: Experiment) -> list[FilledRow]:
        """All rows of an experiment. A row that cannot be filled has a reason in its cells."""
        return [self._fill_row(experiment, row) for row in experiment.rows]

    def trainings(self, experiments: Iterable[Experiment]) -> list[Training]:
        """The trainings behind experiments, each once."""
        found = [training for experiment in experiments for _, _, training in self.cells(experiment)]
        return list({training.folder: training for training in found}.values())

    def cells(self, experiment: Experiment) -> Iterator[tuple[Row, int, Training]]:
        """The row, the shots and the training of each result of an experiment, without those that cannot be."""
        for row in experiment.rows:
            for shot in experiment.shots:
                try:
                    recipe = self._recipe(experiment, row, shot)
                except NotPossible:
                    continue
                for one in self._seeds(recipe):
                    yield row, shot, self._training(one)

    def _fill_row(self, experiment: Experiment, row: Row) -> FilledRow:
        cells: dict[int, Cell] = {}
        recipes: dict[int, Recipe] = {}
        for shot in experiment.shots:
            try:
                recipes[shot] = self._buildable(experiment, row, shot)
                cells[shot] = self._cell(experiment, row, recipes[shot], shot)
            except (NotPossible, TrainingError) as error:
                cells[shot] = Cell(reason=str(error))
        return FilledRow(row, cells, recipes)

    def _recipe(self, experiment: Experiment, row: Row, shot: int) -> Recipe:
        if experiment.target is not None and self.setting.target is None:
            raise NotPossible(
                "ours needs test images of another domain than the training images: give them with --target, "
                f"for example --target {experiment.target}"
            )
        try:
            return self.setting.recipe(row, shot)
        except NotPossible:
            raise
        except UserError as error:
            raise NotPossible(str(error)) from error

    def _buildable(self, experiment: Experiment, row: Row, shot: int) -> Recipe:
        """The recipe of a row, with options that its method has and that fit its network."""
        recipe = self._recipe(experiment, row, shot)
        try:
            build_method(recipe)
        except UserError as error:
            raise NotPossible(str(error)) from error
        return recipe

    def _seeds(self, recipe: Recipe) -> list[Recipe]:
        """The recipe with its own seed, and with the seeds that follow it."""
        return [replace(recipe, seed=recipe.seed + place) for place in range(self.setting.seeds)]

    def _training(self, recipe: Recipe) -> Training:
        return training_of(self.setting, recipe, self.splits["train"].fingerprint)

    def _cell(self, experiment: Experiment, row: Row, recipe: Recipe, shot: int) -> Cell:
        trained = [self._trained(experiment, row, one) for one in self._seeds(recipe)]
        first, *others = [self._result(experiment, row, training, shot) for training in trained]
        folder = trained[0].folder
        looks = looks_of(folder, first.data_fingerprint)
        return Cell(first, folder, other_seeds=tuple(others), seed=recipe.seed, looks=looks)

    def _trained(self, experiment: Experiment, row: Row, recipe: Recipe) -> Training:
        training = self._training(recipe)
        if not training.finished:
            if not self.train:
                raise NotPossible("not trained yet")
            if self._end is not None and time.monotonic() > self._end:
                assert self._budget is not None
                raise NotPossible(f"not trained: the budget of {self._budget / 60:g} minutes was used up")
            self.say(f"{experiment.place}, {row.name}: training {training.folder}")
            try:
                carry_out(self.setting, training, self.quiet)
            except TrainingError:
                raise
            except UserError as error:
                raise NotPossible(str(error)) from error
            except Interrupted as error:
                raise KeyboardInterrupt(f"{error} Or repeat this 'deepbdc paper', which continues the run.") from error
        return training

    def _result(self, experiment: Experiment, row: Row, training: Training, shot: int) -> EvaluationResult:
        dataset, episodes = self.task(experiment, training, shot)
        stored = self.stored(experiment, row, training, episodes)
        if stored is not None:
            return stored
        self.say(f"{experiment.place}, {row.name}: evaluating {training.folder} with {shot} shots")
        test_time = training.recipe.evaluation_settings.test_time
        result = evaluate_run(training.folder, dataset, episodes, row.classifier, test_time)
        looks = record_look(training.folder, "paper", [result])
        about = {"method": row.method, "training_seed": training.recipe.seed, "run": str(training.folder)}
        content = {**origin(), **about, "looks": looks, "results": [result.as_json()]}
        write_json(self._evaluation_file(row, training, episodes), content)
        return result

    def task(self, experiment: Experiment, training: Training, shot: int) -> tuple[Dataset, Episodes]:
        """The test classes of an experiment, and the episodes on which all of its rows are evaluated."""
        dataset = self._test_data(experiment)
        return dataset, draw(dataset, training.recipe.evaluation_settings, shot)

    def stored(
        self, experiment: Experiment, row: Row, training: Training, episodes: Episodes
    ) -> EvaluationResult | None:
        """The result of a row on these episodes, if its training or an earlier call has computed it."""
        file = self._evaluation_file(row, training, episodes)
        kept = list(load_result(file).results) if file.is_file() else []
        if row.classifier is None and experiment.target is None:
            kept += load_result(training.folder).results
        wanted = episodes_fingerprint(episodes), training.recipe.evaluation_settings.test_time
        return next((result for result in kept if (result.episodes_fingerprint, result.test_time) == wanted), None)

    def _evaluation_file(self, row: Row, training: Training, episodes: Episodes) -> Path:
        """Where the result of a row is kept that is not that of the training itself."""
        model = (training.folder / MODEL).stat()
        test_time = training.recipe.evaluation_settings.test_time.in_words()
        drawn = episodes_fingerprint(episodes)
        content = (training.folder, model.st_mtime_ns, model.st_size, row.classifier, drawn, *test_time)
        key = hashlib.blake2b("|".join(map(str, content)).encode(), digest_size=8).hexdigest()
        return self.setting.output / "evaluations" / f"{row.method}-{key}.json"

    def _test_data(self, experiment: Experiment) -> Dataset:
        if experiment.target is None:
            if "test" not in self.splits:
                raise NotPossible(f"{self.setting.data} has no test classes")
            return self.splits["test"]
        return self.setting.load_target(experiment.target)

    def say(self, text: str) -> None:
        """Print what is being done, unless quiet."""
        if not self.quiet:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def draw(dataset: Dataset, chosen: Evaluation, shot: int) -> Episodes:
    """The episodes on which all rows are evaluated."""
    return sample_episodes(
        dataset,
        chosen.way,
        shot,
        chosen.query,
        chosen.episodes,
        chosen.seed,
        unbalanced=chosen.unbalanced,
        dirichlet=chosen.dirichlet,
    )


def evaluate_run(
    folder: Path, dataset: Dataset, episodes: Episodes, classifier: str | None, test_time: AtTestTime
) -> EvaluationResult:
    """A finished run on episodes, with its own classifier or another one."""
    from deepbdc.classifiers import create_classifier

    run = load_run(folder)
    method = run.method
    if classifier is not None:
        method = Method(method.embedding, create_classifier(classifier)).eval()
    dataset = shrunk(dataset, run.recipe.shrink_to)
    source = source_of_run(replace(run, method=method), dataset, test_time)
    return evaluate(method, dataset, episodes=episodes, bank=source)


def baseline_of(experiment: Experiment, rows: Sequence[FilledRow]) -> FilledRow | None:
    """The row to which the others are compared."""
    return next((row for row in rows if row.row.method == experiment.baseline), None)
