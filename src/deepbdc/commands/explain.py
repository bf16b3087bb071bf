"""``deepbdc explain``: why a picture gets its label."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from deepbdc.commands.examples import ExampleSource
from deepbdc.commands.options import OUTPUT, EstimatorOptions
from deepbdc.commands.targets import check_output
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from deepbdc.estimator import Explanation, FewShotClassifier

PICTURES = (".png", ".jpg", ".jpeg", ".webp")


def explain_image(
    examples: Path,
    image: Path,
    /,
    *,
    output: Annotated[Path | None, Parameter(alias="-o", metavar="FILE", group=OUTPUT)] = None,
    label: Annotated[str | None, Parameter(metavar="CLASS")] = None,
    neighbours: Annotated[int, Parameter(metavar="COUNT")] = 5,
    options: EstimatorOptions | None = None,
) -> None:
    """Show why a picture gets its label: where the evidence is, and which examples are similar.

    For example:

        deepbdc explain examples photos/1.jpg -o why.png
        deepbdc explain birds.safetensors photos/1.jpg -o why.png --label heron

    The command prints the most likely classes and the most similar examples. With --output it also draws the
    picture with a heat map on it: red parts support the class, blue parts contradict it.

    Args:
        examples: A folder that contains one folder of example pictures for each class, or a classifier saved by
            `deepbdc fit` (.safetensors).
        image: The picture to explain.
        output: Where to write the picture with the heat map, as .png, .jpg or .webp (default: nowhere).
        label: The class to explain (default: the most likely one).
        neighbours: How many of the most similar examples to show.
    """
    from rich.console import Console

    from deepbdc.report.classification import say
    from deepbdc.sorting import not_there

    console = Console()
    settings = options.given() if options else {}
    if output is not None and output.suffix.lower() not in PICTURES:
        raise UserError(f"--output must end in {', '.join(PICTURES)}, got {str(output)!r}")
    check_output(output, replaces=True)
    if neighbours < 0:
        raise UserError(f"--neighbours must be at least 0, got {neighbours}")
    if not image.is_file():
        raise UserError(f"{image} is a folder: give one picture" if image.exists() else not_there(image))
    fitted = ExampleSource.find(examples, settings).classifier()
    explanation = fitted.explain(image, label=_known_label(fitted, label), neighbours=neighbours)
    _print_explanation(console, explanation, [str(name) for name in fitted.classes_])
    if output is not None:
        explanation.save(output)
        say(console, f"Explanation: {output}. Red parts speak for {explanation.label}, blue parts against it.")


def _known_label(fitted: "FewShotClassifier", given: str | None) -> Any:
    """Return the label of the class whose name was given; None if none was given."""
    from deepbdc._registry import nearest

    names = {str(name): name for name in fitted.classes_}
    if given is not None and given not in names:
        raise UserError(f"no class is called {given!r}{nearest(given, list(names))}")
    return None if given is None else names[given]


def _print_explanation(console: "Console", explanation: "Explanation", classes: Sequence[str], most: int = 5) -> None:
    """Print the label, the ``most`` likely classes and the nearest examples."""
    from rich.table import Table
    from rich.text import Text

    from deepbdc.report.classification import percent, say, visible

    prediction = explanation.prediction
    say(console, f"{prediction.name}: {prediction.label}, {percent(prediction.probability)}")
    if prediction.rejected:
        say(console, "It looks like none of the classes: 'deepbdc classify --reject' would label it so.")
    if explanation.label != prediction.label:
        say(console, f"The heat map shows what speaks for {explanation.label}, as you asked.")
    table = Table("class", "probability", title="Most likely classes", title_justify="left")
    table.columns[1].justify = "right"
    pairs = sorted(zip(prediction.probabilities, classes, strict=True), key=lambda pair: -pair[0])
    for probability, name in pairs[:most]:
        table.add_row(Text(visible(name)), percent(float(probability)))
    console.print(table)
    table = Table("example", "class", "similarity", title="Most similar examples", title_justify="left")
    table.columns[2].justify = "right"
    table.columns[2].no_wrap = True
    for neighbour in explanation.nearest:
        texts = (Text(visible(text), overflow="fold") for text in (neighbour.name, neighbour.label))
        table.add_row(*texts, f"{neighbour.similarity:.3f}")
    console.print(table)
