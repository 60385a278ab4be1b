"""Settings of scripts/assimilate.py. No large library is imported here."""

import dataclasses

METHODS = {"ekf": "extended Kalman filter", "4dvar": "4D-Var", "letkf": "LETKF"}
"""The full name of each method."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssimilateConfig:
    """Settings of scripts/assimilate.py."""

    model: str = ""
    """truth to run the true model alone; empty if a member is given."""
    member: str = ""
    """The folder of a neural member for Lorenz-96, which is run in addition to the true model."""
    data: str = ""
    """The prepared data that the member was trained on."""
    out: str = "???"
    """The HTML page to write; only an older page of this command is replaced."""
    methods: tuple[str, ...] = tuple(METHODS)
    """Methods to run: ekf, 4dvar, letkf."""
    cycles: int = 1000
    """Scored cycles; all 40 points are observed in each."""
    spin_up: int = 400
    """Cycles before the scored ones: 20 units of time, as in DAPPER."""
    seeds: int = 5
    """Experiments with different true trajectories and observation errors."""
    inflation: float = 10.0
    """EKF: factor of the forecast covariance for one unit of time (20 cycles)."""
    window: int = 8
    """4D-Var: cycles in a window."""
    background_variance: float = 0.1
    """4D-Var: error variance of the background, the same at all points."""
    outer_loops: int = 2
    """4D-Var: linearisations of the model in each window."""
    members: int = 7
    """LETKF: members of the ensemble."""
    ensemble_inflation: float = 1.04
    """LETKF: factor of the perturbations of the analysis."""
    radius: float = 4.0
    """LETKF: localisation radius in points, at which an observation has the weight 0.64."""
