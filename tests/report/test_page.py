"""The report: what is on the page, in which order and units, and how it looks without scripts or a network."""

import dataclasses
import html
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import prepared_folders
import pyarrow.parquet as pq
import pytest
from blends import blend_of
from report_runs import PANEL, seal, text, write, write_predictions, write_table

from ensemble import configuration, folders, predictions
from ensemble.arrow import open_table
from ensemble.data import drift
from ensemble.predictor import fit as predictor
from ensemble.recipes.hot_sellers import features
from ensemble.recipes.hot_sellers import page as hot_page
from ensemble.recipes.hot_sellers.settings import PrepareConfig
from ensemble.recipes.table import prepare as table
from ensemble.report import forecast, tables
from ensemble.report import words as report_words
from ensemble.task import Task


def test_the_page_has_the_scores(run: Path, page: str) -> None:
    """The first sentence would state other scores, or a part of the page would be lost."""
    words, scores = text(page), folders.read_json(run / "ensemble" / "scores.json")
    ensemble = scores["scores"]["ensemble"]
    precision, base_rate = (
        report_words.percent(value).replace(report_words.THIN, " ")
        for value in (ensemble["precision_at_5pct"]["value"], scores["base_rate"])
    )
    lift = f"{ensemble['lift_at_5pct']['value']:.1f}"
    assert f"top 5 %, {precision} became hot sellers, {lift} times the base rate of {base_rate}" in words
    assert f"{ensemble['average_precision']['value']:.3f} {ensemble['average_precision']['low']:.3f} to" in words
    manifest = folders.read_manifest(run / "prepared")
    for part in (
        f"Forecast from the week of {report_words.day(manifest['last_week'])} for the 4 weeks after it",
        "share of 52 weeks’ reviews in the last 4: 1.7 %",  # the reason, in words
        "“not hot” for every row",
        "members added one by one",  # how the combiners were compared
        "The mean probability of each week is then moved to",
        "1 min 23 s",
        "12,345 weights",
        "best 0.274 at tree 39",
        "weeks since its first review 75.0 % trees",  # importance, as a part of the whole
        "dropped: malformed line 1",
        "{a line <i>cut</i>",
        manifest["sources"][0]["sha256"],
        manifest["fingerprint"],
    ):
        assert part in words, part


def test_lists_the_forecast_in_its_order(run: Path, page: str) -> None:
    """A product would be missing, or stand at another rank than in forecast.csv."""
    table = pq.read_table(run / "ensemble" / "forecast.parquet").slice(0, forecast.NUM_ROWS).to_pylist()
    listed = [page.index(row["product_id"]) for row in table]
    assert listed == sorted(listed)
    assert page.count('class="track"') == len(table) > 10


def test_titles_are_text(page: str) -> None:
    """A product's title could run a script in the reader's browser."""
    assert "&lt;script&gt;alert(&#39;title&#39;)&lt;/script&gt; &amp; &lt;b&gt;Fox&lt;/b&gt;" in page
    assert "<script" not in page
    assert "<b>Fox" not in page


def test_needs_no_network(page: str) -> None:
    """The page would look different, or tell someone that it was opened, on a machine with a network."""
    assert not re.findall(r'(?:src|srcset|href|action|data)="(?!#|data:,)[^"]*"', page)
    assert not re.findall(r"url\((?!#)|@import|<iframe|<object|<embed|https?://", page)
    assert len(page) < 1_500_000


def test_pictures_are_apart_and_follow_the_colours(scaled_page_file: Path) -> None:
    """Clip paths of one picture would cut another, or black lines would stand on the dark page."""
    page = scaled_page_file.read_text(encoding="utf-8")
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)
    pictures = re.findall(r'<svg viewBox.*?role="img".*?</svg>', page, flags=re.DOTALL)
    assert len(pictures) == 8  # three curves, two of the net's learning, one of the trees', two of scaling
    for picture in pictures:
        assert not re.findall(r"(?:fill|stroke): #|font-family|<style", picture)
        assert "var(--series-" in picture


def test_the_text_of_a_picture_is_complete(page: str) -> None:
    """A screen reader would read a text that ends with an empty clause, where a curve has no best score."""
    labels = re.findall(r'<svg viewBox[^>]*aria-label="([^"]*)"', page)
    assert any("training loss" in label for label in labels)
    assert not [label for label in labels if label.rstrip().endswith(";")]


