"""The benchmarks by name: a description, the official splits, and where the images are stored on this machine.

The class lists are in ``splits/*.json``, with their source and image counts. The package contains no images: the user
downloads the official archive, and ``deepbdc data prepare`` converts it to the standard layout (see
:mod:`deepbdc.data.prepare`).
"""

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from deepbdc._files import cache_folder
from deepbdc._registry import nearest
from deepbdc.errors import UserError

SPLITS = ("train", "val", "test")
MARKER = ".deepbdc.json"
"""A file in each complete prepared folder, with the image counts and the name of the source. It is written last."""


@dataclass(frozen=True)
class Archive:
    """One official file: its name, and its MD5 sum if it is known."""

    name: str
    md5: str | None = None


@dataclass(frozen=True)
class Benchmark:
    """The facts about a benchmark; its images are not needed for them.

    Attributes:
        name: The name in this library.
        title: A description in one line.
        layout: ``"folder"`` (``ROOT/NAME/SPLIT/CLASS/IMAGE``), ``"arrays"`` (``ROOT/NAME.npz``, or parts of
            it as ``ROOT/NAME_*.npz``) or ``"embedded"``.
        licence: The terms of use, as far as they are known.
        home: Where to download the official archive.
        archives: Alternative sets of official files; each set alone is enough.
        classes: The official class names of each split.
        images: The number of images of each split.
        per_class: The number of images of each class; empty if it is not known.
        numbers: The number of each class in the official annotations; empty if they use names.
        ranks: Which images of each class belong to the benchmark, as ranges (first, last) of 1-based positions among
            the sorted files of the class; empty if all do.
        citation: Who proposed this split.
    """

    name: str
    title: str
    layout: Literal["folder", "arrays", "embedded"]
    licence: str
    home: str
    archives: tuple[tuple[Archive, ...], ...] = ()
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    images: Mapping[str, int] = field(default_factory=dict)
    per_class: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    ranks: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    citation: str = ""

    def split_of(self) -> dict[str, str]:
        """Map each official class name to its split."""
        return {name: split for split, names in self.classes.items() for name in names}


