"""Import optional dependencies, or say which pip command adds them."""

from importlib import import_module
from types import ModuleType

from deepbdc.errors import MissingPackage


def require(module: str, extra: str) -> ModuleType:
    """Import ``module``, which comes with the extra ``deepbdc[extra]``."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise MissingPackage(
            f"this needs the package {error.name!r}, which is not installed: pip install 'deepbdc[{extra}]' "
            f"(in a clone of the repository: pip install -c constraints.txt -e '.[{extra}]')",
            name=error.name,
        ) from error
