import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from deepbdc.data.prepare import PrepareError, prepare
from tests.data.official import Files, picture, small, tree, write_folder, write_tar

# Sorted as in variants.txt; two with a slash, as in the official list.
VARIANTS = ("707-320", "727-200", "737-200", "A300B4", "Cessna 172", "DC-3", "F-16A/B", "F/A-18")
AIRCRAFT = small("aircraft", {"train": VARIANTS[0::2], "val": VARIANTS[1::4], "test": VARIANTS[3::4]}, 2)
FOLDERS = {"F-16A/B": "F-16A-B", "F/A-18": "F-A-18"}


def aircraft_files(variants: tuple[str, ...] = VARIANTS) -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    """The archive, and what each crop must look like."""
    lists: dict[str, list[str]] = {"trainval": [], "test": []}
    boxes, files, crops = [], {}, {}
    for position, variant in enumerate(VARIANTS):
        split = next(part for part, names in AIRCRAFT.classes.items() if variant in names)
        for copy, part in enumerate(lists):
            image = f"{1000 * position + copy + 34309:07}"
            lists[part].append(f"{image} {variant}")
            left, upper, right, lower = 2 + copy, 3, 31, 20 + position % 5
            boxes.append(f"{image} {left} {upper} {right} {lower}")
            files[f"data/images/{image}.jpg"] = content = picture(50 + 2 * position + copy)
            pixels = np.asarray(Image.open(io.BytesIO(content)))
            name = f"{split}/{FOLDERS.get(variant, variant)}/{image}.png"
            crops[name] = pixels[upper:lower, left:right]
    files["data/images_box.txt"] = "\n".join(boxes).encode() + b"\n"
    files["data/variants.txt"] = "\n".join(variants).encode() + b"\n"
    for part, lines in lists.items():
        files[f"data/images_variant_{part}.txt"] = "\n".join(lines).encode() + b"\n"
    return {f"fgvc-aircraft-2013b/{name}": content for name, content in files.items()}, crops


@pytest.mark.parametrize("packed", [True, False])
def test_aircraft_is_cropped_to_the_boxes(tmp_path: Path, packed: bool) -> None:
    files, crops = aircraft_files()
    name = "fgvc-aircraft-2013b.tar.gz"
    source = write_tar(tmp_path / name, files) if packed else write_folder(tmp_path / "in", files)
    made = tree(prepare("aircraft", source, tmp_path / "root", benchmark=AIRCRAFT))
    assert made.keys() == crops.keys()
    for image, content in made.items():
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))), crops[image])


def test_aircraft_without_annotations(tmp_path: Path) -> None:
    files, _ = aircraft_files()
    del files["fgvc-aircraft-2013b/data/images_box.txt"]
    with pytest.raises(PrepareError, match=r"does not contain images_box\.txt"):
        prepare("aircraft", write_folder(tmp_path / "in", files), tmp_path / "root", benchmark=AIRCRAFT)


def test_aircraft_in_another_order_is_a_warning(tmp_path: Path) -> None:
    files, crops = aircraft_files((VARIANTS[1], VARIANTS[0], *VARIANTS[2:]))
    with pytest.warns(UserWarning, match="another split"):
        made = prepare("aircraft", write_folder(tmp_path / "in", files), tmp_path / "root", benchmark=AIRCRAFT)
    assert tree(made).keys() == crops.keys()


BIRDS = {"train": ("001.A", "003.C"), "val": ("002.B",), "test": ("004.D",)}
CROPPED = small("cub_cropped", BIRDS, 1)


