"""What the settings of all benchmarks share: the folder of the results, and the names of the commands."""

import dataclasses
import re
from types import ModuleType
from typing import ClassVar

WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """Where the figures are written."""

    module: ClassVar[str] = "measure"
    """The module of the benchmark's folder with the function that measures, which has the name of the command."""
    results: str = "slurm/results"
    """The folder for the JSON file; the same for every benchmark."""


def commands(settings: ModuleType) -> dict[str, type]:
    """The settings classes of a module by their commands: `EmulatorSkill` has the command emulator_skill.

    The commands of processes that benchmarks start, which are no `Results`, have hyphens: `TreesRun` has trees-run.
    """
    schemas = [value for value in vars(settings).values() if getattr(value, "__module__", "") == settings.__name__]
    return {WORD_START.sub("_" if issubclass(one, Results) else "-", one.__name__).lower(): one for one in schemas}
