"""Files in a valid format with wrong content: copies, metadata of other products, too few data."""

import csv
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_market import FIRST_DAY, SUNDAY, config_for, product_metadata, review, steady_market, write_metadata, write_raw

from ensemble import folders
from ensemble.commands import ensemble_predictor
from ensemble.data import duplicates
from ensemble.errors import UserError
from ensemble.predictor import new_data as predictor
from ensemble.recipes.hot_sellers import advice, new_data, spills, weekly
from ensemble.recipes.hot_sellers import prepare as panel
from ensemble.recipes.hot_sellers.settings import MarketConfig, PanelConfig, PrepareConfig

DUPLICATES = "duplicate: the same product, user and time"
FIELDS = ("parent_asin", "user_id", "rating", "timestamp")


def write_table(folder: Path, content: list[dict[str, Any]], unit_ms: int) -> str:
    """The same reviews as CSV, their times in seconds, or as days."""
    with open(folder / f"{unit_ms}.csv", "w", newline="") as stream:
        table = csv.DictWriter(stream, FIELDS, extrasaction="ignore")
        table.writeheader()
        for one in content:
            seconds = one["timestamp"] // unit_ms * unit_ms // 1000
            day = np.datetime64(seconds, "s").astype("datetime64[D]")
            table.writerow(one | {"timestamp": seconds if unit_ms == 1000 else str(day)})
    return str(folder / f"{unit_ms}.csv")


@pytest.mark.parametrize("unit_ms", [1000, 86_400_000])
def test_the_same_reviews_in_two_formats_count_once(
    unit_ms: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each review would count twice, since one file has milliseconds and the other seconds."""
    reviews = [one | {"user_id": f"{number}"} for number, one in enumerate(steady_market())]
    alone = panel.prepare(config_for(tmp_path / "alone", reviews))
    table = write_table(tmp_path, reviews, unit_ms)
    source = (table, write_raw(tmp_path / "raw", reviews))
    both = panel.prepare(config_for(tmp_path / "both", reviews, source=source))
    assert both["census"]["dropped"][DUPLICATES]["count"] == len(reviews) == both["census"]["rows_kept"]
    assert both["splits"] == alone["splits"]
    assert both.get("lacking") == alone.get("lacking"), "copies without text count"
    if unit_ms == 1000:
        rounded = write_table(tmp_path, [one | {"timestamp": one["timestamp"] + 500} for one in reviews], unit_ms)
        third = panel.prepare(config_for(tmp_path / "rounded", reviews, source=(rounded, source[1])))
        assert third["census"]["rows_kept"] == len(reviews)
    assert (
        f"{unit_ms}.csv in {'seconds' if unit_ms == 1000 else 'days'}, reviews.jsonl in milliseconds"
        in capsys.readouterr().out
    )


REVIEWS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 1), st.integers(0, 4000)), max_size=30)


@settings(deadline=None)
@given(reviews=REVIEWS, units=st.tuples(*[st.sampled_from([1, 1000])] * 2))
def test_copies_by_brute_force(reviews: list[tuple[int, int, int, int]], units: tuple[int, int]) -> None:
    """Different reviews in one second of two files with milliseconds would count as copies, or copies would be kept."""
    rows = [(product, user, file, time // units[file] * units[file]) for product, user, file, time in reviews]
    schema = {"product": pl.Int32, "user": pl.UInt64, "source_file": pl.Int16, "time_ms": pl.Int64}
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_row_index("source_line")
    frame = frame.sort("product", "time_ms", "source_file", "source_line")
    expected = np.zeros(len(frame), bool)
    kept: list[tuple[int, int, int, int]] = []
    for unit in sorted(set(units)):
        for number, (product, user, file, time) in enumerate(frame.select(*schema).rows()):
            if units[file] == unit:
                rounded = (0, 500) if unit == 1000 else (0,)  # seconds may be cut or rounded
                copies = [
                    (*one, added)
                    for one in kept
                    for added in rounded
                    if one[:2] == (product, user) and (one[3] + added) // unit == (time + added) // unit
                ]
                expected[number] = not copies
                kept += [(product, user, unit, time)] if not copies else []
    np.testing.assert_array_equal(duplicates.are_kept(frame, units), expected)


@pytest.mark.parametrize(
    ("products", "known", "sentence"),
    [
        ("ABCDE", ["a", "b", "c", "d", "e"], "the reviews have 'A' where the metadata have 'a'"),
        (["1", "2", "3", "4", "5"], ["1.0", "2.0", "3.0"], "the reviews have '1' where the metadata have '1.0'"),
        (["01", "02", "03", "04", "05"], [1, 2, 3], "the reviews have '01' where the metadata have '1'"),
        ("ABCDE", ["A", "X", "Y"], "the reviews have 'B', the metadata '[AXY]'"),
    ],
)
def test_metadata_of_other_products_are_refused(
    products: Any, known: list[Any], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No product would have a category, without a message."""
    names = dict(zip("ABCDE", products, strict=True))
    content = [one | {"parent_asin": names[one["parent_asin"]]} for one in steady_market()]
    metadata = (write_metadata(tmp_path / "raw", [product_metadata(one) for one in known]),)
    num = sum(str(one) in products for one in known)
    with pytest.raises(UserError, match=rf"only {num} of 5 reviewed products have metadata .*min_matched.*{sentence}"):
        panel.prepare(config_for(tmp_path, content, metadata=metadata))
    manifest = panel.prepare(config_for(tmp_path, content, metadata=metadata, min_matched=0.0))
    assert manifest["lacking"] == {"metadata": 1 - num / 5}
    assert f"{num} of 5 reviewed products have metadata" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"min_matched=2\.0 is impossible: it must be between 0 and 1"):
        panel.prepare(config_for(tmp_path, content, metadata=metadata, min_matched=2.0))


