"""Find a data set by name or path, check its splits, and load one of them."""

import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from deepbdc._words import counted
from deepbdc.data.benchmarks import SPLITS
from deepbdc.data.dataset import ArrayDataset, Dataset, FolderDataset, concatenate
from deepbdc.data.images import IMAGE_SUFFIXES, BadImage
from deepbdc.data.npz import read_arrays
from deepbdc.errors import UserError


class NoSuchSplit(UserError):
    """The data set does not have the requested split."""


def list_datasets() -> list[str]:
    """List the names that `load_dataset` accepts: ``glyphs`` and the benchmarks, which must be prepared once."""
    from deepbdc.data import benchmarks

    return benchmarks.names()


def load_dataset(
    name_or_path: str | Path,
    split: str = "test",
    *,
    root: str | Path | None = None,
    split_file: str | Path | None = None,
    at_least: int = 1,
    skip_bad: bool = False,
) -> Dataset:
    """Load one split of a data set.

    Args:
        name_or_path: A name from `list_datasets`; a folder ``train|val|test/class/image``; a folder of classes with a
            split file; or an ``.npz`` file of arrays (``images``, ``labels``, ``class_names``, ``class_split``).
        split: ``train``, ``val``, ``test``, or ``all`` for the classes of all splits.
        root: The folder of the prepared benchmarks (default: the environment variable ``DEEPBDC_DATA``, else a cache
            folder). An array benchmark may be stored there in parts, ``NAME_*.npz``.
        split_file: For a folder of classes: a JSON file ``{"train": [class, ...], "val": [...], "test": [...]}``
            (default: ``splits.json`` in the folder, if it exists).
        at_least: The number of images that each class must have at least.
        skip_bad: Decode every file of a folder now, and leave out unreadable images with a warning. By default, an
            unreadable image raises an error when it is first used.

    Returns:
        The data set, with classes in sorted order.

    Raises:
        FileNotFoundError: The data set does not exist or has not been prepared.
        UserError: Splits share a class, an image file occurs twice, or a class has too few images.
    """
    if split not in (*SPLITS, "all"):
        raise UserError(f"split must be one of {', '.join(SPLITS)} or all, got {split!r}")
    path = Path(name_or_path)
    if str(name_or_path) in list_datasets():
        dataset = _load_named(str(name_or_path), split, root)
    elif path.suffix == ".npz" and path.is_file():
        dataset = _load_arrays(path, split, path.stem)
    elif path.is_dir():
        dataset = _load_folder(path, split, split_file, path.name)
    else:
        raise _unknown(name_or_path)
    if skip_bad and isinstance(dataset, FolderDataset):
        dataset = _without_bad_files(dataset)
    for name, count in dataset.counts().items():
        if count < at_least:
            raise UserError(f"{dataset.name} {split}: class {name!r} has {count} images, {at_least} are needed")
    return dataset


def find_data(name: str, given: str | Path | None) -> tuple[str | Path, Path | None]:
    """Find the data for a recipe; return the arguments ``name_or_path`` and ``root`` of `load_dataset`.

    Args:
        name: The data set that the recipe names.
        given: Where the user wants the data to come from, if anywhere: the folder of the prepared benchmarks (for
            ``glyphs``, any folder), the name of another data set, or another data set as a folder or an ``.npz`` file.
    """
    from deepbdc.data import benchmarks

    if given is None:
        return name, None
    path = Path(given)
    is_dataset = path.is_file() or (path / "splits.json").is_file() or any((path / part).is_dir() for part in SPLITS)
    if name in list_datasets() and path.is_dir() and not is_dataset and benchmarks.is_prepared(name, path):
        return name, path
    if str(given) in list_datasets():
        return str(given), None
    if path.suffix == ".npz" if path.is_file() else is_dataset:
        return path, None
    raise _not_found(name, path)


def _not_found(name: str, given: Path) -> FileNotFoundError:
    """Build the error for a path without data; it says what was looked for."""
    from deepbdc.data import benchmarks

    if not given.is_dir():
        what = (
            "is neither a folder nor an .npz file"
            if given.exists()
            else "does not exist, and no data set has that name"
        )
        return FileNotFoundError(f"the data {given} {what}: give a folder that contains {name}, or another data set")
    wanted = []
    for part in benchmarks.components(name) if name in list_datasets() else []:
        place = benchmarks.prepared_path(part, given)
        arrays = f"{place.name} (or parts {part}_*.npz with all of its classes)"
        wanted.append(arrays if place.suffix == ".npz" else f"the folder {part} made by 'deepbdc data prepare {part}'")
    own = "folders train, val and test, or a splits.json"
    return FileNotFoundError(
        f"there is no data in {given}: looked for {' and '.join(wanted)}{', or ' if wanted else ''}{own}"
    )


