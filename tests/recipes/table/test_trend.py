"""The time of a table in time is a feature if the target has a trend."""

import tracemalloc
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from small_tables import prepare

from ensemble.arrow import open_table
from ensemble.recipes.table import new_data, trend

NUM_ROWS = 1500


def frame(slope: float) -> pl.DataFrame:
    """A target that depends on a number, the weekday and, by `slope`, the time."""
    generator = np.random.default_rng(0)
    day = np.datetime64("2022-01-03") + np.arange(NUM_ROWS).astype("timedelta64[D]")
    x, late = generator.normal(size=NUM_ROWS), np.arange(NUM_ROWS) % 7 == 6
    y = slope * np.arange(NUM_ROWS) + 2 * x + 5 * late + generator.normal(size=NUM_ROWS)
    return pl.DataFrame({"day": day, "x": x, "shop": [f"s{n % 3}" for n in range(NUM_ROWS)], "y": y})


@pytest.mark.parametrize(("slope", "is_feature"), [(0.02, True), (0.0, False)])
def test_the_time_is_a_feature_if_the_target_has_a_trend(slope: float, is_feature: bool, tmp_path: Path) -> None:
    """The forecast of a growing target would be its past mean; without a trend, trees would learn dates by heart."""
    frame(slope).write_csv(tmp_path / "a.csv")
    manifest = prepare(tmp_path, tmp_path / "a.csv", time="day")
    units = [feature["unit"] for feature in manifest["features"] if feature["column"] == "day"]
    assert [unit for unit in units if not unit.startswith("days since")] == ["weekday", "month", "day of the year"]
    assert any(unit.startswith("days since") for unit in units) == is_feature
    note = "the target has a trend: the time 'day' is a feature, since a linear model with it predicts later rows better"
    assert (note in manifest["notes"]) == is_feature
    if not is_feature:
        return
    new = frame(slope).with_columns(pl.col("day").dt.offset_by(f"{NUM_ROWS}d")).drop("y")
    new.write_csv(tmp_path / "new.csv")
    new_data.prepare(manifest, {"source": (str(tmp_path / "new.csv"),), "out": str(tmp_path / "new")})
    (name,) = (feature["name"] for feature in manifest["features"] if feature["unit"].startswith("days since"))
    days = open_table(tmp_path / "new" / "rows" / "forecast")[name].to_numpy()
    assert days[0] == open_table(tmp_path / "out" / "rows" / "train")[name].to_numpy()[-1] + 1


@pytest.mark.parametrize(("num_days", "parts"), [(5, []), (60, ["weekday"]), (400, ["weekday", "month", "day of the year"])])
def test_a_part_of_the_time_whose_period_is_not_covered_is_no_feature(
    num_days: int, parts: list[str], tmp_path: Path
) -> None:
    """The day of the year of two months is the date: linear models would extrapolate it to later days."""
    day = np.datetime64("2022-01-03") + (np.arange(NUM_ROWS) % num_days).astype("timedelta64[D]")
    frame(0.0).with_columns(day=pl.Series(day), seen=pl.Series(day)).write_csv(tmp_path / "a.csv")
    manifest = prepare(tmp_path, tmp_path / "a.csv", time="day")
    assert [feature["unit"] for feature in manifest["features"] if feature["column"] == "day"] == parts
    units = {feature["unit"] for feature in manifest["features"] if feature["column"] == "seen"}
    assert {"weekday", "day of the year"} < units  # new rows need not be later than train in this column