def test_new_reviews_are_matched_as_those_of_training(tmp_path: Path) -> None:
    """A service of members that learned with metadata of two products in five would refuse every request."""
    metadata = (write_metadata(tmp_path / "raw", [product_metadata(one) for one in "AXY"]),)
    ordinary = panel.prepare(config_for(tmp_path / "ordinary", steady_market()))
    assert "min_matched" not in ordinary  # ordinary data keep their fingerprint
    like = panel.prepare(config_for(tmp_path / "old", steady_market(), metadata=metadata, min_matched=0.1))
    assert like["min_matched"] == 0.1
    source = (write_raw(tmp_path, steady_market()),)
    settings = {"out": str(tmp_path / "new"), "source": source, "metadata": metadata}
    assert new_data.prepare(like, settings)["lacking"] == {"metadata": 0.8}
    with pytest.raises(UserError, match=r"only 1 of 5 reviewed products .*at least 30% must"):
        new_data.prepare(like, {**settings, "out": str(tmp_path / "stricter"), "min_matched": 0.3})
    with pytest.raises(UserError, match=r"min_matched=-0\.5 is impossible"):
        new_data.prepare(like, {**settings, "out": str(tmp_path / "wrong"), "min_matched": -0.5})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (["min_matched=0.2", "max_bad_fraction=0", "until=2022-01-02"],
         {"min_matched": 0.2, "max_bad_fraction": 0.0, "until": "2022-01-02"}),
    ],
)  # fmt: skip
def test_the_command_leaves_settings_as_they_were(
    words: list[str], expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default of the command would take the place of the setting of training."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(predictor, "predict", lambda *arguments: given.update(arguments[4]))
    monkeypatch.setattr(predictor, "meaning_of", lambda manifest: "")
    folders.write_json(tmp_path / "like.json", {})
    words = [f"ensemble={tmp_path}", "source=[new.jsonl]", "out=o", *words]
    monkeypatch.setattr("sys.argv", ["ensemble_predictor.py", "predict", *words])
    ensemble_predictor.main()
    assert given == expected


def test_metadata_that_stand_twice_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of two descriptions of a product would be used without a message."""
    rows = [product_metadata(one) for one in "ABCDEZ"]
    once = panel.prepare(config_for(tmp_path / "once", steady_market(), metadata=(write_raw(tmp_path, rows, "once.jsonl"),)))
    assert once["product_census"]["dropped"] == {}
    assert "warning" not in capsys.readouterr().err
    rows += [product_metadata(one) for one in "AAZ"]
    rows += [product_metadata("B", "Tools"), product_metadata("B", store="S")]
    metadata = (write_raw(tmp_path, rows, "twice.jsonl"),)
    twice = panel.prepare(config_for(tmp_path / "twice", steady_market(), metadata=metadata))
    census = twice["product_census"]
    assert {kind: dropped["count"] for kind, dropped in census["dropped"].items()} == {spills.COPY: 3, spills.CONFLICT: 2}
    assert census["rows_read"] == len(rows) == census["rows_kept"] + 5
    assert "warning: 2 rows of the metadata differ from an earlier row of the same product, such as B" in (
        capsys.readouterr().err
    )
    assert twice["splits"] == once["splits"]
    metadata = (write_raw(tmp_path, rows[:-1], "one.jsonl"),)
    panel.prepare(config_for(tmp_path / "one", steady_market(), metadata=metadata))
    assert "warning: 1 row of the metadata differs from an earlier row" in capsys.readouterr().err


def test_without_folds_a_small_market_works(tmp_path: Path) -> None:
    """The advice would say that nothing helps, although the folds are the cause."""
    config = config_for(tmp_path, steady_market(24), PanelConfig(folds=12))
    with pytest.raises(UserError, match=r"panel.horizon_weeks=(\d+) panel.top_fraction=([\d.]+) panel.folds=0 would work$"):
        panel.prepare(config)


@pytest.mark.parametrize(("num_weeks", "changes"), [(60, {}), (24, {}), (60, {"folds": 2}), (17, {"horizon_weeks": 4})])
def test_the_settings_that_are_advised_work(num_weeks: int, changes: dict[str, Any], tmp_path: Path) -> None:
    """A newcomer with a small market would have to try horizons and fractions one by one."""
    config = config_for(tmp_path, steady_market(num_weeks), PanelConfig(**changes))
    with pytest.raises(UserError) as raised:
        panel.prepare(config)
    advised = re.search(r"; panel.horizon_weeks=(\d+) panel.top_fraction=([\d.]+) would work$", str(raised.value))
    assert advised
    better = PanelConfig(**(changes | {"horizon_weeks": int(advised[1]), "top_fraction": float(advised[2])}))
    assert all(panel.prepare(config_for(tmp_path, steady_market(num_weeks), better))["splits"].values())


@pytest.mark.parametrize("num_weeks", [15, 20])
def test_an_ensemble_can_be_fitted_with_the_settings_that_are_advised(num_weeks: int, tmp_path: Path) -> None:
    """The longest horizon with which the data can be prepared leaves one week for blend, on which no ensemble is fitted. A
    user who follows the advice would learn this only after all members are trained."""
    market = steady_market(num_weeks)
    with pytest.raises(UserError) as raised:
        panel.prepare(config_for(tmp_path, market, PanelConfig()))
    advised = re.search(r"; panel.horizon_weeks=(\d+) panel.top_fraction=([\d.]+) would work$", str(raised.value))
    assert advised
    better = PanelConfig(horizon_weeks=int(advised[1]), top_fraction=float(advised[2]))
    blend = panel.prepare(config_for(tmp_path, market, better))["splits"]["blend"]
    assert blend["first_week"] < blend["last_week"]


@pytest.mark.parametrize(("fraction", "tried"), [(0.05, "0.5"), (0.9, "0.9")])
def test_no_fraction_is_advised_if_none_would_work(fraction: float, tried: str, tmp_path: Path) -> None:
    """The only product of each week is never among the top fraction, but the user would be asked to raise the fraction, and
    to lower min_reviews below 1, which is refused."""
    alone = [one for one in steady_market(60) if one["parent_asin"] == "A"]
    with pytest.raises(UserError) as raised:
        panel.prepare(config_for(tmp_path, alone, PanelConfig(top_fraction=fraction, horizon_weeks=2)))
    fix = f": give more data; shorter horizons and fractions up to {tried} would not help"
    assert str(raised.value).endswith(fix)


def test_a_stray_review_and_a_file_that_ends_early_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The forecast would be of a week with one review, or products of one file would count as without reviews."""
    market = steady_market()
    panel.prepare(config_for(tmp_path / "whole", market))
    assert "warning" not in capsys.readouterr().err
    stray = [*market, review("A", 90, SUNDAY)]
    with suppress(UserError):  # whose splits may lack hot rows
        panel.prepare(config_for(tmp_path / "stray", stray))
    warned = capsys.readouterr().err
    assert "warning: the 4 weeks to that of" in warned
    day = warned.rpartition("until=")[2][: len("2021-01-01")]
    panel.prepare(config_for(tmp_path / "cut", stray, until=day))
    assert "warning" not in capsys.readouterr().err
    middle = np.median([one["timestamp"] for one in market])
    early = [one for one in market if one["parent_asin"] == "A" and one["timestamp"] < middle]
    files = [write_raw(tmp_path, early, "early.jsonl")]
    files.append(write_raw(tmp_path, [one for one in market if one not in early], "rest.jsonl"))
    with suppress(UserError):
        panel.prepare(config_for(tmp_path / "early", market, source=tuple(files)))
    warned = capsys.readouterr().err
    assert "early.jsonl ends in the week of" in warned
    # Until the Sunday of a week in whose middle the file ends, its products would seem to lose reviews in that week
    day = str(weekly.sunday(weekly.last_complete_week(max(one["timestamp"] for one in early))))
    assert re.findall(r"until=([\d-]+)", warned) == [day]


def test_the_end_of_the_usual_weeks_is_before_those_with_few_reviews(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the reviews after a gap are as many as in a usual week, the advised end would leave out nothing."""
    content = [*steady_market(), *(review("A", 40, 0.1, user_id=f"user {number}") for number in range(10))]
    with suppress(UserError):  # whose splits may lack hot rows
        panel.prepare(config_for(tmp_path / "gap", content))
    warned = capsys.readouterr().err
    assert "warning: the 4 weeks to that of" in warned
    panel.prepare(config_for(tmp_path / "cut", content, until=warned.rpartition("until=")[2][: len("2021-01-01")]))
    assert "warning" not in capsys.readouterr().err


def test_a_file_without_reviews_continues_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If all reviews of a file are after `until`, no other file would be reported as one that ends early."""
    parts = {"early": [review("F", week) for week in range(10)], "rest": steady_market(), "later": [review("A", 90)]}
    files = tuple(write_raw(tmp_path, part, f"{name}.jsonl") for name, part in parts.items())
    with suppress(UserError):
        panel.prepare(config_for(tmp_path / "out", [], source=files, until="2022-01-01"))
    assert "early.jsonl ends in the week of" in capsys.readouterr().err


@pytest.mark.parametrize("last", [[], [review("A", 24, 0.3, user_id="ann"), review("A", 24, 0.3, user_id="bob")]])
def test_the_end_that_is_advised_works(last: list[dict[str, Any]], tmp_path: Path) -> None:
    """A user who ends the data as advised would get the same advice again, for example if the last reviews before that end
    are in the middle of a week."""
    like = panel.prepare(config_for(tmp_path / "old", steady_market()))
    content = [*steady_market(), *last, review("A", 40, SUNDAY)]
    settings = PanelConfig(horizon_weeks=2, top_fraction=0.4, min_reviews=2)
    with pytest.raises(UserError, match=r"nothing to forecast: give later data, or leave out all after ") as raised:
        panel.prepare(config_for(tmp_path, content, settings), like)
    day = str(raised.value).rpartition("until=")[2][: len("2021-01-01")]
    assert day > str(FIRST_DAY.date())
    assert panel.prepare(config_for(tmp_path, content, settings, until=day), like)["splits"]


def test_no_settings_are_advised_for_data_without_rows_to_forecast(tmp_path: Path) -> None:
    """A user who follows the advice would learn only then that there is nothing to forecast."""
    content = [*steady_market(), review("A", 40, SUNDAY)]
    with pytest.raises(
        UserError, match=r"no hot product.*; and the last week has no rows to forecast: give later data, or "
    ):
        panel.prepare(config_for(tmp_path, content, PanelConfig(horizon_weeks=2, min_reviews=2)))


def test_no_settings_are_searched_for_large_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of eight horizons would be in memory before it is known that they are too many."""
    monkeypatch.setattr(advice, "MOST_ROWS", 3)
    calls: list[str] = []

    def parts() -> list[weekly.WeeklySeries]:
        calls.append("all products")
        return [weekly.WeeklySeries(pl.DataFrame({"product": 0, "week": range(100), "reviews": 1}))]

    assert advice.settings_that_work(parts, PanelConfig(), 0, 99) == ""
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("products", "every", "warned"),
    [("ABCDE", 1, []), ("CDE", 1, []), ("AB", 1, ["products", "weekly reviews"]), ("ABCDE", 3, ["weekly reviews"])],
)
def test_a_part_of_the_market_is_warned_of(
    products: str, every: int, warned: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The features of a category and of the market, and so the probabilities, would be wrong without a warning."""
    whole = steady_market()
    like = panel.prepare(config_for(tmp_path / "old", whole))
    part = [one for one in whole if one["parent_asin"] in products]
    part = [*part[::every], *([part[-1]] if (len(part) - 1) % every else [])]
    source = write_raw(tmp_path, part)
    capsys.readouterr()
    manifest = new_data.prepare(like, {"out": str(tmp_path / "new"), "source": (source,)})
    assert re.findall(r"warning: these reviews have [\d.]+% of the ([a-z ]+) that the", capsys.readouterr().err) == warned
    assert list(manifest.get("lacking", {})) == warned
    if "products" in warned:
        assert manifest["lacking"]["products"] == 0.6


def test_settings_of_the_generated_market_with_files_are_refused(tmp_path: Path) -> None:
    """The settings would have no effect, without a message."""
    config = config_for(tmp_path, steady_market(), market=MarketConfig(seed=3))
    with pytest.raises(
        UserError, match=r"^market.seed=3 applies only to a generated market, but source names your own files"
    ):
        panel.prepare(config)


def test_a_pipe_is_no_source(tmp_path: Path) -> None:
    """The command would wait for ever, and Ctrl-C would not end it."""
    os.mkfifo(tmp_path / "pipe")
    raw = write_raw(tmp_path, steady_market())
    for changes in ({"source": (str(tmp_path / "pipe"),)}, {"metadata": (str(tmp_path / "pipe"),)}):
        with pytest.raises(UserError, match="pipe is a pipe"):
            panel.prepare(PrepareConfig(**{"source": (raw,), "out": str(tmp_path / "out")} | changes))
