"""Generates NetCDF files of sea ice in the layout of CICE's history files, with concentrations by the formula of sea_ice.py.

Every input is the sum of a function of latitude, a random smooth field, and random values of single points; some inputs are
clipped to a possible range. The fields of different inputs are independent. The concentration is that of the formula, a,
plus uniform noise with mean 0 and standard deviation `noise` · 4 a (1 - a). So the noise has mean 0 at each point, and
a + noise is between 0 and 1. There is no ice nearer to the equator than EDGE degrees of latitude. Land has the mask 0 and
fill values; files without a mask have no land.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ensemble.recipes.emulator import netcdf, sea_ice
from ensemble.recipes.emulator.settings import PrepareConfig

EDGE = 45.0
"""The latitude of the ice edge in both hemispheres, in degrees."""
NUM_WAVES = 24
"""The number of plane waves in a smooth field."""
LARGEST_NOISE = 0.14
"""The largest allowed setting `noise`. The noise is at most √3 · 4 · `noise` · a (1 - a), and a + noise is between 0 and 1
if √3 · 4 · `noise` is below 1."""
PROFILES = {
    "tair": (2.0, -28.0, 4.0, 3.0), "tsfc": (2.0, -24.0, 3.0, 3.0), "sst": (0.7, -2.0, 0.7, 0.6),
    "sss": (34.0, -3.0, 1.2, 1.0), "hs": (0.05, 0.25, 0.08, 0.06), "hi": (0.1, 1.0, 0.7, 0.4), "sice": (4.0, 0.0, 1.5, 1.2),
    "uocn": (0.0, 0.0, 0.1, 0.06), "vocn": (0.0, 0.0, 0.1, 0.06), "uatm": (0.0, 0.0, 5.0, 2.5), "vatm": (0.0, 0.0, 5.0, 2.5),
    "qref": (3.5e-3, -3e-3, 4e-4, 3e-4), "flwdn": (270.0, -80.0, 25.0, 15.0), "fswdn": (140.0, -130.0, 25.0, 15.0),
}  # fmt: skip
"""For each field the value at the ice edge, its change from there to the pole, and two standard deviations: of the smooth
field, and of the values of single points."""
LEAST = {"sst": -1.95, "sss": 5.0, "hs": 0.0, "hi": 0.02, "sice": 0.2, "qref": 1e-5, "flwdn": 100.0, "fswdn": 0.0}
MOST = {"tsfc": 0.0}
"""The smallest and the largest value of fields that are clipped."""
LAND_SHARE = 0.3
"""The share of the grid points that are land."""
FILL = 1e30
"""The value of variables at land points, as in CICE's files."""


def write(folder: Path, config: PrepareConfig) -> list[Path]:
    """Write `config.num_files` files, and return their paths. The values of a file depend on its number and the seed."""
    latitude = np.linspace(-89.0, 89.0, config.num_rows)
    longitude = np.arange(config.num_columns) * 360.0 / config.num_columns
    latitude, longitude = np.meshgrid(latitude, longitude, indexing="ij")
    generator = np.random.default_rng([config.seed, 0])
    land = _smooth(generator, latitude, longitude)
    xarray, names, files = netcdf.library(), config.names, []
    mask = (land <= np.quantile(land, 1 - LAND_SHARE * bool(names.mask))).astype(np.float32)
    grid: dict[str, Any] = {
        names.latitude: (("nj", "ni"), latitude, {"units": "degrees_north"}),
        names.longitude: (("nj", "ni"), longitude, {"units": "degrees_east"}),
        **({names.mask: (("nj", "ni"), mask, {"units": "1"})} if names.mask else {}),
    }
    for number in range(config.num_files):
        fields = [
            _fields(np.random.default_rng([config.seed, 1 + number, time]), latitude, longitude, mask, config)
            for time in range(config.num_times)
        ]
        variables = dict(grid)
        for name in fields[0]:
            attributes = {"units": sea_ice.UNITS[name], "long_name": sea_ice.MEANINGS[name]}
            stacked = np.stack([field[name] for field in fields])
            variables[getattr(names, name)] = (("time", "nj", "ni"), stacked, attributes)
        dataset = xarray.Dataset(variables, attrs={"formula": sea_ice.FORMULA, "title": "generated sea ice, not observed"})
        encoding = {getattr(names, name): {"_FillValue": np.float32(FILL)} for name in fields[0]}
        files.append(folder / f"sea_ice_{number:03d}.nc")
        dataset.to_netcdf(files[-1], engine=netcdf.ENGINE, encoding=encoding)
    return files


def most_noise(clean: np.ndarray) -> np.ndarray:
    """The largest noise that any allowed setting gives at points whose concentration without noise is `clean`."""
    return np.sqrt(3) * LARGEST_NOISE * 4 * clean * (1 - clean)


def _fields(
    generator: np.random.Generator, latitude: np.ndarray, longitude: np.ndarray, mask: np.ndarray, config: PrepareConfig
) -> dict[str, np.ndarray]:
    """The variables of one time, (rows, columns) float32, FILL on land."""
    poleward = np.clip((np.abs(latitude) - EDGE) / (90 - EDGE), 0, 1)
    values_of = {}
    for name in netcdf.input_names(config.inputs):
        edge, change, smooth, rough = PROFILES[name]
        values = edge + change * poleward + smooth * _smooth(generator, latitude, longitude)
        values += rough * generator.standard_normal(latitude.shape)
        values_of[name] = np.clip(values, LEAST.get(name), MOST.get(name)).astype(np.float32)
    inputs = np.stack([values.ravel() for values in values_of.values()], axis=1)
    clean = sea_ice.concentration(inputs)
    drawn = generator.uniform(-np.sqrt(3), np.sqrt(3), clean.size)
    ice = (clean + config.noise * 4 * clean * (1 - clean) * drawn).reshape(latitude.shape)
    values_of[sea_ice.OUTPUT] = np.where(np.abs(latitude) > EDGE, ice, 0).astype(np.float32)
    return {name: np.where(mask > 0, values, np.float32(FILL)) for name, values in values_of.items()}


def _smooth(generator: np.random.Generator, latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """A random field with mean 0 and standard deviation 1: a sum of plane waves in space, continuous on the whole sphere."""
    up = np.radians(latitude)
    east = np.radians(longitude)
    position = np.stack([np.cos(up) * np.cos(east), np.cos(up) * np.sin(east), np.sin(up)], axis=-1)
    total = np.zeros(latitude.shape)
    for _ in range(NUM_WAVES):
        wave = generator.standard_normal(3) * generator.uniform(2, 12)
        total += np.cos(position @ wave + generator.uniform(0, 2 * np.pi))
    return total * np.sqrt(2 / NUM_WAVES)
