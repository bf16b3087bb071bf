"""What several commands share: the default folder of a run, and which process prints."""

from pathlib import Path


def run_folder(recipe: str, runs: str | Path = "runs") -> Path:
    """The default folder of a run: the name of the recipe, or of the YAML file without its suffix, in ``runs``."""
    path = Path(recipe)
    return Path(runs) / (path.stem if path.suffix in (".yaml", ".yml") else recipe)


def is_main_process() -> bool:
    """Whether this process prints: the first of several, or the only one."""
    from torch import distributed

    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0
