"""The commands of scripts/benchmark.py: functions marked by `command`, whose parameters are the settings.

`known` finds them in the source, since importing all modules would take seconds.
"""

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

Measure = TypeVar("Measure", bound=Callable[..., dict[str, Any] | None])
FOLDER = Path(__file__).parent
MARKED = re.compile(r'^@command\ndef (\w+)\(.*?\) -> [^\n]*:\n    """(.+?)(?:"""|\n\n)', re.MULTILINE | re.DOTALL)


def command(measure: Measure) -> Measure:
    """Mark a function as the command of the same name; its result is written to slurm/results/NAME.json.

    Its docstring is shown by --help, and describes each parameter. A function that returns None writes no file.
    """
    return measure


class Command(NamedTuple):
    """The module of a command, and the first sentence of its docstring."""

    module: str
    sentence: str


def known() -> dict[str, Command]:
    """All commands by their names."""
    commands = {}
    for file in FOLDER.rglob("*.py"):
        module = ".".join(file.with_suffix("").relative_to(FOLDER.parent).parts)
        for name, sentence in MARKED.findall(file.read_text(encoding="utf-8")):
            commands[name] = Command(module, " ".join(sentence.split()))
    return dict(sorted(commands.items()))


def described(sentence: str) -> type:
    """Empty settings with a docstring, for the list of commands."""
    return dataclasses.make_dataclass("Settings", (), namespace={"__doc__": sentence})


@dataclasses.dataclass(frozen=True)
class Results:
    """The setting of every command."""

    results: str = "slurm/results"
    """Folder of the JSON file."""


def schema(measure: Callable[..., Any]) -> type:
    """A dataclass of settings: the parameters of a function, and `results`."""
    types = typing.get_type_hints(measure)
    parameters = inspect.signature(measure).parameters.items()
    settings = [(name, types[name], parameter.default) for name, parameter in parameters]
    return dataclasses.make_dataclass(
        "Settings", settings, bases=(Results,), frozen=True, namespace={"__doc__": inspect.getdoc(measure)}
    )
