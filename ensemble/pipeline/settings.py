"""Settings of scripts/fit.py. Nothing heavy is imported here, so that `--help` answers at once."""

import dataclasses
from typing import Any

from ensemble import recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitConfig:
    """What is fitted, where to, and in which time; the recipe's own settings of preparation follow."""

    out: str = "???"
    """The folder to write: prepared data, members, predictions, ensemble, leaderboard.json and report.html."""
    time_limit: float = 300.0
    """Seconds from the start of the command to its end; 0 for no limit. With one the result depends on the machine."""
    members: tuple[str, ...] = ()
    """Names of the members to train; empty for all that the recipe plans and that fit into the time."""
    accelerate_config: str = "auto"
    """The hardware of neural members: auto for the GPUs of this machine, or its CPU; or a YAML file of accelerate."""
    threads: int = 0
    """OpenMP threads of tree members; 0 for as many cores as are granted."""
    num_draws: int = 100
    """Draws of the bootstrap that gives the intervals of the scores."""


STAGES = ("prepare", "copies", "members")
"""The parts of a fit that tasks of a cluster do; see stages.py."""
FILE = "fit.json"
"""In `out`: the recipe and the settings."""
FREE_TO_CHANGE = ("out", "time_limit", "accelerate_config", "threads", "num_draws", "overwrite")
"""Settings that may differ when a command goes on with --resume auto."""


def config_class(name: str) -> type:
    """`FitConfig` with the settings of a recipe's preparation; `UserError` for a recipe that cannot prepare data."""
    return dataclasses.make_dataclass(
        "Config", [], bases=(FitConfig, recipe.prepare_config(name)), frozen=True, kw_only=True
    )


def preparation(config: Any, name: str, out: str) -> Any:
    """The settings of the recipe's preparation among those of `config`, to be written to `out`."""
    schema = recipe.prepare_config(name)
    found = {field.name: getattr(config, field.name) for field in dataclasses.fields(schema)}
    return schema(**{**found, "out": out})
