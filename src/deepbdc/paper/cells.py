"""The numbers of a table: each row's results on the same episodes, or the reason why there is none."""

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from deepbdc.data.dataset import Dataset
from deepbdc.data.loading import find_data, load_dataset
from deepbdc.episodes import Episodes, sample_episodes
from deepbdc.errors import UserError
from deepbdc.evaluation import EvaluationResult, episodes_fingerprint, evaluate
from deepbdc.gallery import load_result
from deepbdc.methods import Method
from deepbdc.paper.experiments import Experiment, Row
from deepbdc.paper.settings import NotPossible, Setting
from deepbdc.paper.trainings import Training, carry_out, training_of
from deepbdc.preprocessing import AtTestTime
from deepbdc.provenance import record_look
from deepbdc.recipes import Evaluation, Recipe
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
    """

    def __init__(self, setting: Setting, console: "Console", seconds: float | None = None, quiet: bool = False) -> None:
        self.setting, self.console, self.quiet = setting, console, quiet
        self._budget = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    @cached_property
    def splits(self) -> dict[str, Dataset]:
        """The data set."""
        return self.setting.load_data()

    def fill(self, experiment: Experiment) -> list[FilledRow]:
        """All rows of an experiment. A row that cannot be filled has a reason in its cells."""
        return [self._fill_row(experiment, row) for row in experiment.rows]

    def trainings(self, experiments: Iterable[Experiment]) -> list[Training]:
        """The trainings behind experiments, each once."""
        found: dict[Path, Training] = {}
        for experiment in experiments:
            for row in experiment.rows:
                for shot in experiment.shots:
                    try:
                        recipe = self._recipe(experiment, row, shot)
                    except NotPossible:
                        continue
                    for one in self._seeds(recipe):
                        training = self._training(one)
                        found[training.folder] = training
        return list(found.values())

    def _fill_row(self, experiment: Experiment, row: Row) -> FilledRow:
        cells: dict[int, Cell] = {}
        recipes: dict[int, Recipe] = {}
        for shot in experiment.shots:
            try:
                recipes[shot] = self._recipe(experiment, row, shot)
                cells[shot] = self._cell(experiment, row, recipes[shot], shot)
            except (NotPossible, TrainingError) as error:
                cells[shot] = Cell(reason=str(error))
        return FilledRow(row, cells, recipes)

    def _recipe(self, experiment: Experiment, row: Row, shot: int) -> Recipe:
        if experiment.target is not None and self.setting.target is None:
            raise NotPossible("needs images of another domain: --target DATA")
        try:
            return self.setting.recipe(row, shot)
        except NotPossible:
            raise
        except UserError as error:
            raise NotPossible(str(error)) from error

    def _seeds(self, recipe: Recipe) -> list[Recipe]:
        """The recipe with its own seed, and with the seeds that follow it."""
        return [replace(recipe, seed=recipe.seed + place) for place in range(self.setting.seeds)]

    def _training(self, recipe: Recipe) -> Training:
        return training_of(self.setting, recipe, self.splits["train"].fingerprint)

    def _cell(self, experiment: Experiment, row: Row, recipe: Recipe, shot: int) -> Cell:
        trained = [self._trained(experiment, row, one) for one in self._seeds(recipe)]
        first, *others = [self._result(experiment, row, training, shot) for training in trained]
        return Cell(first, trained[0].folder, other_seeds=tuple(others))

    def _trained(self, experiment: Experiment, row: Row, recipe: Recipe) -> Training:
        training = self._training(recipe)
        if not training.finished:
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
        dataset = self._test_data(experiment)
        episodes = draw(dataset, training.recipe.evaluation_settings, shot)
        wanted, test_time = episodes_fingerprint(episodes), training.recipe.evaluation_settings.test_time
        own = row.classifier is None
        kept = load_result(training.folder).results if own and experiment.target is None else ()
        for result in kept:
            if result.episodes_fingerprint == wanted and result.test_time == test_time:
                return result
        file = (training.folder / MODEL).stat()
        content = "|".join(map(str, (training.folder, file.st_mtime_ns, file.st_size, row.classifier, wanted)))
        content += "".join(f"|{words}" for words in test_time.in_words())
        key = hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
        path = self.setting.output / "results" / f"{row.method}-{key}.json"
        if path.is_file():
            return EvaluationResult.load(path)
        self.say(f"{experiment.place}, {row.name}: evaluating {training.folder} with {shot} shots")
        result = evaluate_run(training.folder, dataset, episodes, row.classifier, test_time)
        record_look(training.folder, "paper", [result])
        result.save(path)
        return result

    def _test_data(self, experiment: Experiment) -> Dataset:
        if experiment.target is None:
            if "test" not in self.splits:
                raise NotPossible(f"{self.setting.data} has no test classes")
            return self.splits["test"]
        assert self.setting.target is not None
        name, root = find_data(experiment.target, self.setting.target)
        return load_dataset(name, "test", root=root)

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
    source = source_of_run(replace(run, method=method), dataset, test_time)
    return evaluate(method, dataset, episodes=episodes, bank=source)


def baseline_of(experiment: Experiment, rows: Sequence[FilledRow]) -> FilledRow | None:
    """The row to which the others are compared."""
    return next((row for row in rows if row.row.method == experiment.baseline), None)
