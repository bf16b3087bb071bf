"""What ``deepbdc evaluate`` does: build a model from its options, evaluate it, and lay the results out as a table."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepbdc._files import write_text
from deepbdc.evaluation import EvaluationResult, evaluate
from deepbdc.methods import Method

if TYPE_CHECKING:
    from rich.table import Table

    from deepbdc.embedding import Embedding


@dataclass(frozen=True)
class EvaluationRequest:
    """What is to be evaluated on what."""

    model: str
    pool: str
    classifier: str
    data: str
    split: str
    shots: tuple[int, ...]
    way: int
    query: int
    episodes: int
    seed: int
    reduce_to: int | None = None
    width: float = 1.0
    removed_downsamplings: int | None = None
    size: int | None = None


def run(
    request: EvaluationRequest,
    *,
    cache: str | Path | None = None,
    root: str | Path | None = None,
    output: str | Path | None = None,
    skip_bad: bool = False,
    progress: bool = False,
) -> list[EvaluationResult]:
    """Evaluate for each number of shots, embedding the images once. ``output`` is a JSON file for all results."""
    from deepbdc.classifiers import create_classifier
    from deepbdc.data.loading import load_dataset
    from deepbdc.episodes import sample_episodes
    from deepbdc.feature_bank import build_bank

    method = Method(build_embedding(request), create_classifier(request.classifier))
    dataset = load_dataset(request.data, request.split, root=root, skip_bad=skip_bad)
    drawn = [  # first, as it is where most mistakes show
        sample_episodes(dataset, request.way, shot, request.query, request.episodes, request.seed)
        for shot in request.shots
    ]
    bank = build_bank(method.embedding, dataset, cache=cache, progress=progress)
    results = [evaluate(method, dataset, episodes=episodes, bank=bank) for episodes in drawn]
    if output is not None:
        _write(Path(output), request, results)
    return results


def build_embedding(request: EvaluationRequest) -> "Embedding":
    """The embedding that the options describe, with random weights of the seed."""
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


def table(request: EvaluationRequest, results: list[EvaluationResult]) -> "Table":
    """Accuracies with 95 % intervals, a column for each number of shots."""
    from rich.table import Table

    first = results[0]
    title = f"{first.dataset} {first.split}, {request.way}-way, {request.query} queries, {request.episodes} episodes"
    laid_out = Table(title=title, caption=f"accuracy in % ± 95 % interval; kept: {first.kept}; seed {request.seed}")
    laid_out.add_column("model")
    laid_out.add_column("classifier")
    for shot in request.shots:
        laid_out.add_column(f"{shot}-shot", justify="right")
    model = request.model if request.model == "pixels" else f"{request.model} (untrained), {request.pool}"
    laid_out.add_row(model, request.classifier, *(str(result) for result in results))
    return laid_out


def _write(path: Path, request: EvaluationRequest, results: list[EvaluationResult]) -> None:
    content = {"request": asdict(request), "results": [result.as_json() for result in results]}
    write_text(path, json.dumps(content, indent=1) + "\n")
