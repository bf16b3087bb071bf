"""What several commands share: errors in words, where runs lie, and who prints."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn


@contextmanager
def errors_in_words(command: str) -> Iterator[None]:
    """A mistake of the user ends with a sentence, not with a traceback. The exit code is 1, or 130 after Ctrl-C."""
    try:
        yield
    except (ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError) as error:
        raise SystemExit(f"deepbdc {command}: {error}") from error
    except KeyboardInterrupt as error:
        _interrupted(command, str(error) or "interrupted. What was done is kept.")
    except Exception as error:
        training = sys.modules.get("deepbdc.training.run")  # if nobody imported it, the error is none of its own
        if training is not None and isinstance(error, training.Interrupted):
            _interrupted(command, str(error))
        if training is not None and isinstance(error, training.TrainingError):
            raise SystemExit(f"deepbdc {command}: {error}") from error
        raise


def _interrupted(command: str, message: str) -> NoReturn:
    """End as a shell expects it of a program that was interrupted."""
    print(f"deepbdc {command}: {message}", file=sys.stderr)
    raise SystemExit(130) from None


def run_folder(recipe: str, runs: str | Path = "runs") -> Path:
    """Where the run of a recipe lies by default: under its name; of a file, under the name of the file."""
    path = Path(recipe)
    return Path(runs) / (path.stem if path.suffix in (".yaml", ".yml") else recipe)


def is_main_process() -> bool:
    """Whether this process is the one that prints, or the only one."""
    from torch import distributed

    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0
