"""The tables and pictures of all kept results, for docs/results.md.

    python docs/results.py            print the tables
    python docs/results.py --write    write them into docs/results.md, and the pictures into docs/images

Our numbers come from the gallery, the published ones from src/deepbdc/report/published.yaml. What stands between the
marks of a conclusion is written by hand and is kept. A test checks that the page and its pictures are up to date.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mode
from typing import Any

import yaml
from page_table import PageTable

from deepbdc.errors import UserError
from deepbdc.evaluation import EvaluationResult
from deepbdc.gallery import KeptResult, load_result
from deepbdc.report.comparison_output import difference_in_words
from deepbdc.report.evaluation import class_interval_in_words, footnotes, queries_in_words, transductive_mark
from deepbdc.report.published import Published, on_data

ROOT = Path(__file__).parent.parent
PAGE = PageTable("results", ROOT / "docs" / "results.md")
TITLES = {  # in the order of the page
    "miniimagenet": "miniImageNet",
    "cub": "CUB, whole images",
    "cub_cropped": "CUB, birds cropped by their boxes",
    "miniimagenet_to_cub": "From miniImageNet to CUB",
    "miniimagenet_to_cars": "From miniImageNet to Cars",
    "miniimagenet_to_aircraft": "From miniImageNet to Aircraft",
    "cifar_fs": "CIFAR-FS",
    "glyphs": "Glyphs",
}
NETWORKS = {"conv4": "Conv4", "resnet10": "ResNet-10", "resnet12": "ResNet-12", "resnet18": "ResNet-18"}
PUBLISHED_AS = {"cub_cropped": "cub"}  # Table 4b has CUB; its rows with Conv4 are of cropped birds
BASELINES = {"protonet": "ProtoNet", "good_embed": "Good-Embed"}
EMPTY = "*Nothing has been concluded from this table yet.*"


@dataclass(frozen=True)
class Section:
    """All results on one data set with one kind of network."""

    data: str
    backbone: str
    rows: tuple[KeptResult, ...]
    """The best with the most shots come first."""
    facts: tuple[dict[str, Any], ...] = field(repr=False)
    """What the file of each row says besides its results."""

    @property
    def name(self) -> str:
        """The name of its picture and of its conclusion."""
        return f"{self.data}_{self.backbone}"

    @property
    def network(self) -> str:
        """The name of the network as papers write it."""
        return NETWORKS.get(self.backbone, self.backbone)

    @property
    def width(self) -> float:
        """The width of its networks, as a factor."""
        widths = {float(_recipe(row)["backbone"].get("width", 1)) for row in self.rows}
        if len(widths) > 1:
            raise UserError(f"{self.name} has networks of several widths: {sorted(widths)}; give each its own section")
        return widths.pop()

    @property
    def shots(self) -> list[int]:
        """The numbers of shots that any row has."""
        return sorted({result.shot for row in self.rows for result in row.results if isinstance(result.shot, int)})

    @property
    def digest(self) -> str:
        """A short text that changes with the numbers in the picture."""
        results = [(row.name, result) for row in self.rows for result in row.results]
        numbers = [(name, one.shot, round(one.mean, 2), round(one.ci95, 2)) for name, one in results]
        return hashlib.blake2b(repr(numbers).encode(), digest_size=8).hexdigest()


def sections(gallery: Path = ROOT / "gallery") -> list[Section]:
    """The contents of the gallery, in the order of the page."""
    found = []
    for folder in sorted(path for path in gallery.glob("*/*") if path.is_dir()):
        rows = sorted((load_result(file) for file in folder.glob("*.json")), key=_height, reverse=True)
        facts = tuple(json.loads(row.path.read_text(encoding="utf-8")) for row in rows)
        if rows:
            found.append(Section(folder.parent.name, folder.name, tuple(rows), facts))
    known = list(TITLES)
    return sorted(found, key=lambda one: (known.index(one.data) if one.data in known else len(known), one.data))


def _recipe(row: KeptResult) -> dict[str, Any]:
    """The recipe that is kept beside a result; what it does not say has its default."""
    file = row.path.with_suffix(".yaml")
    found = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {"backbone": {}, "options": {}, **found}


def _height(row: KeptResult) -> tuple[float, ...]:
    """For the order of rows: the accuracy with the most shots."""
    by_shot = {result.shot: result.mean for result in row.results if isinstance(result.shot, int)}
    return tuple(by_shot[shot] for shot in sorted(by_shot, reverse=True))


def title(section: Section) -> str:
    """The heading of a section."""
    width = f" of width {section.width:g}" if section.width != 1 else ""
    return f"{TITLES.get(section.data, section.data)}, {section.network}{width}"


def is_bdc(row: KeptResult) -> bool:
    """Whether a row is of a method of the paper."""
    return "deepbdc" in (row.method or row.name)


def with_shots(row: KeptResult, shot: int) -> EvaluationResult | None:
    """The result of a row with a number of shots, if there is one."""
    return next((result for result in row.results if result.shot == shot), None)


def baseline(section: Section, name: str) -> KeptResult | None:
    """The row with which others are compared."""
    return next((row for row in section.rows if row.name == name), None)


def accuracy(result: EvaluationResult | None) -> str:
    """Text like ``63.68 ± 0.50 (± 8.1)``."""
    return "–" if result is None else f"{result} {class_interval_in_words(result.ci95_classes)}".strip()


def difference(result: EvaluationResult | None, other: EvaluationResult | None) -> str:
    """The paired difference of two results on the episodes that both have; a dash where there is none."""
    if result is None or other is None or result is other:
        return "–"
    try:
        return difference_in_words(result.compare(other)).replace("*", "★")
    except UserError:
        return "other episodes"


def published_rows(section: Section, kept: KeptResult) -> tuple[Published | None, Published | None]:
    """What papers report for a method on the data of a section: with the network of the section, and with another.

    A result of another name than its method is a variant: only a published row with the same options is its own.
    """
    options = _recipe(kept)["options"]
    method = kept.name if kept.method is None else kept.method
    rows = [row for table in on_data(PUBLISHED_AS.get(section.data, section.data)) for row in table.rows]
    own = [row for row in rows if row.method == method and row.options.items() <= options.items()]
    own = [row for row in own if row.options or kept.name == method]
    same = next((row for row in own if row.backbone == section.network), None)
    return same, next((row for row in own if row.backbone != section.network), None)


def published_text(row: Published | None, shots: Sequence[int], backbone: bool = False) -> str:
    """Text like ``*49.42 / 68.20* (DeepBDC paper Table 1)``."""
    if row is None:
        return "–"
    given = {shot: mean for shot, (mean, _) in row.accuracies.items()}
    digits = 2 if any(round(mean, 1) != mean for mean in given.values()) else 1  # as many as the paper has
    numbers = " / ".join(f"{given[shot]:.{digits}f}" if shot in given else "–" for shot in shots)
    network = f"{row.backbone}, " if backbone else ""
    return f"*{numbers}* ({network}{row.source})"


def row_cells(section: Section, row: KeptResult) -> list[str]:
    """One line of the table of a section."""
    bold = "**" if is_bdc(row) else ""
    zoo = Path("zoo") / section.data / section.backbone / row.name
    link = f" ([network](../{zoo.as_posix()}))" if (ROOT / zoo).is_dir() else ""
    apart = fewer_episodes(section, row) + other_training(section, row)
    cells = [f"{bold}{row.name}{bold}{transductive_mark(row.results)}{link}{apart}"]
    results = [with_shots(row, shot) for shot in section.shots]
    cells += [f"{bold}{accuracy(result)}{bold}" for result in results]
    for name in BASELINES:
        other = baseline(section, name)
        for shot, result in zip(section.shots, results, strict=True):
            cells.append(difference(result, None if other is None else with_shots(other, shot)))
    same, another = published_rows(section, row)
    return [*cells, published_text(same, section.shots), published_text(another, section.shots, backbone=True)]


def fewer_episodes(section: Section, row: KeptResult) -> str:
    """Text like ``, 600 episodes`` for a row that has fewer than the other rows of its section."""
    counts = {len(result.accuracies) for result in row.results}
    usual = max(len(result.accuracies) for other in section.rows for result in other.results)
    return "" if counts == {usual} else f", {' and '.join(f'{count:,}' for count in sorted(counts))} episodes"


def trained_classes(section: Section) -> dict[str, int]:
    """For each row of a section that says it, by its name, how many classes its network was trained on."""
    known = zip(section.rows, section.facts, strict=True)
    return {row.name: facts["trained_on"]["classes"] for row, facts in known if "trained_on" in facts}


def other_training(section: Section, row: KeptResult) -> str:
    """Text like ``, trained on 100 classes`` for a row whose network saw other classes than most of its section."""
    counts = trained_classes(section)
    unusual = row.name in counts and counts[row.name] != mode(counts.values())
    return f", trained on {counts[row.name]} classes" if unusual else ""


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first line is the heading."""
    first, *rest = lines
    return "\n".join("| " + " | ".join(line) + " |" for line in [first, ["---"] * len(first), *rest])


