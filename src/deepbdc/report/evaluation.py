"""The work of ``deepbdc evaluate``: evaluate a trained run or another model, and show the results as a table."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepbdc._files import write_json
from deepbdc.evaluation import EvaluationResult, evaluate
from deepbdc.methods import Method
from deepbdc.preprocessing import AtTestTime
from deepbdc.provenance import origin

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from deepbdc.embedding import Embedding
    from deepbdc.feature_bank import Shard
    from deepbdc.runs import Run


TRANSDUCTIVE = "† = transductive: the answer for a query depends on the other queries of its episode"
ASSUMES_BALANCE = "‡ = assumes that all classes of an episode have equally many queries"


@dataclass(frozen=True)
class EvaluationRequest:
    """Which model to evaluate, on which data and episodes. The fields from ``pool`` on are for models without a run."""

    model: str
    data: str
    split: str = "test"
    shots: tuple[int, ...] = (1, 5)
    way: int = 5
    query: int = 15
    episodes: int = 2000
    seed: int = 0
    unbalanced: bool = False
    dirichlet: float = 1.0
    crops: int = 1
    crop_side: float = AtTestTime.crop_side
    centre: bool = False
    power: float = 1.0
    classifier: str | None = None
    """None: the classifier of the run; for a model without a run, ``prototype``."""
    ensemble: tuple[str, ...] = ()
    """Further runs whose networks answer together with that of ``model``."""
    pool: str = "bdc"
    reduce_to: int | None = None
    width: float = 1.0
    removed_downsamplings: int | None = None
    size: int | None = None

    @property
    def test_time(self) -> AtTestTime:
        """What is made of each image besides the usual."""
        return AtTestTime(self.crops, self.crop_side, self.centre, self.power)


def run(
    request: EvaluationRequest,
    trained: "Run | None" = None,
    *,
    cache: str | Path | None = None,
    root: str | Path | None = None,
    skip_bad: bool = False,
    progress: bool = False,
    device: "str | torch.device" = "cpu",
    shard: "Shard | None" = None,
    base: str | Path | None = None,
) -> list[EvaluationResult]:
    """Evaluate a model for each number of shots. The images are embedded only once.

    Args:
        request: What to evaluate.
        trained: The run to evaluate (None: the model that ``request`` describes).
        device: The device that embeds images and scores episodes.
        cache, shard, progress: As for `build_bank`.
        root, skip_bad: As for `load_dataset`.
        base: Where the training images of the run are, if they are not where its training found them.
    """
    from deepbdc.data.loading import load_dataset
    from deepbdc.data.shrunk import shrunk
    from deepbdc.episodes import sample_episodes
    from deepbdc.runs import source_of_run
    from deepbdc.sources import prepare_source

    method = _method(request, trained).to(device)
    dataset = load_dataset(request.data, request.split, root=root, skip_bad=skip_bad)
    if trained is not None:
        dataset = shrunk(dataset, trained.recipe.shrink_to, progress=progress)
    kind: dict[str, Any] = {"unbalanced": request.unbalanced, "dirichlet": request.dirichlet}
    drawn = [  # before the slow part, because most mistakes in a request show here
        sample_episodes(dataset, request.way, shot, request.query, request.episodes, request.seed, **kind)
        for shot in request.shots
    ]
    options: dict[str, Any] = {"cache": cache, "progress": progress, "device": device, "shard": shard}
    if trained is None:
        source = prepare_source(method, dataset, request.test_time, **options)
    else:
        source = source_of_run(replace(trained, method=method), dataset, request.test_time, base, **options)
    return [evaluate(method, dataset, episodes=episodes, bank=source, progress=progress) for episodes in drawn]


def _method(request: EvaluationRequest, trained: "Run | None") -> Method:
    """The method to evaluate: that of the run, or an embedding with the requested classifier."""
    from deepbdc.classifiers import create_classifier

    if trained is not None and request.classifier is None:
        return trained.method
    embedding = build_embedding(request) if trained is None else trained.method.embedding
    return Method(embedding, create_classifier(request.classifier or "prototype"))


def build_embedding(request: EvaluationRequest) -> "Embedding":
    """The embedding that the request describes. Weights that are not from ImageNet are random, from its seed."""
    import torch

    from deepbdc.backbones import create_backbone
    from deepbdc.embedding import Embedding, pixel_embedding
    from deepbdc.pooling import AveragePool, BDCPool, Pool

    if request.model == "pixels":
        return pixel_embedding(request.size or 32)
    options: dict[str, Any] = {} if request.width == 1 else {"width": request.width}
    with torch.random.fork_rng():
        torch.manual_seed(request.seed)
        backbone = create_backbone(request.model, request.removed_downsamplings, **options)
        channels = backbone.out_channels
        pool: Pool = BDCPool(channels, request.reduce_to) if request.pool == "bdc" else AveragePool(channels)
    preprocessing = backbone.preprocessing
    if request.size is not None:
        preprocessing = replace(preprocessing, input_size=request.size, resize=request.size)
    return Embedding(backbone, pool, preprocessing).eval()


def default_output(request: EvaluationRequest, results: Sequence[EvaluationResult], trained: "Run") -> Path:
    """The default file for results, in the folder of the run. If one stage was evaluated, its name is included."""
    file = Path(request.model)
    stage = file.stem if file.is_file() and file.name != "model.safetensors" else None
    kind = f"unbalanced-{request.dirichlet:g}" if request.unbalanced else None
    crops = f"crops-{request.crops}" if request.crops > 1 else None
    side = f"side-{request.crop_side:g}" if request.test_time.has_corners else None
    others = "-".join(["with", *(Path(name).name for name in request.ensemble)]) if request.ensemble else None
    power = f"power-{request.power:g}" if request.power != 1 else None
    shown = [request.classifier, others, kind, crops, side, power, "centred" if request.centre else None]
    parts = ["evaluation", stage, results[0].dataset, results[0].split, *shown]
    name = "-".join(part.replace("->", "_to_") for part in parts if part)
    return trained.folder / (re.sub(r"[^\w.-]", "_", name) + ".json")


def table(request: EvaluationRequest, results: Sequence[EvaluationResult], trained: bool = False) -> "Table":
    """The results of a request as a table: accuracies with 95 % intervals, one column per number of shots."""
    if trained:
        names = " + ".join([request.model, *request.ensemble])
        return results_table(names, results, request.classifier or "the run's own")
    weights = "trained on ImageNet" if request.model.startswith("efficientnet_lite") else "untrained"
    model = request.model if request.model == "pixels" else f"{request.model} ({weights}), {request.pool}"
    return results_table(model, results, request.classifier or "prototype")


def class_interval_in_words(interval: float | None) -> str:
    """The interval over classes in brackets, like ``(± 2.1)``, with two or three digits; empty if there is none."""
    if interval is None:
        return ""
    return f"(± {interval:.1f})" if interval >= 0.995 else f"(± {interval:.2f})"


def explain_intervals(results: Sequence[EvaluationResult]) -> list[str]:
    """Lines for a caption that say what the intervals of the results mean."""
    count = len(results[0].class_names)
    lines = [f"accuracy in % ± 95 % interval over episodes of these {count} classes (seed {results[0].seed})"]
    if any(result.ci95_classes is not None for result in results):
        lines.append(f"(± 95 % interval over classes: these {count} as a sample of all such classes)")
    return lines


def mark(transductive: bool, assumes_balanced_queries: bool) -> str:
    """What to put behind the name of a transductive method: its results are not comparable with inductive ones.

    A second mark is for methods that assume balanced queries.
    """
    return " †" + "‡" * assumes_balanced_queries if transductive else ""


def transductive_mark(results: Sequence[EvaluationResult]) -> str:
    """The `mark` of the method that has these results."""
    transductive = any(result.transductive for result in results)
    return mark(transductive, any(result.assumes_balanced_queries for result in results))


def footnotes(results: Sequence[EvaluationResult]) -> list[str]:
    """A line for each mark of `transductive_mark` that the results need."""
    found = [TRANSDUCTIVE] if any(result.transductive for result in results) else []
    assuming = [result for result in results if result.transductive and result.assumes_balanced_queries]
    if assuming:
        wrong = any(result.unbalanced for result in assuming)
        found.append(ASSUMES_BALANCE + (", which is not so in these" if wrong else ""))
    return found


def queries_in_words(result: EvaluationResult) -> str:
    """How many queries the episodes have, and whether they are unbalanced."""
    if not result.unbalanced:
        return f"{result.query} queries per class"
    return f"{result.query} queries per class on average, unbalanced (Dirichlet {result.dirichlet:g})"


def results_table(model: str, results: Sequence[EvaluationResult], classifier: str | None = None) -> "Table":
    """A table with the accuracies of one model and both of their 95 % intervals, one column per number of shots."""
    from rich.table import Table
    from rich.text import Text

    first = results[0]
    tasks = f"{first.way}-way, {queries_in_words(first)}, {len(first.accuracies)} episodes"
    caption = "\n".join([*explain_intervals(results), f"source: {first.kept}", *footnotes(results)])
    laid_out = Table(title=f"{first.dataset} {first.split}, {tasks}", caption=caption)
    laid_out.add_column("model")
    if classifier is not None:
        laid_out.add_column("classifier")
    for result in results:
        laid_out.add_column(f"{result.shot}-shot", justify="right")
    marked = model + transductive_mark(results)
    names = (marked,) if classifier is None else (marked, classifier)
    laid_out.add_row(*map(Text, names), *(_accuracy(result) for result in results))
    return laid_out


def _accuracy(result: EvaluationResult) -> str:
    """Text like ``61.96 ± 0.50``, with the interval over classes on a second line, so that tables fit 80 columns."""
    return f"{result}\n{class_interval_in_words(result.ci95_classes)}".rstrip()


def write_results(
    path: Path,
    request: EvaluationRequest,
    results: Sequence[EvaluationResult],
    trained: "Run | None" = None,
    looks: int | None = None,
) -> None:
    """Write the request, all results and where they come from as JSON.

    Args:
        path: The file to write.
        request: What was evaluated.
        results: The results, one for each number of shots.
        trained: The run that was evaluated, if it was one.
        looks: How often the run has looked at these test classes, see `record_look`.
    """
    run: dict[str, Any] = {}
    if trained is not None:
        recipe, classes = trained.recipe, len(trained.class_names)
        run = {"method": recipe.method, "training_seed": recipe.seed}
        run |= {"trained_on": {"data": recipe.data, "classes": classes}}
        run |= {"ensemble": list(request.ensemble)} if request.ensemble else {}
    content = {**origin(), **run, "looks": looks, "request": asdict(request)}
    write_json(path, {**content, "results": [result.as_json() for result in results]})
