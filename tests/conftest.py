import os
from pathlib import Path

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
