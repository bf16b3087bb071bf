"""``deepbdc check``: find mistakes among example pictures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from deepbdc.commands.examples import EXAMPLE_FOLDERS, ExampleSource
from deepbdc.commands.options import OUTPUT, EstimatorOptions, Flag
from deepbdc.commands.targets import check_output
from deepbdc.errors import UserError

if TYPE_CHECKING:
    from deepbdc.data.images import BadImage


def check_folder(
    examples: Path,
    /,
    *,
    json: Annotated[Path | None, Parameter(metavar="FILE", group=OUTPUT)] = None,
    force: Annotated[Flag, Parameter(group=OUTPUT)] = False,
    options: EstimatorOptions | None = None,
) -> None:
    """Find mistakes among your example pictures before you learn from them.

    The command names

    - files that cannot be read, all at once;
    - labels that are probably wrong, because the other examples say so;
    - pictures that occur twice, also smaller or compressed;
    - pictures that are unlike the rest of their class;
    - classes that are hard to tell apart, and classes with very few examples.

    It changes nothing. For example:

        deepbdc check examples
        deepbdc check examples --json findings.json

    The exit code is 1 if a file cannot be read or a label is probably wrong, so that scripts can ask for it.

    Args:
        examples: A folder that contains one folder of example pictures for each class.
        json: Write all findings to this file as JSON.
        force: Replace the file of --json if it exists.
    """
    from rich.console import Console

    from deepbdc._files import write_json
    from deepbdc.own_images.checking import check_examples
    from deepbdc.report.classification import say
    from deepbdc.report.examples import as_json, print_report

    console = Console()
    check_output(json, force=force)
    source = ExampleSource.find(examples, options.given() if options else {})
    if source.saved:
        raise UserError(f"{examples} is a saved classifier. Give a folder with {EXAMPLE_FOLDERS}.")
    bad: list[BadImage] = []
    estimator, embedded = source.embed_readable(bad.append)
    pairs = [(image, label) for image, label in zip(embedded, source.labels, strict=True) if image is not None]
    broken = [str(error) for error in bad]
    if not pairs:
        raise UserError(f"none of the pictures in {examples} can be read, like {broken[0]}")
    found = check_examples(estimator, [image for image, _ in pairs], [label for _, label in pairs])
    names = [image.name for image, _ in pairs]
    print_report(console, found, names, broken)
    if json is not None:
        write_json(json, as_json(found, names, broken))
        say(console, f"Findings: {json}")
    if broken or found.wrong_labels or not all(pair.same_label for pair in found.twins):
        raise SystemExit(1)
