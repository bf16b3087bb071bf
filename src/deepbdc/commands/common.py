"""What several commands share: the default folder of a run, a check of --device, and what is printed by whom."""

import sys
from pathlib import Path

from deepbdc.errors import UserError


def run_folder(recipe: str, runs: str | Path = "runs") -> Path:
    """The default folder of a run: the name of the recipe, or of the YAML file without its suffix, in ``runs``."""
    path = Path(recipe)
    return Path(runs) / (path.stem if path.suffix in (".yaml", ".yml") else recipe)


def check_device(name: str) -> None:
    """Raise an error if torch cannot compute on the device ``name``."""
    import torch

    try:
        torch.zeros((), device=name)
    except (RuntimeError, AssertionError) as error:  # an AssertionError if torch is built without support for it
        reason = str(error).partition("\n")[0]
        raise UserError(f"--device {name} cannot be used on this computer: {reason}") from error


def is_main_process() -> bool:
    """Whether this process prints: the first of several, or the only one."""
    from torch import distributed

    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def say_at_once(text: str) -> None:
    """Print what the command is about to do, before it imports what takes long. Results alone go to stdout."""
    print(text, file=sys.stderr, flush=True)
