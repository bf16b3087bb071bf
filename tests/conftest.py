import os

# Before torch is loaded: tests share the machine, and threads that spin while they wait slow each other down.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from hypothesis import settings

import deepbdc  # noqa: F401  (before what imports torchvision, also when a test file is run alone)

settings.register_profile("deepbdc", deadline=None, max_examples=40, derandomize=bool(os.environ.get("CI")))
settings.load_profile("deepbdc")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
