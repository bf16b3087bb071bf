"""The command line. It parses the arguments, calls a function of `deepbdc.commands` and turns errors into messages."""

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError

from deepbdc import __version__
from deepbdc.errors import Note, UserError

OWN_IMAGES = Group("Classify your own images", sort_key=1)
BENCHMARKS = Group("Train and evaluate on few-shot benchmarks", sort_key=2)
GENERAL = Group("General options", sort_key=9)

app = App(
    name="deepbdc",
    help="""Few-shot image classification with Deep Brownian Distance Covariance.

    Start with your own images (two folders of JPEG or PNG files), or with a recipe that needs no download:

        deepbdc classify examples photos
        deepbdc train glyphs/protonet

    `deepbdc COMMAND --help` explains a command and its options.
    """,
    version=f"deepbdc {__version__}",
    default_parameter=Parameter(negative=()),  # no --no-resume beside --resume
    group_parameters=Group.create_default_parameters("Options"),
    exit_on_error=False,
    print_error=False,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
app.meta.suppress_keyboard_interrupt = False  # it does not take over the setting; `main` answers Ctrl-C


# The modules of the commands are imported on first use.
app.command(
    "deepbdc.commands.classify:classify_images",
    name="classify",
    usage="Usage: deepbdc classify EXAMPLES IMAGE... [OPTIONS]",
    group=OWN_IMAGES,
    sort_key=1,
)
app.command("deepbdc.commands.undo:undo_sorting", name="undo", group=OWN_IMAGES, sort_key=2)
app.command("deepbdc.commands.fit:fit_examples", name="fit", group=OWN_IMAGES, sort_key=3)
app.command("deepbdc.commands.explain:explain_image", name="explain", group=OWN_IMAGES, sort_key=4)
app.command("deepbdc.commands.check:check_folder", name="check", group=OWN_IMAGES, sort_key=5)
app.command(
    "deepbdc.commands.suggest:suggest_pictures",
    name="suggest",
    usage="Usage: deepbdc suggest EXAMPLES PICTURE... [OPTIONS]",
    group=OWN_IMAGES,
    sort_key=6,
)
app.command(
    "deepbdc.commands.watch:watch_folder",
    name="watch",
    usage="Usage: deepbdc watch EXAMPLES FOLDER [OPTIONS]",
    group=OWN_IMAGES,
    sort_key=7,
)
app.command("deepbdc.commands.serve:serve_classifier", name="serve", group=OWN_IMAGES, sort_key=8)
app.command("deepbdc.commands.app:app", name="app", group=OWN_IMAGES, sort_key=9)
app.command(
    "deepbdc.commands.train:train_recipe",
    name="train",
    usage="Usage: deepbdc train RECIPE [KEY=VALUE...] [OPTIONS]",
    group=BENCHMARKS,
    sort_key=1,
)
app.command("deepbdc.commands.evaluate:evaluate_model", name="evaluate", group=BENCHMARKS, sort_key=2)
app.command(
    "deepbdc.commands.compare:compare",
    name="compare",
    usage="Usage: deepbdc compare RECIPE... [KEY=VALUE...] [OPTIONS]",
    group=BENCHMARKS,
    sort_key=3,
)
app.command("deepbdc.commands.methods:list_methods", name="methods", group=BENCHMARKS, sort_key=4)
app.command("deepbdc.commands.paper:paper", name="paper", group=BENCHMARKS, sort_key=5)

data = App(name="data", help="List, prepare and check data sets.", group=BENCHMARKS, sort_key=6)
data.command("deepbdc.commands.data:data_list", name="list", sort_key=1)
data.command("deepbdc.commands.data:data_prepare", name="prepare", sort_key=2)
data.command("deepbdc.commands.data:data_check", name="check", sort_key=3)
app.command(data)

app.register_install_completion_command(
    help="Install Tab completion for bash, zsh or fish (for a shell other than $SHELL: --shell NAME).",
    group=GENERAL,
)
for flag, text in {"--help": "Show this help.", "--version": "Show the version."}.items():
    app[flag].group = GENERAL
    app[flag].help = text


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ``deepbdc`` command with ``arguments``, by default those of the process.

    Exit codes: 1 for an error that the user can fix, 2 for a wrong command line, 130 after Ctrl-C.
    """
    # OpenMP reads this when torch is imported. Threads that spin while they wait slow down other programs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _show_only_our_warnings()
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        _, apps, _ = app.parse_commands([token for token in given if not token.startswith("-")])
        apps[-1].resolved_commands()  # imports the subcommands, whose docstrings a help page needs; most have none
        app.meta(given)
    except CycloptsError as error:
        print(_usage_message(error), file=sys.stderr)
        raise SystemExit(2) from error
    except KeyboardInterrupt as error:
        if arguments is None:  # in a program of its own, the next Ctrl-C would interrupt the exit with a traceback
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(str(error) or "deepbdc: interrupted.", file=sys.stderr)
        raise SystemExit(130) from None


def _show_only_our_warnings() -> None:
    """Print our own warnings as notes, without file name and source line, and hide those of other libraries.

    Whoever asks Python for warnings (``python -W``, PYTHONWARNINGS) gets them all.
    """
    warnings.formatwarning = lambda message, *_, **__: f"Note: {message}\n"
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("default", module="deepbdc")
        warnings.filterwarnings("default", category=Note)


@app.meta.default
def _run(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    debug: Annotated[bool, Parameter(show_default=False, group=GENERAL)] = False,
) -> None:
    """Parse the command line and run its command.

    Args:
        tokens: The command, its arguments and its options.
        debug: Show the Python traceback of every error. The environment variable DEEPBDC_DEBUG=1 does the same.
    """
    command, bound, _ = app.parse_args(tokens)
    names, apps, _ = app.parse_commands(tokens)
    if debug or os.environ.get("DEEPBDC_DEBUG", "0") not in ("", "0"):
        command(*bound.args, **bound.kwargs)
    else:
        _call(" ".join(["deepbdc", *names]), command, *bound.args, **bound.kwargs)
    if len(tokens) == len(names) and apps[-1].default_command is None:
        raise SystemExit(2)  # the help was printed because no command was given


def _call(name: str, command: Any, *arguments: Any, **options: Any) -> None:
    """Call a command. Errors that the user can fix become a message; all others are bugs and keep their traceback."""
    try:
        command(*arguments, **options)
    except (UserError, OSError) as error:
        raise SystemExit(f"{name}: {error}") from error
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"{name}: {str(error) or 'interrupted. Finished work is kept.'}") from None


def _usage_message(error: CycloptsError) -> str:
    """One line that says what is wrong with the command line."""
    name = " ".join(["deepbdc", *(error.command_chain or ())])
    error.command_chain = None  # else some messages would repeat the name of the command
    if isinstance(error, UnusedCliTokensError):
        message = f"Too many arguments: {' '.join(error.unused_tokens or ())}."
    else:
        message = str(error)
    return f"{name}: {message} '{name} --help' shows the arguments and options."
