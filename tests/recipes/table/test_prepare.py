"""Any table to prepared data: what is read, how columns become numbers, that splits cannot leak, and what is refused."""

import gzip
import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pytest
import small_tables
from datasets import load_from_disk
from small_tables import rows_of

from ensemble import folders, metrics
from ensemble.data import inputs
from ensemble.errors import UserError
from ensemble.task import KINDS, METRICS, task_of

NUM_ROWS = 400


@pytest.mark.parametrize("role", ["time", "weight", "group", "id", "target"])
@pytest.mark.parametrize("value", [[1], b"1", {"a": 1}], ids=["list", "binary", "struct"])
def test_a_column_without_plain_values_is_refused(role: str, value: Any, tmp_path: Path) -> None:
    """Rows would be ordered, weighted or grouped by the text of a list, or a traceback would appear."""
    pl.DataFrame({"x": range(60), "y": [0, 1] * 30, "z": [value] * 60}).write_parquet(tmp_path / "a.parquet")
    names: dict[str, Any] = {role: "z"}
    with pytest.raises(UserError, match=rf"^{role}=z holds (List|Binary|Struct).*: (name a column|ids are)"):
        small_tables.prepare(tmp_path, tmp_path / "a.parquet", **names)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def people() -> pl.DataFrame:
    """Rows of every kind of column; the last 20 have no target, every 9th age is empty."""
    generator = np.random.default_rng(0)
    age = generator.integers(18, 80, NUM_ROWS).astype(float)
    day = np.datetime64("2020-01-01") + generator.integers(0, 300, NUM_ROWS).astype("timedelta64[D]")
    frame = pl.DataFrame(
        {
            "who": [f"p{row}" for row in range(NUM_ROWS)],
            "age": age,
            "city": generator.choice(["Bonn", "Köln", "Ulm"], NUM_ROWS),
            "member": generator.random(NUM_ROWS) < 0.5,
            "joined": day.astype(str),
            "note": [f"note {row}" for row in range(NUM_ROWS)],
            "one": ["x"] * NUM_ROWS,
            "household": generator.integers(0, 90, NUM_ROWS),
            "income": (1000 * age + generator.normal(0, 900, NUM_ROWS)).round(3),
            "rich": np.where(age + generator.normal(0, 9, NUM_ROWS) > 50, "yes", "no"),
            "tier": np.array(["low", "mid", "top"])[np.digitize(age, [35, 60])],
            "grade": np.digitize(age, [30, 50, 70]),
            "w": generator.random(NUM_ROWS) + 0.5,
        }
    )
    row = pl.int_range(NUM_ROWS)
    frame = frame.with_columns(age=pl.when(row % 9 > 0).then("age"))
    return frame.with_columns(
        pl.when(row < NUM_ROWS - 20).then(name).alias(name) for name in ("income", "rich", "tier", "grade")
    )


ANSWERS = ("income", "rich", "tier", "grade")


def prepare(folder: Path, frame: pl.DataFrame | None = None, **settings: Any) -> dict[str, Any]:
    """A CSV of the frame, prepared in `folder`/out; the other answers are no features unless `drop` says otherwise."""
    if frame is not None:
        frame.write_csv(folder / "people.csv")
        settings.setdefault("source", (str(folder / "people.csv"),))
        others = tuple(name for name in ANSWERS if name in frame.columns and name != settings["target"])
        settings.setdefault("drop", others)
    return small_tables.prepare(folder, **settings)


