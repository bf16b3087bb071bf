import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before torch is loaded: tests share the machine, and threads that spin while they wait slow each other down.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:  # several tests run at a time: one core for each
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

import deepbdc  # noqa: F401  (before what imports torchvision, also when a test file is run alone)

settings.register_profile("deepbdc", deadline=None, max_examples=40, derandomize=bool(os.environ.get("CI")))
settings.load_profile("deepbdc")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures for trainings of seconds."""
    from tests.training import tiny

    return tiny.write_data(tmp_path_factory.mktemp("tiny") / "tiny.npz")


@pytest.fixture
def power_cut(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the training fail at some of its steps, counted from 1 over all trainings that follow."""

    def cut(*steps: int) -> None:
        from deepbdc.training.loop import Trainer

        real, calls = Trainer.step, []

        def step(self: Trainer, *given: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) in steps:
                raise RuntimeError("power cut")
            return real(self, *given, **options)

        monkeypatch.setattr(Trainer, "step", step)

    return cut


FIRST = ("training/test_processes", "training/test_resume", "app/test_browser", "test_own_images_page", "test_cli")
"""The files that take longest: they start first, so that no core waits for the other at the end."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, so that its fixtures are made once, and let the longest files start first."""
    places = {
        item: next((place for place, name in enumerate(FIRST) if name in item.nodeid), len(FIRST)) for item in items
    }
    items.sort(key=lambda item: places[item])
    for item in items:
        item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