def test_the_command_of_a_network_with_a_refit_has_its_whole_limit(copy: Path, tmp_path: Path) -> None:
    """The limit would be the share of the first training, so that a repetition would train for less time."""
    net = copy / "members" / "net"
    folders.write_json(net / "config.json", {**folders.read_json(net / "config.json"), "max_seconds": 24.0})
    folders.write_json(net / "summary.json", {**folders.read_json(net / "summary.json"), "max_seconds": 40.0})
    page = write(copy, tmp_path / "report.html")
    assert "max_seconds=40.0" in page
    assert "max_seconds=24.0" not in page


def test_a_step_without_a_finite_loss_is_no_point_of_the_curve(copy: Path, tmp_path: Path) -> None:
    """A run with nonfinite=skip, which logs the loss of a skipped step as null, would have no page."""
    with (copy / "members" / "net" / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": "train", "step": 40, "loss": None}) + "\n")
    assert "training loss by step" in write(copy, tmp_path / "report.html")


def page_of_curve(folder: Path, errors: list[float], trees: int) -> str:
    """The page of a regression by one member with these errors after each tree, of which it has `trees`."""
    write_table(folder, "regression", num_members=1)
    member, metric = folder / "members" / "m0", "root_mean_squared_error"
    summary = folders.read_json(member / "summary.json")
    folders.write_json(member / "summary.json", summary | {"trees": trees, f"validation_{metric}": errors[trees - 1]})
    entries = [{"kind": "val", "step": step, metric: error} for step, error in enumerate(errors, start=1)]
    (member / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return write(folder, folder / "report.html")


def test_a_learning_curve_has_the_score_of_the_table(tmp_path: Path) -> None:
    """An error of 2e-8 metres would be 0.000 above its learning curve, and 1.971e-08 in the table of members."""
    words = text(page_of_curve(tmp_path, [3e-8, 1.971e-8], 2))
    assert words.count("1.971e−08") == 2
    assert "best 1.971e−08 at tree 2" in words


def test_a_learning_curve_shows_the_chosen_number_of_trees(tmp_path: Path) -> None:
    """The curve of a CatBoost member with several copies would state another number of trees and score than the table."""
    words = text(page_of_curve(tmp_path, [3.0, 2.0, 2.5], 3))
    assert "2.500 at tree 3, the chosen number of trees" in words
    assert "at tree 2" not in words


def test_numbers_at_a_learning_curve_are_short(tmp_path: Path) -> None:
    """Errors around 6e7 would be marked 5.8 and 6.0, with a separate 1e7 above the picture."""
    page = page_of_curve(tmp_path, [6.2e7, 5.8e7], 2)
    picture = re.findall(r'<svg viewBox[^>]*aria-label="m0.*?</svg>', page, flags=re.DOTALL)[0]
    assert f">60{report_words.THIN}M<" in picture
    assert ">1e7<" not in picture


def test_the_page_has_the_measured_scaling(scaled_page_file: Path, page: str, scaling: list[Path]) -> None:
    """A figure of the measurement would be lost, or expected values would be taken for a measurement."""
    scaled = scaled_page_file.read_text(encoding="utf-8")
    words = text(scaled)
    for part in (
        "measured: Some <i>CPU</i>, 2 cores measured: NVIDIA A100-SXM4-80GB",
        "ideal expected before any measurement Speed-up",
        f"3 trainings on each number of ranks, global batch 4,096, 20 November 2026, from {scaling[0]}",
        "on each number of ranks, global batch 4,096, 3.6 a GPU-hour",
        "2 1 cpu 160 155 to 166 1.60 1.56 to 1.65 80 % 78 % to 83 % 0.347 1.2 %",  # rank-hours: 2 × 100,000 ÷ 160 ÷ 3600
        "8 2 NVIDIA A100-SXM4-80GB 6,400 6,200 to 6,700 6.40 6.26 to 6.63 80 % 78 % to 83 % 0.0347 1.25 1.2 %",
        "rank-hours a training waits for data",
        "GPU-hours a training cost a million samples waits for data",
        "expected values, which were not measured: 1.85 × on 2 (92 %), 3.43 × on 4 (86 %), 6.0 × on 8 (75 %) GPUs.",
    ):
        assert part in words, part
    assert "Training on more ranks" not in text(page)
    assert 'id="scaling"' not in page
    last = re.findall(r"<code>(python .*?)</code>", scaled)[-1]
    assert f"scaling=[{scaling[0]},{scaling[1]}]" in shlex.split(html.unescape(last))


def test_more_measurements_than_colours_share_them(run: Path, scaling: list[Path], tmp_path: Path) -> None:
    """The eleventh kind of hardware would end the report with a traceback."""
    page = write(run, tmp_path / "report.html", [scaling[0]] * 11)
    assert page.count("var(--series-1)") > 0
    assert "var(--series-11)" not in page


def test_draws_only_measured_points(scaled_page_file: Path) -> None:
    """A number that nobody measured would look as if it had been."""
    page = scaled_page_file.read_text(encoding="utf-8")
    pictures = re.findall(r'<svg viewBox[^>]*aria-label="(?:Speed-up|Efficiency) .*?</svg>', page, flags=re.DOTALL)
    assert len(pictures) == 2
    for picture in pictures:
        marks = re.findall(r'<use [^>]*style="fill: var\(--([\w-]+)\)', picture)
        assert sorted(marks) == ["series-1"] * 3 * 2 + ["series-2"] * 3 * 4  # a dot, and the two ends of its bar
        grey = re.findall(r'style="fill: none;([^"]*); stroke: var\(--muted\); stroke-width: 1.2', picture)
        assert ["dasharray" in style for style in grey] == [True]  # planned


def test_a_member_from_elsewhere_needs_no_folder(copy: Path, tmp_path: Path) -> None:
    """Prediction files of another program join the ensemble, but the report would demand its training logs."""
    for name in ("net", "trees"):
        for split in ("blend", "test", "forecast"):
            result = predictions.read(copy / "predictions" / f"{name}.{split}.parquet")
            fields = {field: getattr(result, field) for field in predictions.COLUMNS}
            write_predictions(copy, split, name, **fields, recipe=result.recipe, fingerprint=result.fingerprint)
    predictor.fit(copy / "predictions", copy / "prepared", copy / "ensemble", num_draws=2, overwrite=True)
    words = text(write(copy, tmp_path / "report.html"))
    assert "Scores Curves" in words
    assert "Learning curves" not in words
    assert "Why accuracy is not in the table" in words
    assert "strongest first" not in words  # nobody gave reasons


def test_data_without_a_test_have_a_page(tmp_path: Path) -> None:
    """The template would fail, call rows untouched on which weights were fitted, or call clusters rows."""
    task = Task(kind="binary", target="y", metric="log_loss", group="group", cluster="cluster")
    splits, target = {"train": {"rows": 900}, "blend": {"rows": 300}}, {"column": "y", "names": ["no", "yes"]}
    fingerprint = prepared_folders.write(tmp_path / "prepared", {}, task, [], recipe="table", splits=splits, target=target)
    ids, blend = np.arange(300), blend_of("binary", 300)
    columns = {"row_id": ids, "target": blend.target, "group": blend.group, "cluster": ids // 2, "fingerprint": fingerprint}
    for member in range(2):
        prediction = blend.predictions[:, member]
        write_predictions(tmp_path, "blend", f"m{member}", prediction=prediction, recipe="table", **columns)
    scores = predictor.fit(tmp_path / "predictions", tmp_path / "prepared", tmp_path / "ensemble", num_draws=2)
    words = text(write(tmp_path, tmp_path / "report.html"))
    rows = f"{scores['rows']} rows"
    assert f"Measured on the blend split: {rows}, each predicted by weights that were fitted on other rows." in words
    assert "by a bootstrap of 2 draws of clusters." in words
    assert "test was only scored" not in (tmp_path / "ensemble" / "README.md").read_text()
    assert f"On {rows} predicted by weights that were fitted on other rows, the ensemble’s log loss is" in words


RIGHT_TO_LEFT = "\u202e"


def test_a_regression_of_two_members(tmp_path: Path) -> None:
    """Values of a regression would be called scaled, its weights would not be mentioned, or 20 notes would fill a screen."""
    notes = [f"note <{number}>" for number in range(20)]
    page = write_table(
        tmp_path, "regression", f"a{RIGHT_TO_LEFT}b", config={"weight": "w"}, notes=notes, fit={"combiner": "simplex"}
    )
    words = text(page)
    assert "The predictions of the members are averaged with these weights. Weights come from" in words
    assert "The combiner simplex was set before the fit; the others are for comparison." in words
    assert "each block with the method that was chosen on the other blocks" in words
    assert "The scores are weighted by w. Below each score" in words
    assert page.index("note &lt;14&gt;") < page.index("<summary>5 more notes</summary>") < page.index("note &lt;15&gt;")
    assert f"<bdi>a{RIGHT_TO_LEFT}b</bdi>: <bdi>−1.26</bdi>" in page  # else the number is read backwards
    two = text(write_table(tmp_path / "two", "regression", "y", fit={"combiner": "simplex,best_member"}))
    assert "Simplex weights are chosen unless best member is better by more than half a standard error." in two


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("binary", "measured on out-of-fold predictions (weighted by w). Counts and costs are per 1,000 rows,"),
        ("multiclass", "For the rows of each true class, the share (weighted by w) that the ensemble predicted"),
        ("regression", "rows (weighted by w), each with quantiles of other rows,"),
    ],
)
def test_weighted_counts_are_not_called_rows(tmp_path: Path, kind: str, sentence: str) -> None:
    """Where heavy rows are more often positive, a reader would expect twice as many alarms as a thousand rows have."""
    names = ("a", "b", "c", "d") if kind == "multiclass" else ("no", "yes")
    assert sentence in text(write_table(tmp_path, kind, names=names, config={"weight": "w"}))


def test_the_top_of_a_small_block_is_one_row(tmp_path: Path) -> None:
    """Of a block of five rows the top 5 % are 20 %, so its lift would be taken for that of a much smaller part."""
    assert "each block’s top 5 %, rounded down, but at least one row." in text(write_table(tmp_path, "binary"))


def test_combiners_and_calibrators_are_separate(tmp_path: Path) -> None:
    """The first calibrator would look chosen, or the score of the chosen combiner would contradict that of the ensemble."""
    page = write_table(tmp_path, "binary", fit={"combiner": "simplex", "calibration": "none,platt"})
    assert "Combiners are scored with the calibrator platt." in text(page)
    assert '<tr class=below-line><th scope="row">platt</th>' in page


def test_the_importance_of_a_network_is_shown(copy: Path, tmp_path: Path) -> None:
    """The importance would be that of the trees alone, although the network may have the largest weight; or that of an
    earlier model."""
    importance = {"metric": "log_loss", "rows": 321, "worse": {"age": 0.1234}}
    file = dataclasses.replace(predictions.read(copy / "predictions/net.test.parquet"), split="oof", importance=importance)
    predictions.write(copy / "predictions/net.oof.parquet", file)
    words = text(write(copy, tmp_path / "report.html"))
    assert "permuted among 321 held-out rows" in words
    assert "0.1234 net" in words
    other = dataclasses.replace(file, config={**file.config, "model": "another"})
    predictions.write(copy / "predictions/net.oof.parquet", other)
    assert "permuted among" not in text(write(copy, tmp_path / "other.html"))


def test_a_row_without_reasons_is_explained(tmp_path: Path) -> None:
    """A reader would take an empty cell among the reasons for an error."""
    sentence = "a row that the members with most of the weight do not explain has no reasons."
    assert sentence not in text(write_table(tmp_path, "binary", num_new=3))
    for name in ("m0", "m1"):
        forecast_of = predictions.read(tmp_path / f"predictions/{name}.forecast.parquet")
        assert forecast_of.reasons is not None
        without_last = dataclasses.replace(forecast_of, reasons=[*forecast_of.reasons[:-1], []])
        predictions.write(tmp_path / f"predictions/{name}.forecast.parquet", without_last)
    predictor.fit(
        tmp_path / "predictions", tmp_path / "prepared", tmp_path / "ensemble", on="oof", num_draws=2, overwrite=True
    )
    assert sentence in text(write(tmp_path, tmp_path / "report.html"))


def test_one_of_each(tmp_path: Path) -> None:
    """A page would read "the 1 features", "the 1 rows", or compare the combiners of a single member."""
    words = text(
        write_table(tmp_path, "regression", scheme="forward", num_members=1, config={"time": "t"}, left_out={"k": "why"})
    )
    assert not re.search(r"\b1 (features|rows|others|columns|notes)\b|1 of 1\b", words)
    for part in ("from 1 feature.", "The 1 row whose y is empty; it is in forecast.csv", "The 1 feature: missing"):
        assert part in words
    assert "There is one member, so there is nothing to combine. ●" in words
    assert "Equal weights are chosen" not in words
    assert "each block with the method that was chosen on the blocks before it" in words
    assert "other blocks" not in words
    assert "weighted" not in words
    assert "more note" not in words


@pytest.mark.parametrize(("count", "shown"), [(0, "0 rows"), (1, "1 row"), (1200, "1,200 rows")])
def test_nouns_follow_their_count(count: int, shown: str) -> None:
    """A page of one row would read "1 rows"."""
    assert report_words.counted(count, "row") == shown


def test_small_numbers_have_digits() -> None:
    """A forecast of concentrations around 0.0004 would be a column of zeros."""
    shown = {
        0.000412: "0.000412",
        -0.00489: "−0.00489",
        1.2e-7: "1.2e−07",
        0.0: "0",
        0.123: "0.12",
        4.5678: "4.57",
        1234.5: "1,234",
    }
    assert {value: report_words.number(value) for value in shown} == shown
    assert [report_words.significant(value) for value in (4.63e-8, 0.00412, 1234.5)] == ["4.63e−08", "0.00412", "1,234"]
    scores = {0.0000021067: "2.107e−06", 0.0123456: "0.01235", -44564.49: "−44,564", 0.0: "0.000"}
    assert {value: tables.score("regression", value, "root_mean_squared_error") for value in scores} == scores


def test_very_large_numbers_have_an_exponent() -> None:
    """A score of 1.2e30 would have 31 digits, most of them wrong, and its tables would be wider than the page."""
    assert [report_words.number(value) for value in (1.234567e30, -2e15, 123456789012345)] == [
        "1.235e+30",
        "−2e+15",
        "123,456,789,012,345",
    ]
    assert report_words.number(1.5e29, 1) == "1.5e+29"
    assert report_words.significant(3.84578e30) == "3.846e+30"
    assert tables.score("regression", 1.152384e30, "root_mean_squared_error") == "1.152e+30"


def test_small_scores_have_digits() -> None:
    """A log loss of 3.8e-05 would be 0.0000 in the leaderboard, below a first sentence with 3.8e-05."""
    shown = {3.8e-5: "3.8e−05", 0.000412: "0.000412", 0.0012: "0.0012", 0.3141592: "0.3142", 0.0: "0.0000", 1e-12: "0.0000"}
    assert {value: tables.score("binary", value, "log_loss", 4) for value in shown} == shown
    assert tables.score("multiclass", -0.00003, "multiclass_log_loss", 5) == "−3e−05"


@pytest.mark.parametrize(("size", "shown"), [(2_345, "2.3 kB"), (99_949, "99.9 kB"), (123_456, "0.1 MB"), (2.3e6, "2.3 MB")])
def test_a_small_file_has_a_size(size: float, shown: str) -> None:
    """A source of 40 kB, or a linear member, would have 0.0 MB."""
    assert report_words.file_size(size).replace(report_words.THIN, " ") == shown


def test_an_undefined_score_is_explained(copy: Path, tmp_path: Path) -> None:
    """Real data can have a test split without one hot seller: the first sentence would fail on None."""
    path = copy / "ensemble" / "scores.json"
    scores = folders.read_json(path)
    for intervals in [*scores["scores"].values(), scores["gain_over_best_member"]]:
        for name in ("average_precision", "lift_at_5pct"):
            intervals[name] = {"value": None, "low": None, "high": None}
    folders.write_json(path, {**scores, "undefined": "There is no positive among these rows."})
    seal(copy)
    assert "The forecast has no score: There is no positive among these rows." in text(write(copy, tmp_path / "report.html"))


def test_warnings_of_the_fit_are_on_the_page(copy: Path, tmp_path: Path) -> None:
    """Only those who saw the terminal would know that a perfect score comes from a leak."""
    path = copy / "ensemble" / "scores.json"
    folders.write_json(path, {**folders.read_json(path), "warnings": ["member trees is right on <all> rows"]})
    seal(copy)
    assert "Warning: member trees is right on <all> rows." in text(write(copy, tmp_path / "report.html"))


def test_a_table_with_a_constant_target_and_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without R² would say that there is no score, and the range of some rows would be taken for that of all."""
    day, generator = np.arange(200), np.random.default_rng(0)
    columns = {"day": day, "x": generator.normal(size=200), "y": np.where(day < 150, day % 7, 7.0)}
    pl.DataFrame(columns).write_parquet(tmp_path / "t.parquet")
    settings: dict[str, Any] = {
        "source": (str(tmp_path / "t.parquet"),),
        "target": "y",
        "task": "regression",
        "time": "day",
        "test": 0.2,
    }
    manifest = table.prepare(table.PrepareConfig(out=str(tmp_path / "prepared"), **settings))
    for split, name in (("train", "oof"), ("test", "test")):
        rows = open_table(tmp_path / "prepared/rows" / split)
        rows = rows.filter(rows["fold"].to_numpy() >= 0) if split == "train" else rows
        result: dict[str, Any] = {column: rows[column].to_numpy() for column in ("row_id", "group", "cluster", "target")}
        result["prediction"] = result["target"] + generator.normal(size=len(rows))
        write_predictions(
            tmp_path, name, "trees", **result, recipe="table", fingerprint=manifest["fingerprint"], output="value"
        )
    scores = predictor.fit(tmp_path / "predictions", tmp_path / "prepared", tmp_path / "ensemble", num_draws=5)
    assert scores["undefined"]
    page = text(write(tmp_path, tmp_path / "report.html"))
    assert "There is no score" not in page
    assert "nothing was fitted, the ensemble’s root mean squared error is" in page
    assert "missing and distinct values in train" in page
    monkeypatch.setattr(drift, "MOST_ROWS", 60)
    page = text(write(tmp_path, tmp_path / "report.html"))
    assert "missing and distinct values in 60 random rows of train" in page


def test_every_feature_has_a_label() -> None:
    """A reason would read n(t−4, t] ÷ n(t−52, t], or two features would read alike."""
    words = [hot_page.feature_label({"name": feature.name, "meaning": "(t"}) for feature in features.FEATURES]
    assert not [line for line in words if re.search(r"[(\[]t|\{|_", line)]
    assert len(set(words)) == len(words)
    assert hot_page.feature_label({"name": "growth_1w", "meaning": ""}) == "growth in reviews over 1 week"
    assert hot_page.feature_label({"name": "of_tomorrow", "meaning": "what it means"}) == "what it means"


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.0167, "share", "1.7 %"),
        (0.4, "share", "40 %"),
        (0.0809, "ratio", "0.08 ×"),
        (-1.25, "ratio", "−1.25 ×"),
        (1234.0, "reviews", "1,234"),
        (7.327, "reviews/week", "7.33"),
        (32.04, "reviews/week", "32"),
        (100.0, "reviews", "100"),
        (4.5, "stars", "4.5 ★"),
        (12.5, "dollars", "$12.50"),
        (1.0, "0 or 1", "yes"),
        (1.0, "code", "Toys"),
        (0.0, "code", "unknown"),
        (float("nan"), "stars", "unknown"),
    ],
)
def test_values_are_for_people(value: float, unit: str, shown: str) -> None:
    """A reason would read 0.01666667 or nan."""
    assert report_words.feature_value(value, unit, ["", "Toys"]).replace(report_words.THIN, " ") == shown


def test_the_commands_carry_the_settings(page: str) -> None:
    """A user who runs the commands of the page would get other data or other members."""
    lines = [shlex.split(html.unescape(line)) for line in re.findall(r"<code>((?:python|accelerate) .*?)</code>", page)]
    scripts = [next(word for word in line if word.startswith("scripts/")) for line in lines]
    assert [Path(script).stem for script in scripts] == [
        "prepare_data", "train", "train_trees", "predict", "predict", "predict", "ensemble_predictor", "report"
    ]  # fmt: skip
    assert all((Path(__file__).parents[2] / script).is_file() for script in scripts)
    prepare = configuration.load(PrepareConfig, None, lines[0][2:])
    assert prepare.panel == PANEL
    assert (prepare.source, prepare.metadata) == (("reviews.jsonl",), ("meta.jsonl",))
    assert {"seed=7", "recipe.width=32", "recipe.text_encoder="} < set(lines[1])
    assert "accelerate_configs/single_cpu.yaml" in lines[1]
    assert {"combiner=auto", "calibration=auto", "num_draws=20", "seed=0"} < set(lines[-2])
