from pathlib import Path

import pytest

from tests.training import tiny


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_data(tmp_path_factory.mktemp("tiny") / "tiny.npz")
