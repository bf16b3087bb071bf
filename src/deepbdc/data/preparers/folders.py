"""CUB-200-2011, FGVC-Aircraft and Stanford Cars, prepared from the images and annotations of the official archives."""

import io
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deepbdc._files import temporary
from deepbdc.data.archives import Member
from deepbdc.data.benchmarks import Benchmark
from deepbdc.data.images import load_image
from deepbdc.data.preparers.source import Placement, PrepareError, Source, how_to_get

Box = tuple[int, int, int, int]


def cub(source: Source) -> Iterator[Placement]:
    """Place ``CUB_200_2011/images/001.Black_footed_Albatross/*.jpg``: whole images, unchanged."""
    split_of = source.benchmark.split_of()
    for class_name, member in _birds(source):
        yield Placement(split_of[class_name], class_name, member.base, member.save)


def cub_cropped(source: Source) -> Iterator[Placement]:
    """Place the images of `cub`, cropped to their boxes in ``bounding_boxes.txt``, as PNG.

    30 of the boxes reach beyond their image, by up to 32 pixels; only their part within it is used. A crop must be
    encoded again; PNG is lossless.
    """
    boxes = _bird_boxes(source)
    split_of = source.benchmark.split_of()
    for class_name, member in _birds(source):
        name = f"{class_name}/{member.base}"
        if name not in boxes:
            raise PrepareError(f"bounding_boxes.txt has no box for the image {name}; the archive is incomplete.")
        file_name = f"{member.base.rpartition('.')[0]}.png"
        yield Placement(split_of[class_name], class_name, file_name, _crop(member, boxes[name], inside=True))


def _birds(source: Source) -> Iterator[tuple[str, Member]]:
    """The images of CUB-200-2011, each with its class."""
    classes = source.benchmark.split_of()
    for member in source.members():
        *_, parent, base = ["", *member.name.split("/")]
        if parent in classes and base.lower().endswith(".jpg") and not base.startswith("."):
            yield parent, member


def _bird_boxes(source: Source) -> dict[str, Box]:
    """The box of each image ``CLASS/FILE``; the files number the images and say left, top, width and height."""
    texts = {name: text.decode() for name, text in source.require(["images.txt", "bounding_boxes.txt"]).items()}
    rows = {number: numbers for number, *numbers in map(str.split, texts["bounding_boxes.txt"].splitlines())}
    boxes = {}
    for number, name in map(str.split, texts["images.txt"].splitlines()):
        if number in rows:
            left, top, width, height = (int(float(value)) for value in rows[number])
            boxes[name] = (left, top, left + width, top + height)
    return boxes


def aircraft(source: Source) -> Iterator[Placement]:
    """Place ``data/images/0034309.jpg`` by ``images_variant_*.txt``, cropped to its box in ``images_box.txt``, as PNG.

    The boxes count pixels from 1, but their four numbers are passed to the crop unchanged, as for the published
    results. A crop must be encoded again; PNG is lossless.
    """
    lists = ("images_variant_trainval.txt", "images_variant_test.txt")
    texts = {name: text.decode() for name, text in source.require(["variants.txt", "images_box.txt", *lists]).items()}
    _compare_order(texts["variants.txt"].split("\n"), source.benchmark)
    variant = dict(line.split(" ", 1) for name in lists for line in texts[name].splitlines() if line.strip())
    boxes = {image: _box(numbers) for image, *numbers in map(str.split, texts["images_box.txt"].splitlines()) if image}
    split_of = source.benchmark.split_of()
    for member in source.members():
        image = member.base.removesuffix(".jpg")
        class_name = variant.get(image, "").strip()
        if "images" not in member.name.split("/")[:-1] or class_name not in split_of:
            continue
        if image not in boxes:
            raise PrepareError(f"images_box.txt has no box for image {image}; the archive is incomplete.")
        yield Placement(split_of[class_name], class_name, f"{image}.png", _crop(member, boxes[image]))


def _box(numbers: list[str]) -> Box:
    left, upper, right, lower = map(int, numbers)
    return left, upper, right, lower


def _crop(member: Member, box: Box, *, inside: bool = False) -> Callable[[Path], None]:
    """A function that writes the crop of an image; with ``inside``, only the part of the box within the image."""

    def save(target: Path) -> None:
        image = load_image(member.read(), title=member.name)
        left, upper, right, lower = box
        chosen = (left, upper, min(right, image.width), min(lower, image.height)) if inside else box
        with temporary(target) as part:
            image.crop(chosen).save(part, format="PNG")

    return save


def _compare_order(lines: list[str], benchmark: Benchmark) -> None:
    """Warn if the line numbers in variants.txt, which define the split, give another split than our list of classes."""
    names = [line.strip() for line in lines if line.strip()]
    parts = {"train": names[0::2], "val": names[1::4], "test": names[3::4]}
    if any(set(parts[split]) != set(benchmark.classes[split]) for split in parts):
        warnings.warn(
            "variants.txt in this archive has another order, which would give another split. The split of this library "
            "is used; published results may be for the other one",
            stacklevel=2,
        )


def cars(source: Source) -> Iterator[Placement]:
    """Place the images of ``car_ims`` by ``cars_annos.mat``, or ``cars_train`` and ``cars_test`` by the devkit.

    The original division into training and test images is ignored: all images of a class belong to one split.
    """
    class_of = _car_labels(source)
    name_of = {number: name for name, number in source.benchmark.numbers.items()}
    split_of = source.benchmark.split_of()
    for member in source.members():
        where = "/".join(member.name.split("/")[-2:])
        class_name = name_of.get(class_of.get(where, -1), "")
        if class_name in split_of:
            # cars_train and cars_test have different images of the same name, so the folder becomes part of it.
            prefix = re.sub(r"^cars?_(ims)?", "", where.split("/")[0])
            file_name = f"{prefix}_{member.base}" if prefix else member.base
            yield Placement(split_of[class_name], class_name, file_name, member.save)


def _car_labels(source: Source) -> dict[str, int]:
    """Map the last two parts of the path of each image to its class number."""
    both = source.read(["cars_annos.mat"])
    if both:
        rows = _annotations(both["cars_annos.mat"], "relative_im_path")
        return {"/".join(path.split("/")[-2:]): number for path, number in rows}
    found = source.read(["cars_train_annos.mat", "cars_test_annos_withlabels.mat"])
    missing = {"cars_train_annos.mat", "cars_test_annos_withlabels.mat"} - found.keys()
    if missing:
        raise PrepareError(
            f"{source.path} does not contain {' and '.join(sorted(missing))}. The labels of the test images are in a "
            f"separate file, not in the devkit. {how_to_get(source.benchmark)}"
        )
    train = _annotations(found["cars_train_annos.mat"], "fname")
    test = _annotations(found["cars_test_annos_withlabels.mat"], "fname")
    labels = {f"cars_train/{name}": number for name, number in train}
    return labels | {f"cars_test/{name}": number for name, number in test}


def _annotations(content: bytes, field: str) -> list[tuple[str, int]]:
    """Read (file name, class number from 1) pairs from the structure ``annotations`` of a .mat file."""
    from scipy.io import loadmat

    try:
        table: Any = loadmat(io.BytesIO(content), squeeze_me=True)["annotations"]
        return [(str(row[field]), int(row["class"])) for row in table.reshape(-1)]
    except (KeyError, ValueError, TypeError, NotImplementedError) as error:
        raise PrepareError(
            f"the annotations of the cars cannot be read: a structure with {field!r} and 'class' is needed ({error}). "
            "The devkit lacks the labels of the test images; they are in cars_test_annos_withlabels.mat."
        ) from error
