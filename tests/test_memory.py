"""How much memory a process may use. The tests write the files of the proc and cgroup file systems themselves."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from deepbdc import feature_bank
from deepbdc._memory import usable_memory
from deepbdc.data.dataset import ArrayDataset
from deepbdc.embedding import pixel_embedding

PHYSICAL = 64 * 2**30
LIMIT = 3 * 2**30


@pytest.fixture(autouse=True)
def physical_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": PHYSICAL // 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)


def usable(tmp_path: Path, groups: str | None, limits: dict[str, str]) -> int:
    """The answer for a process with this /proc/self/cgroup and these files below /sys/fs/cgroup."""
    if groups is not None:
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "self" / "cgroup").write_text(groups)
    for name, content in limits.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return usable_memory(tmp_path / "proc", tmp_path / "cgroup")


@pytest.mark.parametrize(
    "limits",
    [
        {"a/b/memory.max": f"{LIMIT}\n"},
        {"a/memory.max": f"{LIMIT}\n", "a/b/memory.max": "max\n"},  # only the parent has a limit
        {"a/memory.max": f"{LIMIT}\n", "a/b/memory.max": f"{2 * LIMIT}\n"},  # the lowest limit counts
        {"a/memory.max": f"{2 * LIMIT}\n", "a/b/memory.max": f"{LIMIT}\n"},
        {"memory.max": f"{LIMIT}\n"},  # a container whose own group is mounted as the root
    ],
)
def test_version_2(tmp_path: Path, limits: dict[str, str]) -> None:
    assert usable(tmp_path, "0::/a/b\n", limits) == LIMIT


@pytest.mark.parametrize("group", ["/", "/..", "/../../a"])
def test_the_root_group_and_groups_outside_of_the_namespace(tmp_path: Path, group: str) -> None:
    (tmp_path / "memory.max").write_text("1")  # not part of the cgroup file system
    assert usable(tmp_path, f"0::{group}\n", {"memory.max": str(LIMIT)}) == LIMIT


@pytest.mark.parametrize("folder", ["docker/a:b", "docker", "."])
def test_version_1(tmp_path: Path, folder: str) -> None:
    groups = "12:cpu,cpuacct:/docker/a:b\n9:devices,memory:/docker/a:b\n0::/\n"
    limits = {
        f"memory/{folder}/memory.limit_in_bytes": f"{LIMIT}\n",
        "cpu/docker/memory.limit_in_bytes": "1",  # of another controller
    }
    assert usable(tmp_path, groups, limits) == LIMIT


@pytest.mark.parametrize("content", ["max\n", "", "much", "-1", "0", "12 kB", "9223372036854771712\n", "\x00\xff"])
def test_no_limit_or_nonsense_leaves_the_physical_memory(tmp_path: Path, content: str) -> None:
    limits = {"a/memory.max": content, "memory/a/memory.limit_in_bytes": content}
    assert usable(tmp_path, "0::/a\n9:memory:/a\n", limits) == PHYSICAL


@pytest.mark.parametrize("groups", [None, "", "nonsense\n:::\n\n", "9:memory:/elsewhere\n0::/elsewhere\n"])
def test_without_control_groups_it_is_the_physical_memory(tmp_path: Path, groups: str | None) -> None:
    assert usable(tmp_path, groups, {}) == PHYSICAL


def unknown(name: str) -> int:
    raise ValueError(f"unrecognized configuration name {name}")


@pytest.mark.parametrize("sysconf", [unknown, lambda _name: -1, lambda name: 4096 if name == "SC_PAGE_SIZE" else -1])
def test_unknown_physical_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sysconf: object) -> None:
    monkeypatch.setattr(os, "sysconf", sysconf)
    assert usable(tmp_path / "nothing", None, {}) == 8 * 2**30
    assert usable(tmp_path / "limited", "0::/a\n", {"a/memory.max": str(LIMIT)}) == LIMIT


def test_a_directory_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "cgroup" / "memory.max").mkdir(parents=True)
    assert usable(tmp_path, "0::/\n", {}) == PHYSICAL


def test_on_this_machine() -> None:
    assert 0 < usable_memory() <= PHYSICAL


@pytest.mark.parametrize(("usable", "kept"), [(4 * 96, "float32"), (4 * 96 - 1, "float16")])
def test_a_feature_bank_takes_a_quarter_of_it(usable: int, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two images of 2×2 pixels and 3 colours are 96 bytes in float32."""
    monkeypatch.setattr(feature_bank, "usable_memory", lambda: usable)
    dataset = ArrayDataset(np.zeros((2, 2, 2, 3), dtype=np.uint8), np.arange(2), ["a", "b"], "made", "test")
    bank = feature_bank.build_bank(pixel_embedding(2), dataset)
    assert bank.kept == f"representations, {kept}"


PAGES_OF_SECOND_BLOCK = """
import ctypes, resource, sys
from deepbdc._memory import keep_freed_memory
keep_freed_memory(large_blocks=sys.argv[1] == "large")
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = library.malloc(2**26)
    ctypes.memset(block, 1, 2**26)
    library.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
pages()
print(pages())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library must be glibc")
def test_large_blocks_are_kept_on_request() -> None:
    def pages(kind: str) -> int:
        command = [sys.executable, "-c", PAGES_OF_SECOND_BLOCK, kind]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert pages("large") == 0
    assert pages("usual") > 0  # 64 MB came from the system again
