"""Settings of the recipe emulator. No large library is imported here, so that `--help` is fast."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamesConfig:
    """Names of the variables in NetCDF files; the defaults are those of CICE's history files."""

    tair: str = "Tair_h"
    """Air temperature."""
    tsfc: str = "Tsfc_h"
    """Temperature of the snow or ice surface."""
    sst: str = "sst_h"
    """Sea surface temperature."""
    sss: str = "sss_h"
    """Sea surface salinity."""
    hs: str = "hs_h"
    """Snow thickness."""
    hi: str = "hi_h"
    """Ice thickness."""
    sice: str = "sice_h"
    """Bulk salinity of the ice."""
    aice: str = "aice_h"
    """Ice concentration, the target."""
    latitude: str = "ULAT"
    """Latitudes in degrees, with the last two dimensions of the target (row, column), or with the dimension row alone."""
    longitude: str = "ULON"
    """Longitudes in degrees, with the last two dimensions of the target, or with the dimension column alone."""
    mask: str = "umask"
    """1 at sea points, with the last two dimensions of the target; empty if the files have none."""
    uocn: str = "uocn_h"
    """Eastward ocean current, with inputs=14."""
    vocn: str = "vocn_h"
    """Northward ocean current, with inputs=14."""
    uatm: str = "uatm_h"
    """Eastward wind, with inputs=14."""
    vatm: str = "vatm_h"
    """Northward wind, with inputs=14."""
    qref: str = "Qref_h"
    """Specific humidity at 2 m, with inputs=14."""
    flwdn: str = "flwdn_h"
    """Downwelling longwave radiation, with inputs=14."""
    fswdn: str = "fswdn_h"
    """Downwelling shortwave radiation, with inputs=14."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Settings of scripts/prepare_data.py --recipe emulator."""

    out: str = "???"
    """The folder of prepared data to write."""
    system: Literal["sea_ice", "lorenz96"] = "sea_ice"
    """The emulated system: the ice concentration of a grid point, or one step of the Lorenz-96 model."""
    seed: int = 0
    """The random seed of generated files, of states of Lorenz-96, of the assignment of tiles to splits, and of `keep`."""
    shares: tuple[float, ...] = (0.6, 0.1, 0.1, 0.2)
    """Probabilities with which a tile of the sea ice grid is in train, validation, blend and test."""

    source: tuple[str, ...] = ()
    """NetCDF files or globs of sea ice; empty to generate files."""
    raw: str = ""
    """The folder for generated NetCDF files; empty for a temporary folder."""
    inputs: int = 7
    """Number of inputs of sea ice: 7, or 14 with currents, wind, humidity and radiation."""
    names: NamesConfig = dataclasses.field(default_factory=NamesConfig)
    """Names of the variables in the files."""
    min_latitude: float = 40.0
    """Points at this latitude or nearer to the equator are dropped, in both hemispheres; degrees."""
    min_concentration: float = 0.0
    """Points whose ice concentration is at most this value are dropped."""
    tile: int = 8
    """Points along each side of a tile. All points of a tile, at all times, are in one split."""
    keep: float = 1.0
    """The probability with which each point of sea ice that passes the other rules is used."""
    chunk_points: int = 1_000_000
    """The largest number of grid points that are read at a time; but at least one row of the grid is read."""
    num_files: int = 2
    """Number of files to generate."""
    num_times: int = 2
    """Number of times in each generated file."""
    num_rows: int = 160
    """Number of latitudes of the generated grid."""
    num_columns: int = 240
    """Number of longitudes of the generated grid."""
    noise: float = 0.05
    """Standard deviation of the noise of the generated concentration a, relative to 4 a (1 - a); at most 0.14."""

    num_states: int = 50_000
    """Number of training states of Lorenz-96."""
    num_scored: int = 1_000
    """Number of states of Lorenz-96 in each of the splits validation, blend and test."""
    every: int = 4
    """Number of steps between two stored states of a trajectory of Lorenz-96."""
    num_points: int = 40
    """Number of points of the ring of Lorenz-96."""
    stencil: int = 4
    """Number of neighbours on each side of a point of Lorenz-96 whose values are features of trees."""
    points_of_state: int = 2
    """The number of points of a training state of Lorenz-96 that are rows for trees; networks are trained on all points."""

    overwrite: bool = False
    """Replace `out` and `raw` if they exist."""


TRAINING = {
    "batch_size": 512,
    "max_epochs": 30.0,
    "learning_rate": 5e-3,
    "weight_decay": 0.0,
    "warmup_steps": 100,
    "clip_norm": 0.0,
    "evaluations_per_epoch": 1,
    "patience": 1000,
    "precision": "no",
    "log_every": 50,
}
"""Defaults of `TrainConfig` that differ for this recipe. The precision is float32 on GPUs too, since derivatives need more
digits than bf16 has."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """Settings of scripts/train.py under `recipe.`."""

    network: Literal["mlp", "bilinear"] = "mlp"
    """mlp: a perceptron. bilinear: a convolution on a ring whose layers multiply neighbours, for Lorenz-96."""
    widths: tuple[int, ...] = (64, 64, 64)
    """Widths of the hidden layers; for bilinear, their channels."""
    activation: Literal["gelu", "relu", "tanh", "sigmoid"] = "gelu"
    """Activation of the hidden layers of mlp."""
    output: Literal["linear", "sigmoid"] = "linear"
    """Activation of the last layer of mlp; sigmoid limits the output to 0 to 1, as for a concentration."""
    residual: bool = False
    """Add the inputs to the outputs of mlp, for a network that predicts the next state; bilinear always adds them."""
    conserve: tuple[float, ...] = ()
    """Weights of a sum that must be equal for inputs and outputs, one for each input; empty for none."""
    jacobian_weight: float = 0.0
    """Weight of the error of the Jacobian in the loss; 0 for a loss of values only. Other weights need data with true
    derivatives: generated sea ice, or Lorenz-96."""