def test_columns_become_what_they_are(people: pl.DataFrame, tmp_path: Path) -> None:
    """A date, a truth value or a category would be lost, or be another number than the source says."""
    manifest = prepare(tmp_path, people, target="income", id="who", weight="w")
    rows = rows_of(tmp_path, manifest).sort("row_id")
    assert rows["row_id"].to_list() == list(range(NUM_ROWS))
    assert rows["id"].to_list() == people["who"].to_list()
    features = {feature["name"]: feature for feature in manifest["features"]}
    parts = {"joined_weekday": "weekday", "joined_month": "month", "joined_day_of_the_year": "ordinal_day"}
    assert list(features) == ["age", "city", "member", "joined", *parts, "household"]
    assert set(manifest["left_out"]) == {"note", "one"}
    assert all(rows[name].dtype == pl.Float32 for name in (*features, "weight"))
    assert rows["target"].dtype == pl.Float64
    assert rows["age"].is_nan().to_list() == people["age"].is_null().to_list()
    np.testing.assert_array_equal(rows["member"], people["member"].cast(pl.Float32))
    day = people["joined"].str.to_date()
    np.testing.assert_array_equal(rows["joined"], day.cast(pl.Int32))
    for name, part in parts.items():
        np.testing.assert_array_equal(rows[name], getattr(day.dt, part)())
    np.testing.assert_array_equal(rows["target"], people["income"].fill_null(np.nan))
    np.testing.assert_allclose(rows["weight"], people["w"], rtol=1e-6)
    names = features["city"]["values"]
    assert [names[int(code)] for code in rows["city"]] == people["city"].to_list()
    assert features["city"]["categories"] == len(names) == 3
    assert {name: facts["rows"] for name, facts in manifest["splits"].items()} == {"train": NUM_ROWS - 20, "forecast": 20}
    assert load_from_disk(str(tmp_path / "out" / "rows" / "train")).num_rows == NUM_ROWS - 20


def test_rows_to_forecast_need_no_weight(people: pl.DataFrame, tmp_path: Path) -> None:
    """Rows to forecast without a weight would be refused, while new rows are predicted without weights."""
    frame = people.with_columns(w=pl.when(pl.col("income").is_not_null()).then("w"))
    rows = rows_of(tmp_path, prepare(tmp_path, frame, target="income", weight="w")).sort("row_id")
    np.testing.assert_allclose(rows["weight"], frame["w"].fill_null(1.0), rtol=1e-6)


@pytest.mark.parametrize("form", ["csv.gz", "tsv", "parquet", "jsonl"])
def test_the_format_changes_nothing(people: pl.DataFrame, tmp_path: Path, form: str) -> None:
    """The same table as Parquet would give other features or splits than as CSV."""
    expected = prepare(tmp_path, people, target="rich")
    rows = rows_of(tmp_path, expected)
    (tmp_path / "other").mkdir()
    file = tmp_path / f"people.{form}"
    if form == "csv.gz":
        file.write_bytes(gzip.compress((tmp_path / "people.csv").read_bytes()))
    elif form == "tsv":
        people.write_csv(file, separator="\t")
    elif form == "parquet":
        people.write_parquet(file)
    else:
        people.write_ndjson(file)
    manifest = prepare(tmp_path / "other", target="rich", source=(str(file),), drop=("income", "tier", "grade"))
    assert manifest["features"] == expected["features"]
    assert rows_of(tmp_path / "other", manifest).equals(rows, null_equal=True)


def test_categories_are_learned_on_train_alone(people: pl.DataFrame, tmp_path: Path) -> None:
    """A code would show that a row is in the test split, and trees would have bins without training rows."""
    frame = people.with_columns(city=pl.when(pl.col("joined") > "2020-09-15").then(pl.lit("Jena")).otherwise("city"))
    manifest = prepare(tmp_path, frame, target="income", time="joined", test=0.2)
    (city,) = (feature for feature in manifest["features"] if feature["name"] == "city")
    assert city["values"] == ["Bonn", "Köln", "Ulm"]
    rows = rows_of(tmp_path, manifest)
    is_new = rows.join(frame.with_row_index("row_id").select(pl.col("row_id").cast(pl.Int64), raw="city"), on="row_id")
    assert is_new["city"].is_nan().to_list() == (is_new["raw"] == "Jena").to_list()
    assert (is_new["raw"] == "Jena").any()


@pytest.mark.parametrize(
    ("target", "said", "kind"),
    [
        ("income", "", "regression"),
        ("rich", "", "binary"),
        ("tier", "", "multiclass"),
        ("grade", "", "multiclass"),
        ("grade", "regression", "regression"),
        ("grade", "ranking", "ranking"),
    ],
)
def test_the_kind_of_task_is_inferred_or_set(
    people: pl.DataFrame, tmp_path: Path, target: str, said: Any, kind: str
) -> None:
    """Numbers would be treated as classes, or members would be trained for another task than the user's."""
    manifest = prepare(tmp_path, people, target=target, task=said, group="household")
    task = task_of(manifest)
    assert (task.kind, task.metric) == (kind, METRICS[kind][0])
    if kind == "multiclass":
        assert task.classes == {"tier": ("low", "mid", "top"), "grade": ("0", "1", "2", "3")}[target]
    rows = rows_of(tmp_path, manifest).filter(pl.col("split") != "forecast")
    expected = {"binary": [0, 1], "multiclass": list(range(len(task.classes))), "ranking": [0, 1, 2, 3]}.get(kind)
    if expected:
        assert sorted(rows["target"].unique()) == expected
    if kind == "binary":
        raw = people["rich"].gather(rows["row_id"])
        assert (raw == "yes").to_list() == (rows["target"] == 1).to_list()