_IMAGENET = "ImageNet terms of access: non-commercial research and education, granted per person"
_IMAGENET_HOME = "https://image-net.org (ILSVRC 2012, training images; needs an account)"
_IMAGENET_ARCHIVES = ((Archive("ILSVRC2012_img_train.tar"),),)
_CIFAR_ARCHIVES = (
    (Archive("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
    (Archive("cifar-100-binary.tar.gz"),),
)
_CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
_CIFAR_LICENCE = "none stated; cite Krizhevsky 2009"
_CUB: dict[str, Any] = {
    "layout": "folder",
    "licence": "no formal text; commonly non-commercial research and education",
    "home": "https://data.caltech.edu/records/65de6-vp158",
    "archives": ((Archive("CUB_200_2011.tgz", "97eceeb196236b17998738112f37df78"),),),
}
_SAME_SPLIT = {"cub_cropped": "cub"}
"""Benchmarks with the same images, classes and splits as another one."""

_TABLE: dict[str, dict[str, Any]] = {
    "miniimagenet": {
        "title": "100 classes of ImageNet, 600 images each, in their original size",
        "layout": "folder",
        "licence": _IMAGENET,
        "home": _IMAGENET_HOME,
        "archives": _IMAGENET_ARCHIVES,
    },
    "tieredimagenet": {
        "title": "608 classes of ImageNet, split by super-class, in their original size",
        "layout": "folder",
        "licence": _IMAGENET,
        "home": _IMAGENET_HOME,
        "archives": _IMAGENET_ARCHIVES,
    },
    "cub": {"title": "200 species of birds (CUB-200-2011), whole images", **_CUB},
    "cub_cropped": {
        "title": "CUB-200-2011, cropped to the bounding boxes of the birds; the classes and split of cub",
        **_CUB,
    },
    "aircraft": {
        "title": "100 variants of aircraft (FGVC-Aircraft 2013b), cropped to the bounding boxes",
        "layout": "folder",
        "licence": "non-commercial research only; the photographers keep their copyright",
        "home": "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
        "archives": ((Archive("fgvc-aircraft-2013b.tar.gz", "d4acdd33327262359767eeaa97a4f732"),),),
    },
    "cars": {
        "title": "196 models of cars (Stanford Cars), whole images",
        "layout": "folder",
        "licence": "none found; treat as research only",
        "home": "https://ai.stanford.edu/~jkrause/cars/car_dataset.html (its links are broken; Kaggle has mirrors)",
        "archives": (
            (
                Archive("cars_train.tgz", "065e5b463ae28d29e77c1b4b166cfe61"),
                Archive("cars_test.tgz", "4ce7ebf6a94d07f1952d94dd34c4d501"),
                Archive("car_devkit.tgz", "c3b158d763b6e2245038c8ad08e45376"),
                Archive("cars_test_annos_withlabels.mat", "b0a2b23655a3edd16d84508592a98d10"),
            ),
            (
                Archive("car_ims.tgz", "d5c8f0aa497503f355e17dc7886c3f14"),
                Archive("cars_annos.mat", "b407c6086d669747186bd1d764ff9dbc"),
            ),
        ),
    },
    "cifar_fs": {
        "title": "CIFAR-100, 32×32, split at random",
        "layout": "arrays",
        "licence": _CIFAR_LICENCE,
        "home": _CIFAR_HOME,
        "archives": _CIFAR_ARCHIVES,
    },
    "fc100": {
        "title": "CIFAR-100, 32×32, split by super-class",
        "layout": "arrays",
        "licence": _CIFAR_LICENCE,
        "home": _CIFAR_HOME,
        "archives": _CIFAR_ARCHIVES,
    },
    "omniglot": {
        "title": "1,623 handwritten characters of 50 alphabets, 20 drawers each, 28×28, ink = 255",
        "layout": "arrays",
        "licence": "MIT",
        "home": "https://github.com/brendenlake/omniglot (folder python)",
        "archives": (
            (
                Archive("images_background.zip", "68d2efa1b9178cc56df9314c21c6e718"),
                Archive("images_evaluation.zip", "6b91aef0f799c5bb55b94e3f2daec811"),
            ),
        ),
    },
    "glyphs": {
        "title": "Characters of nine scripts, 40 images each, drawn with the fonts that matplotlib ships: 220 classes "
        "of Latin, Greek, Cyrillic and Canadian syllabics in train, 45 of Georgian and Lao in val, 71 of Armenian, "
        "Arabic and Hebrew in test",
        "layout": "embedded",
        "licence": "free to use; made on this machine",
        "home": "made on first use, nothing to download",
    },
}

_PAIRS = {f"miniimagenet->{target}": target for target in ("cub", "aircraft", "cars")}


class NotPrepared(FileNotFoundError):
    """The images of a benchmark have not been prepared on this machine yet.

    Args:
        name: A benchmark, or a pair of benchmarks.
        path: Where the images were expected, as given by :func:`prepared_path` (default: in :func:`data_root`).
    """

    def __init__(self, name: str, path: str | Path | None = None) -> None:
        root = data_root() if path is None else Path(path).parent
        missing = [part for part in components(name) if not is_prepared(part, root)] or components(name)
        option = "" if root == data_root() else f" --root {root}"
        commands = "\n".join(f"  deepbdc data prepare {part} --source ARCHIVE_OR_FOLDER{option}" for part in missing)
        super().__init__(
            f"The images of {name} are not in {root}. Prepare them once from the official archive with\n"
            f"{commands}\n'deepbdc data list' says where to download the archive."
        )


def names() -> list[str]:
    """List all benchmarks, then the cross-domain pairs (train on the first, test on the second)."""
    return [*_TABLE, *_PAIRS]


@cache
def get(name: str) -> Benchmark:
    """Return the benchmark ``name``. A cross-domain pair is an error here, because it is two benchmarks."""
    if name in _PAIRS:
        raise UserError(f"{name} is a pair of benchmarks, not one: ask for {' or '.join(components(name))}.")
    if name not in _TABLE:
        raise UserError(f"no benchmark is called {name!r}{nearest(name, names())}")
    entry = _TABLE[name]
    if entry["layout"] == "embedded":
        return Benchmark(name=name, **entry)
    facts = _read_facts(_SAME_SPLIT.get(name, name))
    classes = {split: tuple(facts["splits"][split]) for split in SPLITS}
    per_class = facts.get("images_per_class", {})
    if isinstance(per_class, int):
        per_class = {label: per_class for split in SPLITS for label in classes[split]}
    return Benchmark(
        name=name,
        classes=classes,
        images={split: facts["counts"][split]["images"] for split in SPLITS},
        per_class=per_class,
        numbers=facts.get("class_numbers", {}),
        ranks=_read_ranks() if name == "miniimagenet" else {},
        citation=facts["variant"],
        **entry,
    )


def components(name: str) -> list[str]:
    """List the benchmarks whose images ``name`` needs: itself, or both benchmarks of a pair.

    >>> components("miniimagenet->cub"), components("cars")
    (['miniimagenet', 'cub'], ['cars'])
    """
    if name in _PAIRS:
        return ["miniimagenet", _PAIRS[name]]
    return [get(name).name]


def sources(name: str, split: str) -> list[tuple[str, str]]:
    """List the (benchmark, split) pairs that make up one split of ``name``.

    A cross-domain pair trains on all classes of its first benchmark; its val and test splits are those of the second.

    >>> sources("miniimagenet->cub", "train")
    [('miniimagenet', 'train'), ('miniimagenet', 'val'), ('miniimagenet', 'test')]
    >>> sources("miniimagenet->cub", "test")
    [('cub', 'test')]
    """
    first, *second = components(name)
    if split not in SPLITS:
        raise UserError(f"no split is called {split!r}{nearest(split, list(SPLITS))}")
    if second and split == "train":
        return [(first, part) for part in SPLITS]
    return [(second[0] if second else first, split)]


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of the prepared benchmarks: ``root``, else ``$DEEPBDC_DATA``, else ``~/.cache/deepbdc``."""
    return Path(root or os.environ.get("DEEPBDC_DATA") or cache_folder()).expanduser()


def prepared_path(name: str, root: str | Path | None = None) -> Path:
    """Return where a benchmark is prepared to: a folder in the standard layout, or an ``.npz`` file of arrays."""
    benchmark = get(name)
    if benchmark.layout == "embedded":
        raise UserError(f"{name} is made on first use and need not be prepared; just load it.")
    return data_root(root) / (f"{name}.npz" if benchmark.layout == "arrays" else name)


def array_files(name: str, root: str | Path | None = None) -> list[Path]:
    """List the files of an array benchmark: ``NAME.npz`` if it exists, else its parts ``NAME_*.npz``."""
    whole = prepared_path(name, root)
    return [whole] if whole.is_file() else sorted(whole.parent.glob(f"{name}_*.npz"))


def classes_in(path: Path) -> dict[str, str]:
    """Map each class that has images in an ``.npz`` file to its split, without reading the images.

    One part of a benchmark may name all classes but hold images of only some of them, so the labels decide. A file that
    lacks the standard arrays has no classes.
    """
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            if not {"images", "labels", "class_names", "class_split"} <= set(file.files):
                return {}
            labels, names, splits = (file[key].reshape(-1) for key in ("labels", "class_names", "class_split"))
            return {str(names[label]): str(splits[label]) for label in np.unique(labels)}
    except (ValueError, OSError, EOFError, IndexError, AttributeError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged or is not an .npz file of plain arrays ({type(error).__name__})") from error


def is_prepared(name: str, root: str | Path | None = None) -> bool:
    """Whether all benchmarks that ``name`` needs are prepared completely.

    A folder is complete if it contains the marker. Parts ``NAME_*.npz`` are complete if they together have images of as
    many classes as the benchmark.
    """
    return all(_is_complete(part, root) for part in components(name))


def _is_complete(name: str, root: str | Path | None) -> bool:
    if get(name).layout == "embedded":
        return True
    path = prepared_path(name, root)
    if path.suffix != ".npz":
        return (path / MARKER).is_file()
    return path.is_file() or _has_all_classes(name, array_files(name, root))


def _has_all_classes(name: str, parts: Sequence[Path]) -> bool:
    """Whether the parts have the official number of classes in each split.

    Only numbers are compared, because some copies rename classes (``oak`` instead of ``oak_tree``).
    """
    found: dict[str, str] = {}
    for part in parts:
        with suppress(ValueError):  # a damaged file counts as empty here; loading it raises an error
            found |= classes_in(part)
    counts = Counter(found.values())
    return all(counts[split] == len(labels) for split, labels in get(name).classes.items())


def prepared_folder_name(class_name: str) -> str:
    """Turn an official class name into the folder name that it has in a prepared benchmark, valid on all file systems.

    >>> prepared_folder_name("F-16A/B")
    'F-16A-B'
    """
    return re.sub(r'[/\\<>:"|?*\x00-\x1f]', "-", class_name).strip(" .") or "_"


def _read_facts(name: str) -> dict[str, Any]:
    text = (files("deepbdc.data") / "splits" / f"{name}.json").read_text(encoding="utf-8")
    facts: dict[str, Any] = json.loads(text)
    return facts


def _read_ranks() -> dict[str, tuple[tuple[int, int], ...]]:
    """Read the image ranks of miniImageNet, and turn text like ``"5-7 10"`` into ``((5, 7), (10, 10))``."""

    def run(text: str) -> tuple[int, int]:
        first, _, last = text.partition("-")
        return int(first), int(last or first)

    ranks = _read_facts("miniimagenet_ranks")["ranks"]
    return {wnid: tuple(run(text) for text in runs.split()) for wnid, runs in ranks.items()}