def bird_files() -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    """The archive, and what each crop must look like. The second box reaches beyond its image of 40×30 pixels."""
    files, crops, lines, boxes = {}, {}, [], []
    corners = {"001.A": (2, 3, 20, 10), "002.B": (30, 25, 15, 9), "003.C": (0, 0, 40, 30), "004.D": (7, 1, 5, 29)}
    for number, (name, (left, top, width, height)) in enumerate(corners.items(), start=1):
        split = next(part for part, names in BIRDS.items() if name in names)
        files[f"images/{name}/bird.{number}.jpg"] = content = picture(number)
        lines.append(f"{number} {name}/bird.{number}.jpg")
        boxes.append(f"{number} {left}.0 {top}.0 {width}.0 {height}.0")
        pixels = np.asarray(Image.open(io.BytesIO(content)))
        crops[f"{split}/{name}/bird.{number}.png"] = pixels[top : top + height, left : left + width]
    files["images.txt"] = "\n".join(lines).encode()
    files["bounding_boxes.txt"] = "\n".join(boxes).encode()
    return {f"CUB_200_2011/{name}": content for name, content in files.items()}, crops


@pytest.mark.parametrize("packed", [True, False])
def test_birds_are_cropped_to_their_boxes(tmp_path: Path, packed: bool) -> None:
    files, crops = bird_files()
    source = write_tar(tmp_path / "CUB_200_2011.tgz", files) if packed else write_folder(tmp_path / "in", files)
    made = tree(prepare("cub_cropped", source, tmp_path / "root", benchmark=CROPPED))
    assert made.keys() == crops.keys()
    for image, content in made.items():
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))), crops[image])
    assert crops["val/002.B/bird.2.png"].shape == (5, 10, 3)


def test_birds_without_boxes(tmp_path: Path) -> None:
    files, _ = bird_files()
    texts = {"CUB_200_2011/bounding_boxes.txt": b"1 0 0 5 5"}
    with pytest.raises(PrepareError, match=r"no box for the image 00.\../bird"):
        prepare("cub_cropped", write_folder(tmp_path / "in", files | texts), tmp_path / "root", benchmark=CROPPED)
    del files["CUB_200_2011/bounding_boxes.txt"]
    with pytest.raises(PrepareError, match=r"does not contain bounding_boxes\.txt"):
        prepare("cub_cropped", write_folder(tmp_path / "other", files), tmp_path / "root", benchmark=CROPPED)


def test_whole_birds_are_not_taken_for_cropped_ones(tmp_path: Path) -> None:
    files, _ = bird_files()
    whole = prepare("cub", write_folder(tmp_path / "in", files), tmp_path / "root", benchmark=small("cub", BIRDS, 1))
    with pytest.raises(PrepareError, match="was prepared as cub, not as cub_cropped"):
        prepare("cub_cropped", whole, tmp_path / "root", benchmark=CROPPED)


CARS = ("AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Ram C/V Cargo Van Minivan 2012")
CARS_FACTS = small(
    "cars",
    {"train": CARS[:1], "val": CARS[1:2], "test": CARS[2:]},
    {CARS[0]: 3, CARS[1]: 2, CARS[2]: 3},
    numbers={name: number for number, name in enumerate(CARS, start=1)},
)
TRAIN_LABELS, TEST_LABELS = (1, 3, 2, 1), (3, 2, 1, 3)
CARS_FOLDERS = {1: f"train/{CARS[0]}", 2: f"val/{CARS[1]}", 3: "test/Ram C-V Cargo Van Minivan 2012"}
PIXEL_FIELDS = [(f"bbox_{corner}", object) for corner in ("x1", "y1", "x2", "y2")]


def mat(rows: list[tuple[object, ...]], fields: list[tuple[str, type]]) -> bytes:
    """A .mat file with a 1×n structure array, as the devkit has it."""
    stream = io.BytesIO()
    table = np.array([rows], dtype=[*fields])
    savemat(stream, {"annotations": table, "class_names": np.array([CARS], dtype=object)})
    return stream.getvalue()