def load_splits(name_or_path: str | Path, root: str | Path | None = None) -> dict[str, Dataset]:
    """Load all splits for a training run: ``train``, and ``val`` and ``test`` if the data set has them."""
    found = {"train": load_dataset(name_or_path, "train", root=root)}
    for split in ("val", "test"):
        with suppress(NoSuchSplit):
            found[split] = load_dataset(name_or_path, split, root=root)
    return found


def _unknown(name_or_path: str | Path) -> FileNotFoundError:
    from deepbdc._registry import nearest

    guess = nearest(str(name_or_path), list_datasets())
    return FileNotFoundError(f"{name_or_path} is neither a data set, nor a folder, nor an .npz file{guess}")


def _load_named(name: str, split: str, root: str | Path | None) -> Dataset:
    from deepbdc.data import benchmarks

    if name == "glyphs":
        from deepbdc.data.glyphs import glyphs_file

        return _load_arrays(glyphs_file(benchmarks.data_root(root)), split, name)
    wanted = SPLITS if split == "all" else (split,)
    sources = dict.fromkeys(source for part in wanted for source in benchmarks.sources(name, part))
    parts = []
    for benchmark, part in sources:
        path = benchmarks.prepared_path(benchmark, root)
        if path.suffix == ".npz" and not path.is_file():
            parts += _load_parts(benchmark, part, root)
        elif not benchmarks.is_prepared(benchmark, root):
            raise benchmarks.NotPrepared(benchmark, path)
        else:
            load = _load_arrays if path.suffix == ".npz" else _load_split_folder
            parts.append(load(path, part, benchmark))
    return concatenate(parts, name, split)


def _load_parts(name: str, split: str, root: str | Path | None) -> list[Dataset]:
    """Load a split of a benchmark that is stored in parts ``NAME_*.npz``, from the parts with classes of the split."""
    from deepbdc.data import benchmarks

    files = benchmarks.array_files(name, root)
    if not files:
        raise benchmarks.NotPrepared(name, benchmarks.prepared_path(name, root))
    owners: dict[str, Path] = {}
    for path in files:
        for class_name, part in benchmarks.classes_in(path).items():
            if part == split and (other := owners.setdefault(class_name, path)) != path:
                raise UserError(f"class {class_name!r} of {name} is in {other} and in {path}: move one of them away")
    needed = len(benchmarks.get(name).classes[split])
    if len(owners) != needed:
        raise FileNotFoundError(
            f"{name} {split} has {needed} classes, but {' and '.join(map(str, files))} have images of {len(owners)}: "
            f"add the missing part, or prepare {name}.npz as 'deepbdc data list' says"
        )
    return [_load_arrays(path, split, name, only_with_images=True) for path in sorted(set(owners.values()))]


def _load_arrays(path: Path, split: str, name: str, *, only_with_images: bool = False) -> Dataset:
    images, labels, class_names, class_split = read_arrays(path)
    twice = sorted(class_name for class_name, count in Counter(class_names).items() if count > 1)
    if twice:
        raise UserError(f"{path} has a class twice: {', '.join(twice)}; splits must not share classes")
    present = set(labels.tolist()) if only_with_images else range(len(class_names))
    chosen = [index for index, part in enumerate(class_split) if split in (part, "all") and index in present]
    if not chosen:
        raise NoSuchSplit(
            f"{path} has no classes in the split {split!r}, only in {', '.join(sorted(set(class_split)))}"
        )
    new_label = np.full(len(class_names), -1)
    new_label[chosen] = np.arange(len(chosen))
    keep = new_label[labels] >= 0
    colour = _as_colour(images[keep])
    return ArrayDataset(colour, new_label[labels[keep]], [class_names[index] for index in chosen], name, split)


def _as_colour(images: np.ndarray) -> np.ndarray:
    images = images[..., None] if images.ndim == 3 else images
    return np.repeat(images, 3, axis=3) if images.shape[3] == 1 else images