def section_table(section: Section) -> str:
    """The table of a section."""
    shots = [f"{shot} shot{'s' * (shot > 1)}" for shot in section.shots]
    heading = ["method", *(f"ours, {shot}" for shot in shots)]
    heading += [f"minus {name}, {shot}" for name in BASELINES.values() for shot in shots]
    network = section.network if section.width == 1 else f"{section.network} of full width"
    heading += [f"published, {network}", "published, another network"]
    lines = [heading, *(row_cells(section, row) for row in section.rows)]
    said = [place for place in range(len(heading)) if any(line[place] != "–" for line in lines[1:])]
    return markdown([[line[place] for place in said] for line in lines])


def how(section: Section) -> str:
    """A paragraph that says how the numbers of a section were made."""
    results = [result for row in section.rows for result in row.results]
    first = results[0]
    counts = sorted({len(result.accuracies) for result in results})
    episodes = " or ".join(f"{count:,}" for count in counts)
    text = (
        f"{first.way}-way, {queries_in_words(first)}, {episodes} episodes of {len(first.class_names)} test classes. "
        f"Networks: {'; '.join(networks(section))}."
    )
    if trained := trained_classes(section).values():
        exceptions = ", where a row does not say otherwise" if len(set(trained)) > 1 else ""
        text += f" Trained on {mode(trained)} classes{exceptions}."
    if section.data == "cub":
        text += (
            " The published numbers with Conv4 are of birds cropped by their boxes, except those marked *whole images*."
        )
    return " ".join([text, *(f"{note}." for note in footnotes(results))])


