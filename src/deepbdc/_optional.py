"""Import optional dependencies, or raise an error with the pip command that installs them."""

from importlib import import_module
from types import ModuleType

from deepbdc.errors import MissingPackage


def require(module: str, extra: str) -> ModuleType:
    """Import ``module``, which the extra ``deepbdc[extra]`` installs."""
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