def _load_folder(path: Path, split: str, split_file: str | Path | None, name: str) -> Dataset:
    present = [part for part in SPLITS if (path / part).is_dir()]
    if split_file is None and present and not (path / "splits.json").is_file():
        classes = {part: [folder.name for folder in _folders(path / part)] for part in present}
        _check_disjoint(path, classes)
        _check_links(path, present)
        wanted = present if split == "all" else [split]
        if split != "all" and split not in present:
            raise NoSuchSplit(f"{path} has no folder {split!r}, only {', '.join(present)}")
        return concatenate([_load_split_folder(path, part, name) for part in wanted], name, split)
    splits = _read_split_file(path, split_file)
    if splits is None and split != "all":
        raise UserError(
            f"{path} has neither train, val and test folders nor a splits.json: give a split_file, "
            "or split='all' for all of its classes"
        )
    if splits is not None and split != "all" and not splits.get(split):
        raise NoSuchSplit(f"{path} has no classes in the split {split!r}, only in {', '.join(splits)}")
    found = [folder.name for folder in _folders(path)]
    wanted = found if splits is None or split == "all" else splits.get(split, [])
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise UserError(f"{path} lacks classes of the split {split!r}: {', '.join(missing[:5])}")
    return _files_of([path / class_name for class_name in wanted], name, split)


def _read_split_file(path: Path, split_file: str | Path | None) -> Mapping[str, list[str]] | None:
    file = Path(split_file) if split_file is not None else path / "splits.json"
    if split_file is None and not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {error}") from error
    splits = content.get("splits", content) if isinstance(content, dict) else None
    lists = {part: splits[part] for part in SPLITS if part in splits} if isinstance(splits, dict) else {}
    if not lists or not all(isinstance(names, list) for names in lists.values()):
        raise UserError(f'{file} must hold {{"train": [class, ...], "val": [...], "test": [...]}}')
    _check_disjoint(file, lists)
    return lists


def _check_disjoint(where: Path, classes: Mapping[str, Sequence[str]]) -> None:
    seen: dict[str, str] = {}
    for part, names in classes.items():
        for class_name in names:
            if (other := seen.setdefault(class_name, part)) != part:
                raise UserError(
                    f"{where}: class {class_name!r} is in {other} and in {part}; splits must not share classes"
                )


def _check_links(path: Path, splits: Sequence[str]) -> None:
    """Raise an error if two splits contain the same file, by hard or symbolic links."""
    seen: dict[tuple[int, int], Path] = {}
    for folder in (folder for split in splits for folder in _folders(path / split)):
        for file in filter(is_image, folder.iterdir()):
            stat = file.stat()
            if stat.st_ino and (other := seen.setdefault((stat.st_dev, stat.st_ino), file)) != file:
                raise UserError(f"{path} contains the same image file twice: {other} and {file}")


def _load_split_folder(path: Path, split: str, name: str) -> Dataset:
    return _files_of(_folders(path / split), name, split)


def _files_of(folders: Sequence[Path], name: str, split: str) -> Dataset:
    files, labels = [], []
    for label, folder in enumerate(folders):
        found = sorted(file for file in folder.iterdir() if is_image(file))
        files += found
        labels += [label] * len(found)
    return FolderDataset(files, np.array(labels, dtype=np.int64), [folder.name for folder in folders], name, split)


def class_folders(path: Path) -> dict[str, list[Path]]:
    """Map the name of each subfolder to its image files; raise an error if there are none, or a subfolder has none."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path} {'is not a folder' if path.exists() else 'does not exist'}")
    found = {folder.name: sorted(file for file in folder.iterdir() if is_image(file)) for folder in _folders(path)}
    if not found:
        loose = sum(is_image(file) for file in path.iterdir())
        lie = counted(loose, "picture lies", "pictures lie")
        hint = f", but {lie} in it: move them into folders named after their classes" if loose else ""
        raise UserError(f"{path} has no folder for each class{hint}")
    empty = [name for name, files in found.items() if not files]
    if empty:
        endings = sorted({file.suffix.lower() for name in empty for file in (path / name).iterdir() if file.suffix})
        others = f"; they contain files of type {', '.join(endings[:5])}" if endings else ""
        hint = "; convert HEIC files to JPEG first" if ".heic" in endings else ""
        raise UserError(f"{path} has class folders without pictures: {', '.join(empty[:5])}{others}{hint}")
    return found


def _without_bad_files(dataset: FolderDataset) -> FolderDataset:
    good = []
    for index in range(len(dataset)):
        try:
            dataset.image(index)
            good.append(index)
        except BadImage as error:
            warnings.warn(f"left out: {error}", stacklevel=3)
    files, labels = [dataset.files[index] for index in good], dataset.labels.numpy()[good]
    return FolderDataset(files, labels, dataset.class_names, dataset.name, dataset.split)


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))


def is_image(file: Path) -> bool:
    """Whether a path is a file with the suffix of an image format, and not hidden."""
    return file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".") and file.is_file()