def networks(section: Section) -> list[str]:
    """The networks of a section in words: width and size of the images, where recipes say them."""
    found: dict[str, None] = {}
    for row in section.rows:
        size = _recipe(row).get("size")
        width = f" of width {section.width:g}" if section.width != 1 else ""
        found[f"{section.network}{width}{f' at {size} pixels' if size else ''}"] = None
    return sorted(found)


def others(section: Section) -> str:
    """Published numbers of methods that this library does not have, as a sentence; empty if there are none."""
    rows = [row for table in on_data(PUBLISHED_AS.get(section.data, section.data)) for row in table.others]
    rows = [row for row in rows if row.backbone.startswith(section.network)]
    words = [f"{row.name} {published_text(row, section.shots, backbone=True)}" for row in rows]
    return f"Also published: {'; '.join(words)}.\n\n" if words else ""


def conclusion(section: Section, page: str) -> str:
    """The place for what follows from a table, with what stands there in the page."""
    start, end = f"<!-- conclusion {section.name}: written by hand -->", "<!-- end of conclusion -->"
    found = re.search(re.escape(start) + r"\n(.*?)\n" + re.escape(end), page, flags=re.DOTALL)
    return f"{start}\n{found.group(1) if found else EMPTY}\n{end}"


def hours(found: Sequence[Section]) -> str:
    """The time of training by table, from the seconds that results say."""
    lines = [["table", "networks", "hours"]]
    total = 0.0
    for section in found:
        seconds = [float(entry["seconds"]) for entry in section.facts if entry.get("seconds") is not None]
        total += sum(seconds)
        if seconds:
            lines.append([title(section), str(len(seconds)), f"{sum(seconds) / 3600:.1f}"])
    return markdown([*lines, ["all", "", f"{total / 3600:.1f}"]])


def page_parts(found: Sequence[Section], page: str) -> Iterator[str]:
    """The generated part of the page, piece by piece."""
    for section in found:
        heading = title(section)
        picture = f"![Accuracy of all methods on {heading}, with 95 % intervals](images/results_{section.name}.png)"
        parts = [f"\n## {heading}", how(section), conclusion(section, page), picture, section_table(section)]
        yield "\n\n".join(parts) + "\n"
        if rest := others(section):
            yield rest.rstrip("\n") + "\n"
    yield (
        "\n## Hours of training\n\n"
        "From the seconds in the result files. They are lower bounds: a run that took over a stage from another, or "
        "that was continued or evaluated elsewhere, counts only its own part. Results across domains usually need no "
        "training.\n"
    )
    yield hours(found)


def page_table() -> str:
    """All sections as Markdown."""
    return "\n".join(page_parts(sections(), PAGE.page.read_text(encoding="utf-8")))


def draw_all() -> None:
    """Draw the picture of each section."""
    from results_picture import draw

    for section in sections():
        draw(section, ROOT / "docs" / "images" / f"results_{section.name}.png")


if __name__ == "__main__":
    PAGE.main(__doc__, page_table, draw_all)
