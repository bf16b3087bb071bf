"""``deepbdc suggest``: which pictures to label next."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from deepbdc._words import counted
from deepbdc.commands.examples import ExampleSource, find_files, progress_bar
from deepbdc.commands.options import OUTPUT, EstimatorOptions, Flag
from deepbdc.commands.targets import check_output
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from deepbdc.estimator import EmbeddedImage, FewShotClassifier
    from deepbdc.own_images.suggesting import Suggestion


def suggest_pictures(
    examples: Path,
    /,
    *pictures: Path,
    number: Annotated[int, Parameter(alias="-n", metavar="COUNT")] = 10,
    json: Annotated[Path | None, Parameter(metavar="FILE", group=OUTPUT)] = None,
    force: Annotated[Flag, Parameter(group=OUTPUT)] = False,
    options: EstimatorOptions | None = None,
) -> None:
    """Choose the few pictures whose labels would teach most, so that you label those and not just any.

    The chosen pictures are those that the classifier is unsure about, that many others resemble, and that are
    unlike each other. For example:

        deepbdc suggest examples photos -n 10

    Look at the pictures in the order of the list, put each into the folder of its class in `examples`, and give the
    command again. The most likely class is named, so that you often need only confirm it.

    Args:
        examples: A folder that contains one folder of example pictures for each class, or a classifier saved by
            `deepbdc fit` (.safetensors).
        pictures: Pictures without labels: files, and folders, which are searched with all their subfolders.
        number: How many pictures to choose.
        json: Write the list to this file as JSON.
        force: Replace the file of --json if it exists.
    """
    from rich.console import Console

    from deepbdc._files import write_json
    from deepbdc.own_images.suggesting import suggest
    from deepbdc.report.classification import say

    console = Console()
    if number < 1:
        raise UserError(f"-n must be at least 1, got {number}")
    check_output(json, force=force)
    source = ExampleSource.find(examples, options.given() if options else {})
    files = find_files(pictures, source, "deepbdc suggest examples photos")
    fitted = source.classifier()
    embedded = _embed(fitted, files, console)
    found = suggest(fitted, embedded, number)
    _print(console, found, len(embedded))
    if json is not None:
        write_json(json, {"suggestions": [_record(one) for one in found]})
        say(console, f"Suggestions: {json}")


def _embed(fitted: "FewShotClassifier", files: "Sequence[Path]", console: "Console") -> "list[EmbeddedImage]":
    """Send the pictures through the network, with a progress bar. Those that cannot be read are named and left out."""
    from rich.console import Console

    from deepbdc.data.images import BadImage
    from deepbdc.report.classification import print_list

    bad: list[BadImage] = []
    embedded: list[EmbeddedImage] = []
    with progress_bar(Console(stderr=True), "Looking", len(files)) as advance:
        for start in range(0, len(files), fitted.batch_size):
            chunk = files[start : start + fitted.batch_size]
            embedded += fitted.embed(list(chunk), on_bad=bad.append)
            advance(len(chunk))
    print_list(console, "Could not be read", [str(error) for error in bad])
    if not embedded:
        raise UserError("none of the pictures can be read")
    return embedded


def _print(console: "Console", found: "Sequence[Suggestion]", pictures: int) -> None:
    from rich.table import Table
    from rich.text import Text

    from deepbdc.report.classification import percent, say, visible

    table = Table("", "picture", "perhaps", "prob.", "or", "like it", title="Label these next", title_justify="left")
    for column in (0, 3, 5):
        table.columns[column].justify = "right"
        table.columns[column].no_wrap = True
    for place, one in enumerate(found, start=1):
        names = (Text(visible(text), overflow="fold") for text in (one.name, one.label, one.runner_up or ""))
        name, label, runner_up = names
        table.add_row(str(place), name, label, percent(one.probability), runner_up, f"{one.explains:,}")
    console.print(table)
    say(
        console,
        f"Chosen from {counted(pictures, 'picture')}. 'like it' is how many of them are more similar to this one than "
        "to any example, or to a picture above it.",
    )


def _record(one: "Suggestion") -> dict[str, object]:
    return {
        "picture": one.name,
        "label": str(one.label),
        "probability": round(one.probability, 6),
        "runner_up": None if one.runner_up is None else str(one.runner_up),
        "like_it": one.explains,
    }
