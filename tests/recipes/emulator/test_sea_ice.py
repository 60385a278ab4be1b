"""The formula of sea ice: its derivatives are those of its values, and have the signs of the physics."""

import numpy as np
import pytest

from ensemble.recipes.emulator import sea_ice

SIGNS = {"tair": -1, "tsfc": -1, "sst": -1, "sss": -1, "hs": 1, "hi": 1, "sice": -1, "qref": -1, "flwdn": -1, "fswdn": -1}
RANGES = {
    "tair": (-35, 5), "tsfc": (-30, 0), "sst": (-1.9, 2), "sss": (28, 36), "hs": (0, 0.5), "hi": (0.02, 3), "sice": (0.2, 9),
    "uocn": (-0.3, 0.3), "vocn": (-0.3, 0.3), "uatm": (-12, 12), "vatm": (-12, 12), "qref": (1e-5, 4e-3),
    "flwdn": (150, 330), "fswdn": (0, 250),
}  # fmt: skip


@pytest.fixture(params=[7, 14])
def inputs(request: pytest.FixtureRequest) -> np.ndarray:
    """(500, 7) or (500, 14), over the whole range of each input."""
    least, most = np.array([RANGES[name] for name in [*sea_ice.INPUTS, *sea_ice.EXTRA][: request.param]], float).T
    return least + (most - least) * np.random.default_rng(0).random((500, request.param))


def test_the_jacobian_is_that_of_finite_differences(inputs: np.ndarray) -> None:
    """Networks would be scored by wrong derivatives."""
    jacobian = sea_ice.jacobian(inputs)
    assert jacobian.shape == inputs.shape
    for column in range(inputs.shape[1]):
        step = np.zeros(inputs.shape[1])
        step[column] = 1e-5 * np.ptp(inputs[:, column])
        difference = (sea_ice.concentration(inputs + step) - sea_ice.concentration(inputs - step)) / (2 * step[column])
        assert np.abs(difference - jacobian[:, column]).max() <= 1e-7 * np.abs(jacobian[:, column]).max(), column


def test_the_signs_are_those_of_the_physics(inputs: np.ndarray) -> None:
    """Warmer or saltier water would make more ice, or thicker ice would cover less."""
    jacobian = sea_ice.jacobian(inputs)
    for column, name in enumerate([*sea_ice.INPUTS, *sea_ice.EXTRA][: inputs.shape[1]]):
        if name in SIGNS:
            assert (SIGNS[name] * jacobian[:, column] >= 0).all(), name
            assert (SIGNS[name] * jacobian[:, column] > 0).mean() > 0.99, name


def test_a_concentration_is_between_0_and_1(inputs: np.ndarray) -> None:
    """The reader would drop points of generated files, or concentrations would use only a part of their range."""
    ice = sea_ice.concentration(inputs)
    assert (ice >= 0).all()
    assert (ice <= 1).all()
    assert np.ptp(ice) > 0.8


def test_ice_without_salt_has_finite_derivatives() -> None:
    """Derivatives would be infinite, as that of the root of the brine volume is at 0."""
    one = np.array([[-10.0, -8.0, -1.0, 32.0, 0.1, 1.0, 0.0]])
    assert np.isfinite(sea_ice.jacobian(one)).all()
    assert np.abs(sea_ice.jacobian(one)).max() < 1


def test_the_freezing_point_is_that_of_the_tables() -> None:
    """A coefficient or the unit of salinity would be wrong; the values are those of UNESCO (1983) at the surface."""
    salinity = np.array([5.0, 30.0, 35.0])
    assert np.allclose(sea_ice.freezing_point(salinity), [-0.274, -1.638, -1.922], atol=1e-3)
    assert (sea_ice.freezing_point(salinity + 1e-30j).imag < 0).all()
