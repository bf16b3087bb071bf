"""The first picture of the README: a few examples in, sorted pictures out.

    python docs/what_it_does.py    write docs/images/what_it_does.png

The pictures are those of the example on the page of `deepbdc app`; the answers are those of `FewShotClassifier`.
"""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from deepbdc import FewShotClassifier
from deepbdc.app.example import draw_example

TARGET = Path(__file__).parent / "images" / "what_it_does.png"
SHOWN = 3
COLOURS = {"right": "#15803d", "none": "#9a3412"}


def show(panel: Any, picture: Any, title: str = "", colour: str = "black") -> None:
    """Show a picture with a title and a frame."""
    panel.imshow(picture)
    panel.set(xticks=[], yticks=[])
    for side in panel.spines.values():
        side.set(color=colour, linewidth=2 if title else 0.5)
    panel.set_title(title, fontsize=10, color=colour, pad=4)


def main() -> None:
    """Write the picture."""
    drawn = draw_example()
    examples = [picture for picture in drawn if picture.label is not None]
    others = [picture for picture in drawn if picture.label is None]
    classifier = FewShotClassifier().fit([one.image for one in examples], [one.label for one in examples])
    answers = list(classifier.classify([one.image for one in others]))
    classes = list(dict.fromkeys(str(one.label) for one in examples))
    columns = (len(others) + len(classes) - 1) // len(classes)
    figure = plt.figure(figsize=(11, 1.55 * len(classes) + 0.7))
    grid = figure.add_gridspec(len(classes), SHOWN + 1 + columns, width_ratios=[1] * SHOWN + [0.7] + [1] * columns)
    for row, name in enumerate(classes):
        for place, one in enumerate([one for one in examples if one.label == name][:SHOWN]):
            panel = figure.add_subplot(grid[row, place])
            show(panel, one.image)
            if place == 0:
                panel.set_ylabel(name, fontsize=11, fontweight="bold")
    for place, (one, answer) in enumerate(zip(others, answers, strict=True)):
        panel = figure.add_subplot(grid[place // columns, SHOWN + 1 + place % columns])
        words = "none of these" if answer.rejected else f"{answer.label}, {100 * answer.probability:.0f} %"
        show(panel, one.image, words, COLOURS["none" if answer.rejected else "right"])
    figure.text(0.02, 0.985, "You show a few examples of each class ...", fontsize=13, va="top")
    figure.text(0.46, 0.985, "... and get labels for all other pictures", fontsize=13, va="top")
    arrow = figure.add_subplot(grid[:, SHOWN])
    arrow.axis("off")
    arrow.annotate("", (1, 0.5), (0, 0.5), arrowprops={"arrowstyle": "-|>", "lw": 3, "color": "#1d4ed8"})
    figure.subplots_adjust(left=0.05, right=0.99, top=0.86, bottom=0.02, hspace=0.35, wspace=0.12)
    figure.savefig(TARGET, dpi=110)
    print(TARGET)


if __name__ == "__main__":
    main()