@pytest.mark.parametrize("metric", METRICS["regression"])
def test_a_metric_of_a_regression_names_the_task(people: pl.DataFrame, tmp_path: Path, metric: str) -> None:
    """A user who counts visits, and asks for RMSE, would get an error about classes."""
    task = task_of(prepare(tmp_path, people, target="grade", metric=metric))
    assert (task.kind, task.metric) == ("regression", metric)


@pytest.mark.parametrize("source", ["city", "age"])
def test_a_column_may_be_named_count(people: pl.DataFrame, tmp_path: Path, source: str) -> None:
    """There would be a traceback, since polars refuses to count the values of a column that is named count."""
    manifest = prepare(tmp_path, people.rename({source: "count"}), target="income")
    assert "count" in rows_of(tmp_path, manifest).columns


def test_metrics_are_those_that_there_are() -> None:
    """A metric that does not exist would be accepted, or one that exists would be refused."""
    assert set(METRICS) == set(KINDS)
    for kind, names in METRICS.items():
        assert set(names) == {name for name, metric in metrics.METRIC_FUNCTIONS.items() if kind in metric.kinds}


@pytest.mark.parametrize("group", ["", "household"])
@pytest.mark.parametrize("target", ["income", "grade"])
def test_folds_and_test_do_not_cut_groups(people: pl.DataFrame, tmp_path: Path, group: str, target: str) -> None:
    """Rows of one person would be learned and scored, or the test split would not have the requested share."""
    task: Any = "ranking" if group and target == "grade" else ""
    settings: Any = {"target": target, "group": group, "task": task, "test": 0.25}
    manifest = prepare(tmp_path, people, **settings)
    rows = rows_of(tmp_path, manifest)
    labelled = rows.filter(pl.col("split") != "forecast")
    assert labelled.height == NUM_ROWS - 20
    assert rows.filter(pl.col("split") == "forecast")["row_id"].sort().to_list() == list(range(NUM_ROWS - 20, NUM_ROWS))
    assert (labelled["split"] == "test").mean() == pytest.approx(0.25, abs=0.03)
    assert set(labelled.filter(split="train")["fold"]) == set(range(8))
    assert manifest["cross_validation"]["scheme"] == ("groups" if group else "random")
    if group:
        raw = people["household"].gather(labelled["row_id"])
        of_cluster = labelled.with_columns(raw=raw).group_by("cluster").agg(pl.n_unique("raw", "split", "group", "fold"))
        assert of_cluster.select(pl.max("raw", "split", "group", "fold")).row(0) == (1, 1, 1, 1)
    else:
        assert (labelled["cluster"] == labelled["row_id"]).all()
    if task:
        assert labelled["group"].n_unique() == labelled["cluster"].n_unique()
        assert all((part["group"].diff().drop_nulls() >= 0).all() for _, part in labelled.group_by("split"))
        assert labelled.group_by("group").agg(pl.n_unique("split"))["split"].max() == 1
    else:
        assert set(labelled["group"]) == set(range(10))
    (tmp_path / "again").mkdir()
    prepare(tmp_path / "again", people, **settings)
    assert rows_of(tmp_path / "again", manifest).equals(rows, null_equal=True)
    prepare(tmp_path, people, **settings, seed=1, overwrite=True)
    assert not rows_of(tmp_path, manifest).equals(rows, null_equal=True)


