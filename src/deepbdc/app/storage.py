"""Keeps the work of visitors on disk, so that it outlives the server. Each visitor has a folder of their own.

A folder holds ``work.json`` (classes, and what each picture is) and one file for each picture: its features, its
thumbnail and the file that the person gave, as tensors. The name of a folder is a hash of the visitor's id, so nobody
finds a folder without knowing the id, and no id leads to another place on the disk.
"""

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from deepbdc import weight_files
from deepbdc._files import write_bytes
from deepbdc.errors import UserError
from deepbdc.estimator import EmbeddedImage

_WORK = "work.json"
_KIND = "picture"
_FORMAT = 1


def data_folder() -> Path:
    """Where programs keep the data of the person who runs them; the operating system says where."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "deepbdc" / "page"


class Shelf:
    """The folder of one visitor. It comes into being with the first thing that is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, work: dict[str, Any]) -> None:
        """Keep what the page shows. The pictures must have been kept before."""
        self._make_folder()
        write_bytes(self.folder / _WORK, json.dumps({"format": _FORMAT, **work}).encode())

    def read(self) -> dict[str, Any] | None:
        """What was kept; None if there is nothing, or nothing that this version can read."""
        try:
            work: dict[str, Any] = json.loads((self.folder / _WORK).read_bytes())
        except (OSError, ValueError):
            return None
        return work if work.get("format") == _FORMAT else None

    def keep_picture(self, picture_id: str, image: EmbeddedImage, original: bytes) -> None:
        """Keep a picture and the file that it came from (empty if there is none)."""
        tensors = {
            "features": image.features,
            "thumbnail": _from_bytes(image.thumbnail),
            "original": _from_bytes(original),
            **({} if image.parts is None else {"parts": image.parts}),
        }
        header = {"kind": _KIND, "name": image.name, "network": image.network}
        self._make_folder()
        weight_files.save(self._place(picture_id), tensors, header)

    def image(self, picture_id: str) -> EmbeddedImage | None:
        """A kept picture; None if it is missing or damaged."""
        path = self._place(picture_id)
        try:
            header = weight_files.load_header(path)
            with safe_open(path, "pt") as file:
                features, thumbnail = file.get_tensor("features"), file.get_tensor("thumbnail")
                parts = file.get_tensor("parts") if "parts" in file.keys() else None  # noqa: SIM118
        except (OSError, UserError, SafetensorError):
            return None
        return EmbeddedImage(header["name"], features, _to_bytes(thumbnail), header["network"], parts)

    def original(self, picture_id: str) -> bytes:
        """The file that a picture came from; empty if there is none."""
        try:
            with safe_open(self._place(picture_id), "pt") as file:
                return _to_bytes(file.get_tensor("original"))
        except (OSError, SafetensorError):
            return b""

    def forget_others(self, wanted: Iterable[str]) -> None:
        """Delete the pictures that are not among the wanted ones."""
        names = {self._place(picture_id).name for picture_id in wanted}
        for path in self.folder.glob("*.safetensors"):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def touch(self) -> None:
        """Note that the visitor was here, so that the folder counts as used."""
        (self.folder / _WORK).touch()

    def _make_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # other users of this computer cannot look into it

    def _place(self, picture_id: str) -> Path:
        return self.folder / f"{picture_id}.safetensors"


@dataclass(frozen=True)
class Storage:
    """The folders of all visitors.

    Args:
        root: The folder that holds them.
        most_bytes: How much they may hold together.
        lasting: Whether they outlive the server.
    """

    root: Path
    most_bytes: int
    lasting: bool = True

    def shelf(self, visitor_id: str) -> Shelf:
        """The folder of a visitor, which need not exist yet."""
        return Shelf(self.root / hashlib.sha256(visitor_id.encode()).hexdigest()[:40])

    def has_room(self) -> bool:
        """Whether there is room for more pictures."""
        return sum(path.stat().st_size for path in self.root.glob("*/*") if path.is_file()) < self.most_bytes

    def forget_old(self, days: float) -> None:
        """Delete the work of visitors who have been away for so long. Their browser has forgotten their id, too."""
        oldest = time.time() - days * 24 * 3600
        for folder in self.root.glob("*"):
            used = [path.stat().st_mtime for path in (folder / _WORK, folder) if path.exists()]
            if used and max(used) < oldest:
                shutil.rmtree(folder, ignore_errors=True)


def _from_bytes(content: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())


def _to_bytes(values: torch.Tensor) -> bytes:
    content: bytes = values.numpy().tobytes()
    return content
