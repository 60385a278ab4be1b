"""Settings of scripts/fit.py. No large library is imported here, so that `--help` is fast."""

import dataclasses

from ensemble import recipe
from ensemble.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Settings of a fit. `config_class` adds those of the recipe's preparation."""

    out: str = "???"
    """The folder to write: prepared data, members, predictions, ensemble, leaderboard.json and report.html."""
    time_limit: float = 300.0
    """Seconds from the start of the command to its end; 0 for no limit. With a limit the result depends on the machine, and
    some recipes train further members in the time that is left."""
    members: tuple[str, ...] = ()
    """Names of the members to train; empty for all that the recipe plans. Members for which no time is left are skipped."""
    accelerate_config: str = "auto"
    """The hardware of neural members: a YAML file of Accelerate, or auto for float32 on a GPU of this machine, or on up to 4
    processes of its CPU if it has no GPU or the CPU is as fast."""
    threads: int = 0
    """OpenMP threads of tree members, and of all processes of a neural member on a CPU; 0 for as many cores as are
    granted, or outside of Slurm OMP_NUM_THREADS if that is less."""
    num_draws: int = 100
    """Draws of the bootstrap that gives the intervals of the scores."""


STAGES = ("prepare", "copies", "members")
"""The parts of a fit that run as tasks of a cluster; see stages.py."""
FILE = "fit.json"
"""The file in `out` with the recipe and the settings."""
FREE_TO_CHANGE = ("out", "time_limit", "accelerate_config", "threads", "num_draws", "overwrite")
"""Settings that may differ when a fit is continued with --resume auto."""


def config_class(name: str) -> type:
    """`FitConfig` with the settings of a recipe's preparation.

    Raises `UserError` for a recipe that cannot prepare data, and if a setting of its preparation, other than `out`, has the
    name of a setting of `FitConfig`.
    """
    prepare_config = recipe.prepare_config(name)
    own = {field.name for field in dataclasses.fields(FitConfig)} - {"out", "overwrite"}
    if common := sorted(own & {field.name for field in dataclasses.fields(prepare_config)}):
        if name in recipe.BUILT_IN:
            raise UserError(f"scripts/fit.py cannot fit the recipe {name}: run the steps of its README one by one")
        raise UserError(
            f"{common[0]} of {prepare_config.__name__} of the recipe {name} is a setting of scripts/fit.py too: give it "
            "another name"
        )
    return dataclasses.make_dataclass("Config", [], bases=(FitConfig, prepare_config), frozen=True, kw_only=True)
