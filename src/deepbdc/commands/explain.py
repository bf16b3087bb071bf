"""``deepbdc explain``: why a picture gets its label."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepbdc.commands.common import errors_in_words
from deepbdc.commands.examples import Examples, given_options
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from deepbdc.estimator import Explanation, FewShotClassifier

PICTURES = (".png", ".jpg", ".jpeg", ".webp")


def explain_image(
    examples: str,
    image: str,
    output: str | None = None,
    label: str | None = None,
    neighbours: int = 5,
    backbone: str | None = None,
    pool: str | None = None,
    size: int | None = None,
    classifier: str | None = None,
    C: float | None = None,
    device: str | None = None,
) -> None:
    """Show why a picture gets its label: where in it the evidence lies, and which examples it resembles.

    The picture that is written shows the evidence as a heat map: what speaks for the class, and what
    against it. For example:

        deepbdc explain examples photos/1.jpg -o why.png
        deepbdc explain birds.safetensors photos/1.jpg -o why.png --label heron

    Args:
        examples: A folder with a folder for each class; or a classifier saved by 'deepbdc fit' (.safetensors).
        image: The picture.
        output: Where to write the explanation, as .png, .jpg or .webp (default: only print).
        label: The class to explain (default: the most likely one).
        neighbours: How many of the most similar examples to show.
        backbone: The network: the folder of a run of 'deepbdc train', or timm/NAME, which is downloaded (default:
            efficientnet_lite0, which knows ImageNet and came with the installation). efficientnet_lite0_fine is
            far better on handwritten characters, and far worse on photos.
        pool: How feature maps become representations: bdc or average (default: bdc).
        size: Side of the pictures as the network sees them, in pixels (default: the network's own).
        classifier: What learns the classes: logistic, prototype or softmax (default: logistic).
        C: How closely logistic follows the examples (default: 10).
        device: Where the network runs, like cpu or cuda (default: cpu).
    """
    from rich.console import Console

    from deepbdc.report.classification import say
    from deepbdc.sorting import not_there

    console = Console()
    with errors_in_words("explain"):
        settings = given_options(backbone=backbone, pool=pool, size=size, classifier=classifier, C=C, device=device)
        if output is not None and Path(output).suffix.lower() not in PICTURES:
            raise UserError(f"--output must end in {', '.join(PICTURES)}, got {output!r}")
        if neighbours < 0:
            raise UserError(f"--neighbours must be at least 0, got {neighbours}")
        picture = Path(image)
        if not picture.is_file():
            raise UserError(f"{image} is a folder: give one picture" if picture.exists() else not_there(picture))
        fitted = Examples.find(examples, settings).classifier()
        explanation = fitted.explain(picture, label=_known_label(fitted, label), neighbours=neighbours)
        _print_explanation(console, explanation, [str(name) for name in fitted.classes_])
        if output is not None:
            explanation.save(output)
            say(console, f"Explanation: {output}")


def _known_label(fitted: "FewShotClassifier", given: str | None) -> Any:
    """The class that is called so."""
    from deepbdc._registry import nearest

    names = {str(name): name for name in fitted.classes_}
    if given is not None and given not in names:
        raise UserError(f"no class is called {given!r}{nearest(given, list(names))}")
    return None if given is None else names[given]


def _print_explanation(console: "Console", explanation: "Explanation", classes: Sequence[str], most: int = 5) -> None:
    """The answer, the likeliest classes, and the nearest examples."""
    from rich.table import Table
    from rich.text import Text

    from deepbdc.report.classification import percent, say, visible

    prediction = explanation.prediction
    say(console, f"{prediction.name}: {prediction.label}, {percent(prediction.probability)}")
    if prediction.rejected:
        say(console, "It looks like none of the classes: 'deepbdc classify --reject' would say so.")
    table = Table("class", "probability", title="Likeliest classes", title_justify="left")
    table.columns[1].justify = "right"
    pairs = sorted(zip(prediction.probabilities, classes, strict=True), key=lambda pair: -pair[0])
    for probability, name in pairs[:most]:
        table.add_row(Text(visible(name)), percent(float(probability)))
    console.print(table)
    table = Table("example", "class", "similarity", title="Most similar examples", title_justify="left")
    table.columns[2].justify = "right"
    for neighbour in explanation.nearest:
        table.add_row(Text(visible(neighbour.name)), Text(visible(neighbour.label)), f"{neighbour.similarity:.3f}")
    console.print(table)
