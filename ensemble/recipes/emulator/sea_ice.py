"""The concentration of sea ice as a function of temperatures, salinities and thicknesses, with its analytic Jacobian.

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
falls with sst, sss, tair, tsfc and sice, and rises with hi and hs. With the seven further inputs (EXTRA), radiation and
humidity lower t, and drift opens the ice: aice is multiplied by 1 - OPENING (1 - exp(-|d|² / DRIFT²)) with the drift
d = (uocn, vocn) + 0.02 (uatm, vatm), by the rule that ice drifts with 2 % of the wind.
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
"""The global attribute `formula` of generated files, which shows that this formula gives the true values of their points."""
SNOW, WEAKEST, COVERING = 0.8, 0.2, 0.6
LIMIT, AIR, MILD, AIR_RANGE, WIDTH = 0.9, 1.0, -8.0, 4.0, 0.25
LONGWAVE, LONGWAVE_MEAN, SHORTWAVE, HUMIDITY = 2.0e-3, 230.0, 1.5e-3, 100.0
OPENING, DRIFT, WIND_FACTOR = 0.4, 0.35, 0.02
BRINE_STRENGTH, COLDER = 5.88, 2.0


def concentration(inputs: np.ndarray) -> np.ndarray:
    """aice without noise, (B,) in [0, 1]. inputs : (B, 7) in the order of INPUTS, or (B, 14) with EXTRA, in UNITS."""
    return _evaluate(inputs)[0]


def jacobian(inputs: np.ndarray) -> np.ndarray:
    """The derivatives of `concentration` by its inputs, (B, 7) or (B, 14), in physical units, float64."""
    return _evaluate(inputs)[1]


def freezing_point(salinity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The freezing point of sea water at the surface in °C, and its derivative by the salinity in psu."""
    root = np.sqrt(salinity)
    point = -0.0575 * salinity + 1.710523e-3 * salinity * root - 2.154996e-4 * salinity**2
    return point, -0.0575 + 1.5 * 1.710523e-3 * root - 2 * 2.154996e-4 * salinity


def _evaluate(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`concentration` and `jacobian`."""
    columns = np.asarray(inputs, np.float64).T
    tair, tsfc, sst, sss, hs, hi, sice = columns[: len(INPUTS)]
    slope = np.zeros_like(columns)
    # cover and its derivatives
    below = COLDER + np.logaddexp(0, -tsfc - COLDER)
    below_by_tsfc = -_logistic(-tsfc - COLDER)
    brine = sice * (0.532 + 49.185 / below) / 1000
    root = np.sqrt(brine)
    strength = np.exp(-BRINE_STRENGTH * root)
    # The derivative by brine, times brine: without this factor it would be infinite for ice without brine
    strength_by_log_brine = -0.5 * BRINE_STRENGTH * root * strength
    thickness, support = hi + SNOW * hs, WEAKEST + strength
    open_water = np.exp(-thickness * support / COVERING)
    cover = 1 - open_water
    cover_by_thickness = open_water * support / COVERING
    cover_by_strength = open_water * thickness / COVERING
    log_brine_by_below = -49.185 / below**2 / (0.532 + 49.185 / below)
    cover_by_log_brine = cover_by_strength * strength_by_log_brine
    # freeze and its derivatives
    relative = np.tanh((tair - MILD) / AIR_RANGE)
    limit = LIMIT - AIR * relative
    if len(columns) > len(INPUTS):
        uocn, vocn, uatm, vatm, qref, flwdn, fswdn = columns[len(INPUTS) :]
        limit = limit - LONGWAVE * (flwdn - LONGWAVE_MEAN) - SHORTWAVE * fswdn - HUMIDITY * qref
    point, point_by_sss = freezing_point(sss)
    freeze = _logistic((limit - (sst - point)) / WIDTH)
    freeze_by_limit = freeze * (1 - freeze) / WIDTH
    aice = cover * freeze
    slope[0] = -cover * freeze_by_limit * AIR * (1 - relative**2) / AIR_RANGE
    slope[1] = freeze * cover_by_log_brine * log_brine_by_below * below_by_tsfc
    slope[2] = -cover * freeze_by_limit
    slope[3] = cover * freeze_by_limit * point_by_sss
    slope[4] = freeze * cover_by_thickness * SNOW
    slope[5] = freeze * cover_by_thickness
    slope[6] = freeze * np.divide(cover_by_log_brine, sice, out=np.zeros_like(sice), where=sice > 0)
    if len(columns) > len(INPUTS):
        east, north = uocn + WIND_FACTOR * uatm, vocn + WIND_FACTOR * vatm
        calm = np.exp(-(east**2 + north**2) / DRIFT**2)
        closed = 1 - OPENING * (1 - calm)
        slope[:7] *= closed
        for row, coefficient in ((11, HUMIDITY), (12, LONGWAVE), (13, SHORTWAVE)):
            slope[row] = -cover * freeze_by_limit * closed * coefficient
        for rows, component in (((7, 9), east), ((8, 10), north)):
            by_component = -aice * OPENING * calm * 2 * component / DRIFT**2
            slope[rows[0]], slope[rows[1]] = by_component, WIND_FACTOR * by_component
        aice = aice * closed
    return aice, slope.T


def _logistic(values: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * values))