def devkit(labels: tuple[int, ...], with_labels: bool = True) -> bytes:
    fields = [*PIXEL_FIELDS, *([("class", object)] if with_labels else []), ("fname", object)]
    rows = [
        (np.uint8(1), np.uint8(2), np.uint8(9), np.uint8(8), *([np.uint8(label)] if with_labels else []), f"{i:05}.jpg")
        for i, label in enumerate(labels, start=1)
    ]
    return mat(rows, fields)


def car_images(part: str, labels: tuple[int, ...], seed: int) -> Files:
    return {f"cars_{part}/{i:05}.jpg": picture(seed + i) for i in range(1, len(labels) + 1)}


def divided() -> tuple[Files, Files, Files, bytes, dict[str, bytes]]:
    train, test = car_images("train", TRAIN_LABELS, 200), car_images("test", TEST_LABELS, 300)
    kit = {
        "devkit/cars_train_annos.mat": devkit(TRAIN_LABELS),
        "devkit/cars_test_annos.mat": devkit(TEST_LABELS, with_labels=False),
        "devkit/README.txt": b"read me",
    }
    expected = {
        f"{CARS_FOLDERS[label]}/{part}_{i:05}.jpg": images[f"cars_{part}/{i:05}.jpg"]
        for part, images, labels in (("train", train, TRAIN_LABELS), ("test", test, TEST_LABELS))
        for i, label in enumerate(labels, start=1)
    }
    return train, test, kit, devkit(TEST_LABELS), expected


@pytest.mark.parametrize("given", ["folder of archives", "one of the archives", "unpacked", "half unpacked"])
def test_cars_from_the_divided_archives(tmp_path: Path, given: str) -> None:
    train, test, kit, with_labels, expected = divided()
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "cars_test_annos_withlabels.mat").write_bytes(with_labels)
    for name, files in {"cars_train.tgz": train, "cars_test.tgz": test, "car_devkit.tgz": kit}.items():
        if given == "unpacked" or (given == "half unpacked" and name == "cars_test.tgz"):
            write_folder(folder, files)
        else:
            write_tar(folder / name, files)
    source = folder / "cars_train.tgz" if given == "one of the archives" else folder
    assert tree(prepare("cars", source, tmp_path / "root", benchmark=CARS_FACTS)) == expected


def test_cars_without_the_labels_of_the_test_images(tmp_path: Path) -> None:
    train, test, kit, _, _ = divided()
    source = write_folder(tmp_path / "in", {**train, **test, **kit})
    with pytest.raises(PrepareError, match=r"does not contain cars_test_annos_withlabels\.mat"):
        prepare("cars", source, tmp_path / "root", benchmark=CARS_FACTS)
    (source / "cars_test_annos_withlabels.mat").write_bytes(devkit(TEST_LABELS, with_labels=False))
    with pytest.raises(PrepareError, match="annotations of the cars cannot be read"):
        prepare("cars", source, tmp_path / "root", benchmark=CARS_FACTS)


@pytest.mark.parametrize("packed", [True, False])
def test_cars_from_the_single_archive(tmp_path: Path, packed: bool) -> None:
    labels = TRAIN_LABELS + TEST_LABELS
    images = {f"car_ims/{i:06}.jpg": picture(400 + i) for i in range(1, len(labels) + 1)}
    fields = [("relative_im_path", object), *PIXEL_FIELDS, ("class", object), ("test", object)]
    rows: list[tuple[object, ...]] = [
        (name, np.uint8(1), np.uint8(2), np.uint16(900), np.uint8(8), np.uint8(label), np.uint8(0))
        for name, label in zip(images, labels, strict=True)
    ]
    folder = write_folder(tmp_path / "in", {"cars_annos.mat": mat(rows, fields)} | ({} if packed else images))
    if packed:
        write_tar(folder / "car_ims.tgz", images)
    made = tree(prepare("cars", folder, tmp_path / "root", benchmark=CARS_FACTS))
    assert made == {
        f"{CARS_FOLDERS[label]}/{name.split('/')[1]}": content
        for (name, content), label in zip(images.items(), labels, strict=True)
    }
