"""Settings of scripts/assimilate.py. Nothing heavy is imported here."""

import dataclasses

METHODS = {"ekf": "extended Kalman filter", "4dvar": "4D-Var", "letkf": "LETKF"}
"""Each method and its name in full."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssimilateConfig:
    """Which model, which methods, and where the page goes."""

    model: str = ""
    """truth for the true model alone; otherwise leave it out and name a member."""
    member: str = ""
    """The folder of a trained neural member that maps a state of Lorenz-96 to the next one, run beside the truth."""
    data: str = ""
    """The prepared data that the member learned from."""
    out: str = "???"
    """The HTML page to write; an older page of this command is replaced, no other file is."""
    methods: tuple[str, ...] = tuple(METHODS)
    """Methods to run: ekf, 4dvar, letkf."""
    cycles: int = 1000
    """Cycles that are scored; all 40 points are observed in each."""
    spin_up: int = 400
    """Cycles before the first one that is scored: 20 units of time, as in DAPPER."""
    seeds: int = 5
    """Experiments, each with a true trajectory and observation errors of its own."""
    inflation: float = 10.0
    """EKF: factor of the forecast's covariance for one unit of time (20 cycles)."""
    window: int = 8
    """4D-Var: cycles in a window."""
    background_variance: float = 0.1
    """4D-Var: error variance of the background, the same at all points."""
    outer_loops: int = 2
    """4D-Var: linearisations of the model in each window."""
    members: int = 7
    """LETKF: members of the ensemble."""
    ensemble_inflation: float = 1.04
    """LETKF: factor of the analysis' perturbations."""
    radius: float = 4.0
    """LETKF: localisation radius in points; the weight of an observation there is 0.64."""
