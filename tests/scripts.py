"""Load scripts that are not part of the package, as modules."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def script(name: str, folder: str = "benchmarks") -> Any:
    """The script ``FOLDER/NAME.py`` of the repository as a module; it finds the scripts beside it."""
    place = ROOT / folder
    spec = importlib.util.spec_from_file_location(f"{folder}_{name}", place / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))
    spec.loader.exec_module(module)
    return module