@pytest.mark.parametrize("embargo", [0.0, 7.0])
def test_the_test_is_the_last_in_time(people: pl.DataFrame, tmp_path: Path, embargo: float) -> None:
    """A row within the embargo before the test would be in train, or a day would be divided between train and test."""
    manifest = prepare(tmp_path, people, target="income", time="joined", embargo=embargo, test=0.2)
    rows = rows_of(tmp_path, manifest)
    day = people["joined"].str.to_date().gather(rows["row_id"]).cast(pl.Int32)
    rows = rows.with_columns(day=day)
    assert rows["time"].to_list() == day.cast(pl.Float64).to_list()
    ends = rows.filter(pl.col("split") != "forecast").group_by("split").agg(
        first=pl.min("day"), last=pl.max("day"), low=pl.min("group"), high=pl.max("group"), blocks=pl.n_unique("group")
    )  # fmt: skip
    ends = {row["split"]: row for row in ends.to_dicts()}
    assert ends["train"]["last"] + embargo < ends["test"]["first"]
    assert ends["train"]["high"] < ends["test"]["low"]
    assert all(18 <= row["blocks"] <= 20 for row in ends.values())
    assert rows.group_by("split", "day").agg(pl.n_unique("group", "fold")).select(pl.max("group", "fold")).row(0) == (1, 1)
    left_out = manifest["census"]["dropped"].get("embargo before the test", {"count": 0})["count"]
    assert (left_out > 0) == (embargo > 0)
    assert manifest["census"]["rows_kept"] == rows.height == NUM_ROWS - left_out
    cv = manifest["cross_validation"]
    assert (cv["scheme"], cv["num_folds"], cv["embargo"], len(cv["begins"])) == ("forward", 4, embargo, 5)
    features = [feature["name"] for feature in manifest["features"] if feature["column"] == "joined"]
    assert features == ["joined_weekday"]  # no later date was learned


def test_a_group_across_a_border_is_left_out(people: pl.DataFrame, tmp_path: Path) -> None:
    """With time and group, a household's early rows would be learned from and its late ones scored."""
    frame = people.with_columns(household=pl.col("joined").rank("dense") // 5)
    manifest = prepare(tmp_path, frame, target="grade", task="ranking", time="joined", group="household", test=0.2)
    rows = rows_of(tmp_path, manifest).filter(pl.col("split") != "forecast")
    raw = rows.with_columns(raw=frame["household"].gather(rows["row_id"]))
    assert raw.group_by("raw").agg(pl.n_unique("split"))["split"].max() == 1
    assert raw.group_by("raw").agg(pl.n_unique("group"))["group"].max() == 1
    assert manifest["census"]["dropped"]["group of the test"]["count"] > 0
    by_number = raw.group_by("group").agg(pl.first("raw")).sort("group")["raw"]
    assert by_number.is_sorted()  # the number of a query grows with time


def test_names_that_libraries_refuse_are_stored_otherwise(tmp_path: Path) -> None:
    """A bracket in a name would end the process in LightGBM, or a column of the user would overwrite one of ours."""
    generator = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            name: generator.normal(size=99)
            for name in ("a[1]", "a 1", 'x:"y"', "row_id", "target", "group", "fold", "time", "the target")
        }
    )
    manifest = prepare(tmp_path, frame, target="the target")
    names = [feature["name"] for feature in manifest["features"]]
    assert names == ["a_1", "a_1_2", "x_y", "row_id_2", "target_2", "group_2", "fold_2", "time_2"]
    assert [feature["column"] for feature in manifest["features"]] == frame.columns[:-1]
    assert rows_of(tmp_path, manifest).sort("row_id")["row_id_2"].to_list() == pytest.approx(frame["row_id"].to_list())