def test_with_a_trend_too_a_part_whose_period_is_not_covered_is_no_feature(tmp_path: Path) -> None:
    """Of October to December, a linear model would learn the trend from the day of the year, which is 1 in January."""
    day = np.datetime64("2022-10-01") + (np.arange(NUM_ROWS) * 92 // NUM_ROWS).astype("timedelta64[D]")
    frame(0.02).with_columns(day=pl.Series(day)).write_csv(tmp_path / "a.csv")
    manifest = prepare(tmp_path, tmp_path / "a.csv", time="day")
    units = [feature["unit"] for feature in manifest["features"] if feature["column"] == "day"]
    assert units == ["days since 1970-01-01", "weekday"]


def test_the_time_may_be_the_only_feature(tmp_path: Path) -> None:
    """Less than a year of weeks was refused, since no part of the time is a feature: but with a trend the time is one."""
    time = np.datetime64("2022-01-03") + 7 * np.arange(45).astype("timedelta64[D]")
    target = np.arange(45) + np.random.default_rng(0).normal(size=45)
    pl.DataFrame({"day": time, "y": target}).write_csv(tmp_path / "a.csv")
    manifest = prepare(tmp_path, tmp_path / "a.csv", time="day")
    assert [feature["unit"] for feature in manifest["features"]] == ["days since 1970-01-01"]


def test_the_hours_of_one_day_are_a_feature(tmp_path: Path) -> None:
    """In days as floats, the time from 0 to 23 o'clock is less than 23/24 of a day for most dates."""
    time = np.datetime64("2022-01-03", "ms") + (np.arange(NUM_ROWS) % 24).astype("timedelta64[h]")
    frame(0.0).with_columns(day=pl.Series(time)).write_csv(tmp_path / "a.csv")
    manifest = prepare(tmp_path, tmp_path / "a.csv", time="day")
    assert [feature["unit"] for feature in manifest["features"] if feature["column"] == "day"] == ["hour"]


@pytest.mark.parametrize("heavy", ["growing", "noisy"])
def test_rows_count_by_their_weight(heavy: str, tmp_path: Path) -> None:
    """Rows that hardly count in any score would hide the trend of the others, or make the time a feature."""
    grows = np.arange(NUM_ROWS) % 5 == 0
    noise = 30 * np.random.default_rng(0).normal(size=NUM_ROWS)
    y = np.where(grows, 0.02 * np.arange(NUM_ROWS), noise if heavy == "growing" else noise / 300)
    w = np.where(grows == (heavy == "growing"), 2.0, 0.001)
    frame(0.0).with_columns(y=y, w=w).write_csv(tmp_path / "a.csv")
    for weight in ("w", ""):
        manifest = prepare(
            tmp_path, tmp_path / "a.csv", time="day", weight=weight, drop=() if weight else ("w",), overwrite=True
        )
        has_trend = any("the target has a trend" in note for note in manifest["notes"])
        assert has_trend == ((heavy == "growing") == bool(weight))


def test_a_time_that_is_dropped_only_orders_the_folds(tmp_path: Path) -> None:
    """Members would learn from a column that is not known when a forecast is made."""
    frame(0.02).write_csv(tmp_path / "a.csv")
    manifest = prepare(tmp_path, tmp_path / "a.csv", time="day", drop=("day",))
    assert [feature["column"] for feature in manifest["features"]] == ["x", "shop"]
    assert (manifest["cross_validation"]["scheme"], manifest["notes"]) == ("forward", [])


def test_a_table_with_many_columns_takes_no_memory() -> None:
    """50,000 rows of 600 columns with ten values each would need 3 GB, for a linear model that is not fitted."""
    features = np.random.default_rng(0).integers(0, 10, (600, 600)).astype(np.float32)
    time, fold = np.arange(600.0), np.repeat(np.arange(-2, 4), 100)
    tracemalloc.start()
    assert not trend.has_trend(features, time, time, fold, 0.0, 0)
    assert tracemalloc.get_traced_memory()[1] < 5 * features.nbytes
    tracemalloc.stop()


@pytest.mark.parametrize("wrong", ["one block", "unknown yet", "many columns"])
def test_a_trend_that_did_not_go_on_is_no_feature(wrong: str) -> None:
    """The forecast would follow a trend that ended, or one that nobody knew of at the time."""
    time = np.arange(NUM_ROWS, dtype=np.float64)
    fold = np.repeat([-2, -1, 0, 1, 2, 3], [300, 300, 225, 225, 225, 225])
    features = np.random.default_rng(0).normal(size=(NUM_ROWS, 3)).astype(np.float32)
    arguments = {"features": features, "time": time, "target": time.copy(), "fold": fold, "embargo": 0.0, "seed": 0}
    assert trend.has_trend(**arguments)
    if wrong == "one block":
        arguments["target"][fold >= 0] = 600 - np.arange(900)
    elif wrong == "unknown yet":
        arguments["embargo"] = 1e6
    else:
        arguments["features"] = np.repeat(features, 200, axis=1)
    assert not trend.has_trend(**arguments)


@pytest.mark.parametrize(("typo", "is_named"), [("2204-01-05", True), ("0222-01-05", True), ("2023-03-30", False)])
def test_a_time_far_from_all_others_is_named(typo: str, is_named: bool, tmp_path: Path) -> None:
    """With one wrong year, the trend is not found, and the day of the year is a feature of half a year, without a word."""
    rows = frame(0.02).head(300)
    rows.with_columns(day=pl.Series([typo, *map(str, rows["day"][1:])])).write_csv(tmp_path / "a.csv")
    notes = [note for note in prepare(tmp_path, tmp_path / "a.csv", time="day")["notes"] if "correct it" in note]
    assert len(notes) == is_named
    expected = f"time=day is {typo} in a.csv:2, farther from the times of nearly all other rows, 2022-01-0"
    assert all(expected in note for note in notes)


@pytest.mark.parametrize(("slope", "is_feature"), [(2.5, True), (0.0, False)])
def test_a_trend_of_few_years_is_found_beside_a_measured_number(slope: float, is_feature: bool, tmp_path: Path) -> None:
    """A number that differs from year to year would be as many one-hot columns as rows, and no linear model be fitted."""
    year, generator = np.arange(24), np.random.default_rng(0)
    y = slope * year + generator.normal(size=len(year))
    rows = pl.DataFrame({"year": 2000 + year, "x": generator.normal(size=len(year)), "y": y})
    rows.write_csv(tmp_path / "a.csv")
    features = prepare(tmp_path, tmp_path / "a.csv", time="year")["features"]
    assert [feature["column"] for feature in features] == ["year", "x"][not is_feature :]
