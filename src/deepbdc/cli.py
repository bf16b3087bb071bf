"""The command line: it parses, calls a function of `deepbdc.commands`, and that prints."""

import inspect
import os
import sys
import typing
import warnings
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deepbdc.commands.app import app
from deepbdc.commands.classify import classify_images
from deepbdc.commands.compare import compare
from deepbdc.commands.data import data_check, data_list, data_prepare
from deepbdc.commands.evaluate import evaluate_model
from deepbdc.commands.explain import explain_image
from deepbdc.commands.fit import fit_examples
from deepbdc.commands.paper import paper
from deepbdc.commands.train import train_recipe

Command = Callable[..., None]
Commands = Mapping[str, "Command | Commands"]

COMMANDS: Commands = {
    "train": train_recipe,
    "evaluate": evaluate_model,
    "compare": compare,
    "paper": paper,
    "data": {"list": data_list, "prepare": data_prepare, "check": data_check},
    "classify": classify_images,
    "fit": fit_examples,
    "explain": explain_image,
    "app": app,
}
SHORT = {"-o": "--output"}
GROUPS = {"data": "List, prepare and check the data sets."}


def main(arguments: list[str] | None = None) -> None:
    """The ``deepbdc`` command: its sub-commands are functions, their options the arguments of these.

    Arguments without a default are positional, and so are those before ``*names``, which stands for any number.
    Truth values are flags, lists may be given several times.
    """
    from jsonargparse import ArgumentParser

    from deepbdc import __version__

    # Before torch is loaded: threads that spin while they wait lose much time beside other work on the machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    warnings.formatwarning = lambda message, *_, **__: f"Note: {message}\n"  # for people, without the line of code
    parser = ArgumentParser(
        prog="deepbdc",
        version=__version__,
        description="Few-shot image classification with Deep Brownian Distance Covariance.",
        formatter_class=_help_formatter(),
    )
    given = sys.argv[1:] if arguments is None else list(arguments)
    _add_commands(parser, COMMANDS, given)
    parsed: Any = parser.parse_args(_in_order(given, COMMANDS))
    chosen: Command | Commands = COMMANDS
    while isinstance(chosen, Mapping):
        name = parsed.command
        chosen, parsed = chosen[name], parsed[name]
    values = parsed.as_dict()
    first, many = _positionals(chosen)
    if many is None:
        chosen(**values)
    else:
        chosen(*(values.pop(name) for name in first), *values.pop(many), **values)


def _positionals(command: Command) -> tuple[list[str], str | None]:
    """Names of the arguments that are given by their place, and of the one that takes any number of them."""
    parameters = inspect.signature(command).parameters.values()
    many = next((entry.name for entry in parameters if entry.kind is entry.VAR_POSITIONAL), None)
    placed = [entry for entry in parameters if entry.kind is entry.POSITIONAL_OR_KEYWORD]
    return [entry.name for entry in placed if many or entry.default is entry.empty], many


def _options_of_type(command: Command, kind: type) -> set[str]:
    """The options that are flags (``bool``), or that may be given several times (``list``)."""
    found = set()
    for name, hint in typing.get_type_hints(command).items():
        choices = typing.get_args(hint) if typing.get_origin(hint) is not list else (hint,)
        if kind in {typing.get_origin(choice) or choice for choice in choices or (hint,)}:
            found.add(name)
    return found


def _in_order(arguments: Sequence[str], commands: Commands) -> list[str]:
    """The arguments as the parser wants them: first what is given by its place, then the options.

    So ``recipe --run folder key=value`` means the same as ``recipe key=value --run folder``.
    """
    chosen: Command | Commands = commands
    path, rest = [], list(arguments)
    while isinstance(chosen, Mapping):
        if not rest or rest[0] not in chosen:
            return list(arguments)  # a mistake or a request for help: the parser will answer
        path.append(rest.pop(0))
        chosen = chosen[path[-1]]
    flags, lists = _options_of_type(chosen, bool), _options_of_type(chosen, list)
    placed, options = [], []
    while rest:
        argument = rest.pop(0)
        if argument.startswith("-"):
            options += _option(argument, rest, flags, lists)
        else:
            placed.append(argument)
    return [*path, *placed, *options]


def _option(argument: str, rest: list[str], flags: set[str], lists: set[str]) -> list[str]:
    """An option with its value, which may be the next of ``rest``, as the parser spells it.

    ``--num-nodes`` is ``--num_nodes``; ``--resume true`` is ``--resume``; and ``--shot 1 --shot 5`` means both, for
    which the parser says ``--shot+``. ``-o`` is ``--output``.
    """
    option, equals, value = argument.partition("=")
    option = SHORT.get(option, option)
    name = option.removeprefix("--").replace("-", "_")
    if option in ("-h", "--help"):
        return [option]
    if name in flags:
        if not equals and rest and rest[0] in ("true", "false"):
            value = rest.pop(0)
        return {"": [f"--{name}"], "true": [f"--{name}"], "false": []}.get(value, [f"--{name}={value}"])
    spelt = f"--{name}+" if name in lists else f"--{name}"
    if equals:
        return [f"{spelt}={value}"]
    return [spelt, rest.pop(0)] if rest else [spelt]


def _add_commands(parser: Any, commands: Commands, given: Sequence[str]) -> None:
    """Give ``parser`` a sub-command for each function, and one with its own sub-commands for each group.

    Only a command that was given gets its arguments, as reading them from a function takes its time.
    """
    from jsonargparse import ArgumentParser

    subcommands = parser.add_subcommands(dest="command", title="commands", metavar="COMMAND")
    for name, entry in commands.items():
        text = (
            GROUPS[name]
            if isinstance(entry, Mapping)
            else inspect.cleandoc(entry.__doc__ or "").partition("\nArgs:")[0]
        )
        command = ArgumentParser(description=text, formatter_class=_help_formatter())
        if not isinstance(entry, Mapping) and name in given:
            _add_arguments(command, entry)
        # A parser must be hung up before it gets sub-commands of its own.
        subcommands.add_subcommand(name, command, help=text.partition("\n")[0])
        if isinstance(entry, Mapping):
            _add_commands(command, entry, given)


def _add_arguments(parser: Any, command: Command) -> None:
    """The arguments of a function as those of a parser, with the help of its docstring."""
    from docstring_parser import parse

    parameters = inspect.signature(command).parameters
    texts = {entry.arg_name.lstrip("*"): entry.description for entry in parse(command.__doc__ or "").params}
    flags, (placed, many) = _options_of_type(command, bool), _positionals(command)
    by_place = {*placed, many} if many else set()
    for name in by_place and placed:
        optional = parameters[name].default is not inspect.Parameter.empty
        parser.add_argument(name, nargs="?" if optional else None, type=str, help=texts[name])
    if many:
        parser.add_argument(many, nargs="*", type=str, default=[], help=texts[many])
    parser.add_function_arguments(command, as_group=False, as_positional=True, skip=flags | by_place)
    for name in sorted(flags):
        parser.add_argument(f"--{name}", action="store_true", help=texts[name])
    for action in parser._actions:  # in the help, hyphens as people write them, and no --shot+
        spelt = [option for option in action.option_strings if not option.endswith("+")]
        short = [letter for letter, option in SHORT.items() if option in spelt]
        action.option_strings = [*short, *(option.replace("_", "-") for option in spelt)]


def _help_formatter() -> type:
    from jsonargparse import DefaultHelpFormatter

    class Help(RawDescriptionHelpFormatter, DefaultHelpFormatter):
        """Keeps the lines of descriptions as they are."""

    return Help