def test_columns_that_determine_the_target_are_named(
    people: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy of the target among the features would look like a perfect forecast."""
    frame = people.with_columns(
        tier_code=pl.col("tier").replace({"low": "1", "mid": "2", "top": "3"}), cents=pl.col("income") * 100
    )
    prepare(tmp_path, frame, target="tier", drop=("income", "rich", "grade", "cents"))
    assert "the column 'tier_code' determines the target" in capsys.readouterr().err
    prepare(tmp_path, frame, target="income", drop=("rich", "grade"), overwrite=True)
    error = capsys.readouterr().err
    assert "the column 'cents' determines the target" in error
    assert "'tier'" not in error
    prepare(tmp_path, people, target="income", overwrite=True)
    assert not capsys.readouterr().err
    gap = frame.with_columns(pl.when(pl.int_range(pl.len()) != 3).then("tier_code").alias("tier_code"))
    manifest = prepare(tmp_path, gap, target="tier", drop=("income", "rich", "grade", "cents"), overwrite=True)
    age, code = manifest["notes"]  # the tier is a function of the age
    assert age.startswith("the column 'age' determines the target")
    assert age.endswith("name it as group='age'")
    assert code == "the column 'tier_code' determines the target: add it to drop=[…] unless it is known when you forecast"


def test_a_column_with_one_target_for_each_of_its_values_is_named(tmp_path: Path) -> None:
    """Rows of a patient would be in several folds, so that members which remember patients had a perfect score."""
    generator = np.random.default_rng(0)
    patient, x = generator.integers(0, 60, 600), generator.normal(size=600)
    frame = pl.DataFrame({"patient": patient, "x": x, "y": generator.integers(0, 2, 60)[patient]})
    (note,) = prepare(tmp_path, frame, target="y")["notes"]
    assert note.startswith("the column 'patient' determines the target")
    assert note.endswith("name it as group='patient'")
    rare = frame.with_columns(y=pl.int_range(pl.len()) < 5)  # most patients have one target by chance
    assert prepare(tmp_path, rare, target="y", overwrite=True)["notes"] == []


def test_repeated_rows_are_counted_and_are_no_evidence_of_a_leak(tmp_path: Path) -> None:
    """Copies would make every score too good without a message, or make random columns look like copies of the target."""
    generator = np.random.default_rng(0)
    noise = pl.DataFrame({name: generator.normal(size=60) for name in "xzy"})
    assert prepare(tmp_path, noise, target="y")["notes"] == []
    (note,) = prepare(tmp_path, pl.concat([noise] * 3), target="y", overwrite=True)["notes"]
    assert note.startswith("120 of 180 rows with a target repeat an earlier row in all columns")
    assert "copies stay in one fold" in note
    few = pl.DataFrame({"sex": ["f", "m"] * 60, "class": [1, 2, 3] * 40, "y": [0, 1, 1, 0] * 30})
    assert prepare(tmp_path, few, target="y", overwrite=True)["notes"] == []


def test_copies_of_a_row_stay_in_one_fold(tmp_path: Path) -> None:
    """A model would be trained on copies of the rows that score it, and the one that remembers rows best would be chosen."""
    generator = np.random.default_rng(0)
    noise = pl.DataFrame({"x": generator.normal(size=100), "y": [0, 1] * 50})
    table = pl.concat([noise, noise.head(60)]).sample(fraction=1, shuffle=True, seed=0)
    manifest = prepare(tmp_path, table, target="y")
    rows = rows_of(tmp_path, manifest)
    assert rows.group_by("x").agg(pl.col("fold", "cluster").n_unique())["fold", "cluster"].to_numpy().max() == 1
    assert rows["cluster"].n_unique() == 100
    assert rows["fold"].n_unique() == 8
    few = pl.concat([noise, noise.head(8)])
    manifest = prepare(tmp_path, few, target="y", overwrite=True)
    assert rows_of(tmp_path, manifest)["cluster"].n_unique() == 108
    assert "with a copy in another fold" in manifest["notes"][0]


def test_a_column_that_is_called_as_a_part_of_another_is_kept(tmp_path: Path) -> None:
    """One of the two would overwrite the other, and the model would have more features than the data."""
    days = [f"2024-{1 + row % 12:02}-{1 + row // 12:02}" for row in range(60)]
    frame = pl.DataFrame({"d": days, "d: weekday": [float(row % 9) for row in range(60)], "y": [0, 1, 1] * 20})
    manifest = prepare(tmp_path, frame, target="y")
    names = [feature["name"] for feature in manifest["features"]]
    assert len(set(names)) == len(names)
    assert rows_of(tmp_path, manifest)[names[-1]].n_unique() == 9


def test_rows_to_forecast_need_no_group(tmp_path: Path) -> None:
    """The forecast of rows without a group would be missing, without a message."""
    groups = [*(f"g{row % 20}" for row in range(100)), "", "g1"]
    frame = pl.DataFrame(
        {"g": groups, "x": [row % 7 for row in range(102)], "y": [*(row % 3 for row in range(100)), None, None]}
    )
    manifest = prepare(tmp_path, frame, target="y", task="regression", group="g")
    assert manifest["splits"]["forecast"]["rows"] == 2


def test_bad_lines_are_counted_and_named(people: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line with too few fields would shift its values into other columns, or vanish without a message."""
    people.write_csv(tmp_path / "people.csv")
    lines = (tmp_path / "people.csv").read_text().splitlines()
    lines.insert(200, "only,three,fields")
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    manifest = prepare(tmp_path, target="rich", source=(str(tmp_path / "people.csv"),), drop=("income", "tier", "grade"))
    assert manifest["census"]["dropped"]["malformed line"]["count"] == 1
    assert "people.csv:201: only,three,fields" in capsys.readouterr().out
    assert manifest["census"]["rows_kept"] == NUM_ROWS
    with pytest.raises(UserError, match=r"1 of 401 rows are bad .*\n.*\n(.*\n)*.*people.csv:201"):
        prepare(tmp_path, target="rich", source=(str(tmp_path / "people.csv"),), max_bad_fraction=0.0, overwrite=True)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"target": "incme"}, "target=incme: the table has no such column; did you mean 'income'?"),
        ({"target": "income", "time": "joind"}, "time=joind: the table has no such column; did you mean 'joined'?"),
        ({"target": "income", "drop": ("xyz",)}, "drop=xyz: the table has no such column; it has who, age"),
        ({"target": "income", "drop": ("age,city",)}, "drop=age,city: the table has no such column; write a list as drop=["),
        ({"target": "income", "group": "income"}, "group=income is the target too: name another column"),
        ({"target": "one"}, "target=one is 'x' in every row, so there is nothing to learn"),
        ({"target": "note"}, "target=note has 400 different texts, more than 100 classes"),
        ({"target": "rich", "task": "regression"}, "task=regression, but target=rich holds texts such as 'no'"),
        ({"target": "tier", "task": "binary"}, "task=binary, but target=tier has 3 different values"),
        ({"target": "income", "task": "multiclass"}, "task=multiclass, but target=income has 380 different values"),
        ({"target": "grade", "task": "ranking"}, "task=ranking needs groups of rows that are ranked against each other"),
        ({"target": "income", "task": "ranking", "group": "household"}, "relevances must be whole numbers from 0 to 30"),
        ({"target": "rich", "metric": "ndcg_at_10"}, "metric=ndcg_at_10 does not fit a binary target: write one of log"),
        ({"target": "income", "time": "city"}, "time=city holds neither numbers nor dates, such as '"),
        ({"target": "income", "embargo": 3.0}, "embargo=3 needs an order in time"),
        ({"target": "income", "time": "joined", "embargo": 400.0}, "no row is left to train the model that predicts fold"),
        ({"target": "income", "time": "grade"}, "time=grade has 2 different values, and folds forward in time need 3"),
        ({"target": "income", "group": "member"}, "as many different values of group=member, but there are 2"),
        ({"target": "income", "weight": "city"}, "': write each weight as a number, or name another column"),
        ({"target": "income", "weight": "city"}, "weight=city holds no numbers, such as '"),
        ({"target": "income", "weight": "age"}, "weight=age is empty in people.csv:2: weights must be from 0"),
        ({"target": "income", "test": 0.95}, "test=0.95 is impossible: it must be a part of the rows, from 0 to 0.9"),
        ({"target": "income", "num_folds": 2}, "num_folds=2 is impossible: it must be 0, 1, or 3 and more"),
        ({"target": "income", "num_folds": 1, "group": "household"}, "num_folds=1 is impossible with group=household"),
        ({"target": "income", "source": ("hub:All_Beauty",)}, "hub:All_Beauty names reviews of products, which are not"),
        ({"target": "income", "source": ("no.csv",)}, "the file no.csv does not exist"),
        ({"target": "income", "drop": tuple("who age city member joined household rich tier grade w".split())},
         "no column is left to predict income from: note has"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_in_one_sentence(
    people: pl.DataFrame, tmp_path: Path, settings: dict[str, Any], sentence: str
) -> None:
    """The person would see a traceback, or members that learned nonsense."""
    if settings.get("time") == "grade":
        people = people.with_columns(grade=pl.col("grade") // 2)
    with pytest.raises(UserError) as caught:
        prepare(tmp_path, people, **settings)
    assert sentence in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["people.csv"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a,b,a\n1,2,3\n", "has two columns 'a': give each its own name"),
        ("", "is empty"),
        ("a,y\n" + "1,2\n3,4\n" * 9, "18 rows have a target, and at least 20 are needed"),
        ("a,y\n" + "1,\n3,\n" * 50, "target=y is empty in every row"),
        ('a,y\n1,"2\n' + "1,2\n" * 50, "rows are bad"),
    ],
)
def test_an_invalid_file_is_refused_in_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    """The person would see a library's traceback instead of the file and what is wrong with it."""
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(UserError) as caught:
        prepare(tmp_path, target="y", source=(str(tmp_path / "x.csv"),), max_bad_fraction=0.0)
    assert sentence in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_a_class_that_train_lacks_is_refused(people: pl.DataFrame, tmp_path: Path) -> None:
    """Members would have no column for the class, and every later stage would fail on its number."""
    frame = people.with_columns(tier=pl.when(pl.col("joined") > "2020-10-20").then(pl.lit("new")).otherwise("tier"))
    with pytest.raises(UserError, match=r"the train split has no row with tier=new: .* or merge it with another class"):
        prepare(tmp_path, frame, target="tier", time="joined", test=0.2)


def test_what_looks_like_a_slip_is_pointed_out(people: pl.DataFrame, tmp_path: Path) -> None:
    """Equal classes in upper and lower case would be two classes, or a misspelt `missing` would have no effect, without a
    message.
    """
    loud = pl.when(pl.col("age") % 2 == 0).then(pl.col("rich").str.to_uppercase()).otherwise("rich")
    manifest = prepare(tmp_path, people.with_columns(rich=loud), target="rich", missing=("Bonn", "Köln,Ulm"))
    assert (
        "the classes 'NO', 'YES', 'no', 'yes' of rich differ only in upper and lower case: are they different?"
        in (manifest["notes"])
    )
    assert "missing= names 'Köln,Ulm', which no cell of a feature has; write a list as [NA,none]" in manifest["notes"]
    others = ("income", "rich", "grade", "household")
    missing = ("Bonn", "18")  # an age is 18.0
    manifest = prepare(tmp_path, people, target="tier", drop=others, missing=missing, overwrite=True)
    assert not [note for note in manifest["notes"] if "classes" in note or "missing=" in note]


def test_the_time_to_prepare_many_columns_is_linear(tmp_path: Path) -> None:
    """For each of ten thousand columns all would be looked at, for minutes."""
    cells = np.random.default_rng(0).random((40, 150))
    pl.DataFrame({f"c{number}": column for number, column in enumerate(cells.T)}).write_csv(tmp_path / "a.csv")
    with mock.patch.object(pl.DataFrame, "select", autospec=True, side_effect=pl.DataFrame.select) as select:
        small_tables.prepare(tmp_path, tmp_path / "a.csv", target="c0")
    assert sum(call.args[0].width > 100 for call in select.call_args_list) < 100


def test_the_source_is_never_replaced(people: pl.DataFrame, tmp_path: Path) -> None:
    """overwrite=true would delete the table itself."""
    (tmp_path / "out").mkdir()
    people.write_csv(tmp_path / "out" / "people.csv")
    with pytest.raises(UserError, match="lies inside out="):
        prepare(tmp_path, target="rich", source=(str(tmp_path / "out" / "people.csv"),), overwrite=True)


def test_only_alike_data_may_be_predicted(people: pl.DataFrame, tmp_path: Path) -> None:
    """A member would be asked about columns, codes or a target that it never learned."""
    manifest = prepare(tmp_path, people, target="income")
    learned = {"fingerprint": manifest["fingerprint"], "inputs": json.loads(json.dumps(inputs.meaning(manifest)))}
    inputs.refuse_foreign("m", learned, "d", manifest, "test")
    other_split = prepare(tmp_path, people, target="income", seed=3, overwrite=True)
    inputs.refuse_foreign("m", learned, "d", other_split, "forecast")
    with pytest.raises(UserError, match="may contain training rows"):
        inputs.refuse_foreign("m", learned, "d", other_split, "test")
    for frame in (people.drop("age"), people.with_columns(city=pl.col("city") + "!")):
        foreign = prepare(tmp_path, frame, target="income", overwrite=True)
        with pytest.raises(
            UserError, match=r"in another way than the training data of m, with other values of (features|categories)"
        ):
            inputs.refuse_foreign("m", learned, "d", foreign, "forecast")
    assert folders.verify(tmp_path / "out")["fingerprint"] == foreign["fingerprint"]
