"""Settings of scripts/assimilate.py. No large library is imported here, so that `--help` is fast."""

import dataclasses

METHODS = {"ekf": "extended Kalman filter", "4dvar": "4D-Var", "letkf": "LETKF"}
"""The full name of each method."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssimilateConfig:
    """Settings of scripts/assimilate.py."""

    model: str = ""
    """`truth` to run only the true model; empty if a member is given."""
    member: str = ""
    """The folder of a neural member for Lorenz-96, with which each method runs in addition to the true model."""
    data: str = ""
    """The prepared data that the member was trained on."""
    out: str = "???"
    """The HTML page to write. An existing file is replaced only if it is empty or this project wrote it."""
    methods: tuple[str, ...] = tuple(METHODS)
    """Methods to run: ekf, 4dvar, letkf."""
    cycles: int = 1000
    """Number of scored cycles. All 40 points are observed in each cycle."""
    spin_up: int = 400
    """Number of cycles before the scored ones; 400 are 20 units of time, as in the package DAPPER."""
    seeds: int = 5
    """Number of experiments, each with another true trajectory and other observation errors."""
    inflation: float = 10.0
    """EKF: factor by which the forecast covariance is multiplied in each unit of time (20 cycles)."""
    window: int = 8
    """4D-Var: number of cycles in a window."""
    background_variance: float = 0.1
    """4D-Var: error variance of the background, the same at all points."""
    outer_loops: int = 2
    """4D-Var: how often the model is linearised in each window."""
    members: int = 7
    """LETKF: number of members of the ensemble of states."""
    ensemble_inflation: float = 1.04
    """LETKF: factor by which the perturbations of the members are multiplied after each analysis."""
    radius: float = 4.0
    """LETKF: localisation radius in points. An observation at this distance has the weight 0.64."""
