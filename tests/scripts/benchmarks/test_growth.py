"""The benchmark of growth: its exponents, and one measurement of each kind of work but the preparation of reviews."""

from pathlib import Path

import pytest
from benchmarks import growth

from ensemble.errors import UserError


def test_exponents_are_slopes_of_all_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cost that grows with the square would look linear, or the size would be the width instead of the parameters."""
    costs = {16: 1.0, 32: 4.0, 64: 64.0}
    steps = {width: {"step": {"size": width**2, "cpu_s": seconds, "peak_mb": 7.0}} for width, seconds in costs.items()}
    monkeypatch.setitem(growth.AXES, "parameters", lambda width, scratch: steps[width])
    results = growth.growth(axes=("parameters",), widths=tuple(costs))
    assert results["parameters"]["step"] == {
        "size": [256, 1024, 4096],
        "cpu_s": [1.0, 4.0, 64.0],
        "peak_mb": [7.0, 7.0, 7.0],
        "cpu_s_exponent": 1.5,
        "peak_mb_exponent": 0.0,
    }


@pytest.mark.parametrize(
    ("axis", "size", "works"),
    [
        ("rows", 2000, 3),
        pytest.param("parameters", 16, 1, marks=pytest.mark.torture),
        pytest.param("ranks", 2, 1, marks=pytest.mark.torture),
    ],
)
def test_each_axis_measures_work_that_exists(axis: str, size: int, works: int, tmp_path: Path) -> None:
    """After minutes a process would not understand its settings."""
    measured = growth.AXES[axis](size, tmp_path)
    assert len(measured) == works
    for work, costs in measured.items():
        assert costs["cpu_s"] > 0, work
        assert costs["peak_mb"] >= 0, work


def test_mistakes_are_refused_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an hour of other axes there would be an error or a traceback."""
    monkeypatch.setattr(growth, "AXES", dict.fromkeys(growth.AXES, lambda *_: pytest.fail("something was measured")))
    for settings, sentence in (
        ({"axes": ("depth",)}, "axis 'depth' is unknown, choose from reviews, rows, parameters, ranks"),
        ({"ranks": (1,)}, "number of sizes of ranks=1 is impossible: for an exponent it must be 2 or more"),
        ({"widths": (0, 8)}, "size of parameters=0 is impossible: for a measurement it must be 1 or more"),
    ):
        with pytest.raises(UserError, match=sentence):
            growth.growth(**settings)
