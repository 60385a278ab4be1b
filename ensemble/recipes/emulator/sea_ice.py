"""The concentration of sea ice as a function of temperatures, salinities and thicknesses, with its exact Jacobian.

The formula is invented for this recipe, as a truth with known derivatives. It is not a model of real ice. Its parts are:

    T_f(S) = -0.0575 S + 1.710523e-3 S^1.5 - 2.154996e-4 S²        freezing point of sea water in °C (UNESCO 1983)
    v = sice (0.532 + 49.185 / T) / 1000                            brine volume fraction of ice, T in °C below zero
                                                                    (Frankenstein and Garner 1967)
    s = exp(-5.88 √v)                                               strength of ice relative to ice without brine
                                                                    (Timco and O'Brien 1994)
    h = (hi + SNOW hs) (WEAKEST + s)                                effective thickness in m
    cover = 1 - exp(-h / COVERING)                                  share of a cell that ice of this thickness covers
    t = LIMIT - AIR tanh((tair - MILD) / AIR_RANGE)                 ice melts in water more than t above its freezing point
    freeze = 1 / (1 + exp((sst - T_f(sss) - t) / WIDTH))            share of a cell where ice does not melt
    aice = cover · freeze

T = COLDER + softplus(-tsfc - COLDER), since the ice below a melting surface is colder than the surface. By construction aice
falls with sst, sss, tair, tsfc and sice, and rises with hi and hs. With the seven further inputs (EXTRA), t is lowered by
LONGWAVE (flwdn - LONGWAVE_MEAN) + SHORTWAVE fswdn + HUMIDITY qref. Drift opens the ice: aice is multiplied by
1 - OPENING (1 - exp(-|d|² / DRIFT²)) with d = (uocn, vocn) + WIND_FACTOR (uatm, vatm), since ice drifts with the current
plus 2 % of the wind velocity.
"""

import numpy as np

INPUTS = ("tair", "tsfc", "sst", "sss", "hs", "hi", "sice")
EXTRA = ("uocn", "vocn", "uatm", "vatm", "qref", "flwdn", "fswdn")
OUTPUT = "aice"
UNITS = {
    "tair": "degC", "tsfc": "degC", "sst": "degC", "sss": "psu", "hs": "m", "hi": "m", "sice": "psu", "aice": "1",
    "uocn": "m/s", "vocn": "m/s", "uatm": "m/s", "vatm": "m/s", "qref": "kg/kg", "flwdn": "W/m2", "fswdn": "W/m2",
}  # fmt: skip
MEANINGS = {
    "tair": "air temperature", "tsfc": "temperature of the snow or ice surface", "sst": "sea surface temperature",
    "sss": "sea surface salinity", "hs": "snow thickness, mean over the cell", "hi": "ice thickness, mean over the cell",
    "sice": "bulk salinity of the ice", "aice": "ice concentration: part of the cell that ice covers",
    "uocn": "eastward ocean current", "vocn": "northward ocean current", "uatm": "eastward wind", "vatm": "northward wind",
    "qref": "specific humidity at 2 m", "flwdn": "downwelling longwave radiation",
    "fswdn": "downwelling shortwave radiation",
}  # fmt: skip
FORMULA = "ensemble.recipes.emulator.sea_ice, version 1"
"""The global attribute `formula` of generated files, which shows that this formula gives the true concentration and its
derivatives at their points."""
SNOW, WEAKEST, COVERING = 0.8, 0.2, 0.6
LIMIT, AIR, MILD, AIR_RANGE, WIDTH = 0.9, 1.0, -8.0, 4.0, 0.25
LONGWAVE, LONGWAVE_MEAN, SHORTWAVE, HUMIDITY = 2.0e-3, 230.0, 1.5e-3, 100.0
OPENING, DRIFT, WIND_FACTOR = 0.4, 0.35, 0.02
BRINE_STRENGTH, COLDER = 5.88, 2.0
STEP = 1e-30
"""The imaginary step h of `jacobian`."""
BLOCK = 4_096
"""The number of rows whose derivatives are computed together, so that intermediate arrays fit in the processor's cache."""


def concentration(inputs: np.ndarray) -> np.ndarray:
    """aice without noise, (B,) in [0, 1]. inputs : (B, 7) in the order of INPUTS, or (B, 14) with EXTRA, in UNITS."""
    return _concentration(*np.asarray(inputs, np.float64).T)


def jacobian(inputs: np.ndarray) -> np.ndarray:
    """The derivatives of `concentration` with respect to its inputs, (B, 7) or (B, 14), in physical units, float64.

    They are exact to rounding, since they are no differences of two values of f: the imaginary part of f(x + ih) is
    h f'(x) + O(h³) (Squire and Trapp 1998, https://doi.org/10.1137/S003614459631241X).
    """
    slopes = np.empty_like(inputs, np.float64)
    for first in range(0, len(inputs), BLOCK):
        columns = np.asarray(inputs[first : first + BLOCK], np.float64).T.copy()
        for number, column in enumerate(columns):
            changed = [*columns[:number], column + 1j * STEP, *columns[number + 1 :]]
            slopes[first : first + BLOCK, number] = _concentration(*changed).imag / STEP
    return slopes


def freezing_point(salinity: np.ndarray) -> np.ndarray:
    """The freezing point of sea water at the surface in °C. salinity : in psu"""
    return -0.0575 * salinity + 1.710523e-3 * salinity * np.sqrt(salinity) - 2.154996e-4 * salinity**2


def _concentration(
    tair: np.ndarray, tsfc: np.ndarray, sst: np.ndarray, sss: np.ndarray, hs: np.ndarray, hi: np.ndarray, sice: np.ndarray,
    *extra: np.ndarray,
) -> np.ndarray:  # fmt: skip
    below = COLDER + np.log1p(np.exp(-tsfc - COLDER))
    # The derivative of the root would be infinite for ice without brine
    brine = np.where(sice.real > 0, sice * (0.532 + 49.185 / below) / 1000, 0)
    strength = np.exp(-BRINE_STRENGTH * np.sqrt(brine))
    cover = 1 - np.exp(-(hi + SNOW * hs) * (WEAKEST + strength) / COVERING)
    limit = LIMIT - AIR * np.tanh((tair - MILD) / AIR_RANGE)
    closed: np.ndarray | float = 1.0
    if extra:
        uocn, vocn, uatm, vatm, qref, flwdn, fswdn = extra
        limit = limit - LONGWAVE * (flwdn - LONGWAVE_MEAN) - SHORTWAVE * fswdn - HUMIDITY * qref
        east, north = uocn + WIND_FACTOR * uatm, vocn + WIND_FACTOR * vatm
        closed = 1 - OPENING * (1 - np.exp(-(east**2 + north**2) / DRIFT**2))
    freeze = 0.5 * (1 + np.tanh(0.5 * (limit - (sst - freezing_point(sss))) / WIDTH))
    return cover * freeze * closed
