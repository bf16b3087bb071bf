"""The figure of docs/when-bdc-helps.md: how many points of accuracy BDC adds, from results that the repository keeps.

    python docs/bdc_gain.py    write docs/images/bdc_gain.png

A frozen network: benchmarks/results/own_images.txt. Trained networks: the gallery, and the study in
benchmarks/results/bdc_study.
"""

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.transforms import blended_transform_factory

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from deepbdc.gallery import load_result  # noqa: E402  (before torchvision)
from study.report import Difference, scratch_rows  # noqa: E402

TARGET = Path(__file__).parent / "images" / "bdc_gain.png"
PHOTOS = ROOT / "benchmarks" / "results" / "own_images.txt"
STUDY = ROOT / "benchmarks" / "results" / "bdc_study"
GALLERY = ROOT / "gallery" / "cub" / "conv4"
ON_CUB = {
    "Meta DeepBDC minus Meta-Baseline": ("meta_deepbdc", "meta_baseline"),
    "STL DeepBDC minus Good-Embed": ("stl_deepbdc", "good_embed"),
}
NAMES = {"CUB": "birds", "Cars": "cars", "CIFAR-FS": "small photos", "Omniglot": "characters"}
COLOURS = {1: "#93b4f5", 5: "#1d4ed8"}
Gains = dict[str, dict[int, float]]
"""Points by the name of a row and the number of examples per class."""


def frozen_gains(text: str, network: str = "efficientnet_lite2") -> Gains:
    """What BDC adds to the own features of a frozen network, 5-way, from the output of benchmarks/own_images.py."""
    part = text[text.index(f"\n  {network} ") :]
    columns = re.findall(r"(\S+) (\d+)/(\d+)", part.splitlines()[1])
    rows = {
        name: [float(value) for value in re.findall(r"([+-]?\d+\.\d+) ±", line)]
        for line in part.splitlines()[2:6]
        for name in [line.split()[0]]
    }
    gains: Gains = {}
    for (data, way, shot), own, both in zip(columns, rows["own"], rows["both"], strict=True):
        if way == "5":
            gains.setdefault(NAMES[data], {})[int(shot)] = both - own
    return gains


def trained_gains() -> tuple[Gains, Gains]:
    """What BDC adds in a Conv4 that is trained on CIFAR-FS: for long and with dropout, and briefly without."""
    test = {row.name: row.differences for row in scratch_rows(STUDY, "test")}
    validation = {row.name: row.differences for row in scratch_rows(STUDY)}

    def points(differences: dict[int, Difference]) -> dict[int, float]:
        return {shot: found.mean for shot, found in differences.items()}

    long = {
        "Meta DeepBDC minus ProtoNet": points(test["meta-epochs-30"]),
        "STL DeepBDC minus Good-Embed": points(test["epochs-30"]),
    }
    return long, {"STL DeepBDC minus Good-Embed": points(validation["start"])}


def gallery_gains(folder: Path, pairs: dict[str, tuple[str, str]]) -> Gains:
    """The paired differences of results in a folder of the gallery, by the name of each pair."""
    gains: Gains = {}
    for title, names in pairs.items():
        bdc, other = ({one.shot: one for one in load_result(folder / f"{name}.json").results} for name in names)
        gains[title] = {shot: bdc[shot].compare(other[shot]).difference for shot in COLOURS}
    return gains


def words(points: float) -> str:
    """A difference with its sign.

    >>> words(1.23), words(-0.2), words(-0.01)
    ('+1.2', '−0.2', '0.0')
    """
    return "0.0" if abs(points) < 0.05 else f"{points:+.1f}".replace("-", "−")


def draw(target: Path = TARGET) -> None:
    """Write the figure."""
    long, brief = trained_gains()
    groups = {
        "Your photos, frozen network: its own features and BDC, minus its own features": frozen_gains(
            PHOTOS.read_text(encoding="utf-8")
        ),
        "Network that you train on CUB (birds): 60 epochs, dropout 0.8": gallery_gains(GALLERY, ON_CUB),
        "Network that you train on CIFAR-FS: 30 epochs, dropout 0.8": long,
        "The same: 10 epochs, no dropout": brief,
    }
    plt.rcParams["font.size"] = 12
    figure, panel = plt.subplots(figsize=(8.4, 7.6), layout="constrained")
    place, ticks = 0.0, {}
    for title, rows in groups.items():
        left = blended_transform_factory(figure.transFigure, panel.transData)
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 2}
        panel.text(0.012, place, title, weight="bold", va="center", transform=left, bbox=ground)
        for name, gains in rows.items():
            place += 1
            ticks[place] = name
            for shot, offset in ((1, -0.19), (5, 0.19)):
                value = gains[shot]
                panel.barh(place + offset, value, height=0.36, color=COLOURS[shot])
                side = 1 if value >= 0 else -1
                panel.text(
                    *(value + 0.08 * side, place + offset, words(value)),
                    va="center",
                    ha="left" if side > 0 else "right",
                    fontsize=10,
                )
        place += 1.25
    panel.axvline(0, color="black", linewidth=1)
    panel.set(ylim=(place - 0.6, -0.7), xlim=(-5.2, 4.2), xticks=range(-5, 5))
    panel.set_yticks(list(ticks), list(ticks.values()))
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel("points of accuracy that BDC adds (right) or costs (left)")
    figure.legend(
        [plt.Rectangle((0, 0), 1, 1, color=COLOURS[shot]) for shot in COLOURS],
        ["1 example per class", "5 examples per class"],
        frameon=False,
        loc="outside upper right",
        ncols=2,
    )
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.grid(axis="x", alpha=0.25)
    panel.set_axisbelow(True)
    figure.savefig(target, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    draw()
