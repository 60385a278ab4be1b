"""A fitted ensemble of a table predicts new rows as it would have predicted them in the split forecast."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from scripts_run import fork
from small_tables import fit_trees, names_of, prepare, rows_of

from ensemble import Predictor, folders
from ensemble.errors import UserError
from ensemble.recipes.table import new_data

NUM_ROWS, NUM_NEW = 800, 60
NUM_STREETS = 120
"""So many categories that XGBoost and LightGBM learn from means of the target."""


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """Numbers, a truth value, categories, a date and free text; the last rows have no target."""
    generator = np.random.default_rng(0)
    age, city = generator.integers(18, 80, NUM_ROWS), generator.integers(0, 3, NUM_ROWS)
    street, mood = generator.integers(0, NUM_STREETS, NUM_ROWS), generator.integers(0, 2, NUM_ROWS)
    streets = [f"street {number}" for number in range(NUM_STREETS)]
    remarks = [f"{['pays early and often', 'pays late or never'][of]}, file {number}" for number, of in enumerate(mood)]
    day = np.datetime64("2022-01-03") + generator.integers(0, 600, NUM_ROWS).astype("timedelta64[D]")
    frame = pl.DataFrame(
        {
            "who": [f"{number:05}" for number in range(NUM_ROWS)],
            "age": age,
            "city": np.array(["Bonn", "Köln", "Ulm"])[city],
            "member": generator.random(NUM_ROWS) < 0.4,
            "joined": day,
            "street": np.array(streets)[street],
            "remark": remarks,
            "price": (generator.random(NUM_ROWS) * 2000).round(2),
            "income": 1000.0 * age + 9000 * city + 300 * street - 9000 * mood + generator.normal(0, 900, NUM_ROWS),
        }
    )
    return frame.with_columns(pl.when(pl.int_range(NUM_ROWS) < NUM_ROWS - NUM_NEW).then("income").alias("income"))


@pytest.fixture(scope="module")
def folder(people: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fitted ensemble of both tree libraries."""
    folder = tmp_path_factory.mktemp("table")
    people.write_csv(folder / "people.csv")
    fit_trees(folder, folder / "people.csv", "target=income", "id=who", num_rounds=40)
    return folder


def write(frame: pl.DataFrame, file: Path) -> None:
    writers = {".csv": frame.write_csv, ".parquet": frame.write_parquet, ".jsonl": frame.write_ndjson}
    writers[file.suffix](file)


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
def test_new_rows_get_the_same_bits(people: pl.DataFrame, folder: Path, tmp_path: Path, form: str) -> None:
    """A row in a file of new rows would get another prediction than the same row beside the training rows."""
    new = people.tail(NUM_NEW).drop("income")
    if form == "parquet":  # other order, one more column
        new = new.select(*reversed(new.columns), note=pl.lit("x"))
    if form == "csv":  # dates and numbers in another form
        euro = pl.col("price").cast(pl.String).str.replace(".", ",", literal=True)
        new = new.with_columns(pl.col("joined").dt.strftime("%d.%m.%Y"), price=euro)
    write(new, tmp_path / f"new.{form}")
    source = f"source=[{tmp_path}/new.{form}]"
    printed = fork("ensemble_predictor", "predict", f"ensemble={folder}/ensemble", source, f"out={tmp_path}/out")
    assert ("training did not have the column 'note': left out" in printed) == (form == "parquet")
    new, expected = (
        pl.from_arrow(pq.read_table(path / "forecast.parquet")).sort("id")
        for path in (tmp_path / "out", folder / "ensemble")
    )
    assert new["id"].to_list() == people["who"].tail(NUM_NEW).to_list()
    assert new["prediction"].to_list() == expected["prediction"].to_list()
    assert new["reasons"].to_list() == expected["reasons"].to_list()
    why = " ".join(pl.read_csv(tmp_path / "out" / "forecast.csv")["why"])
    assert re.search("city = (Bonn|Köln|Ulm)", why)  # not the number of a category


def test_members_without_weight_are_not_needed(people: pl.DataFrame, folder: Path, tmp_path: Path) -> None:
    """Members that change no prediction would take time and memory in each forecast."""
    shutil.copytree(folder, tmp_path / "fit")
    words = (f"predictions={tmp_path}/fit/predictions", f"data={tmp_path}/fit/data", f"out={tmp_path}/fit/best")
    fork("ensemble_predictor", "fit", *words, "combiner=best_member", "num_draws=20")
    weights = folders.read_json(tmp_path / "fit/best/scores.json")["weights"]
    (idle,) = [name for name, weight in weights.items() if not weight]
    write(people.tail(NUM_NEW).drop("income"), tmp_path / "new.csv")
    described = folders.read_json(tmp_path / "fit/best/ensemble.json")["members"][idle]["folder"]
    member = (tmp_path / "fit/best" / described).resolve()  # one that other tests use too
    member.rename(member.with_name("away"))
    source = (f"source=[{tmp_path}/new.csv]", f"out={tmp_path}/out")
    printed = fork("ensemble_predictor", "predict", f"ensemble={tmp_path}/fit/best", *source)
    member.with_name("away").rename(member)
    assert "missing" not in printed
    assert [path.name.split(".")[0] for path in (tmp_path / "out/predictions").iterdir()] == [*({*weights} - {idle})]
    names = ["id", "prediction", "reasons"]
    new, expected = (pq.read_table(tmp_path / name / "forecast.parquet").select(names) for name in ("out", "fit/best"))
    assert new.equals(expected)


def encoded(people: pl.DataFrame, folder: Path, tmp_path: Path, frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, Any]]:
    """New rows as members read them, and the manifest."""
    tmp_path.mkdir(exist_ok=True)
    write(frame, tmp_path / "new.csv")
    like = folders.read_json(folder / "ensemble" / "like.json")
    manifest = new_data.prepare(like, {"out": str(tmp_path / "out"), "source": (str(tmp_path / "new.csv"),)})
    return rows_of(tmp_path, manifest), manifest


def test_a_message_shows_the_beginning_of_a_long_cell(people: pl.DataFrame, folder: Path, tmp_path: Path) -> None:
    """An answer of the service would repeat a cell of a megabyte, and its log too."""
    long = pl.lit("9" * 100_000)
    new = people.tail(NUM_NEW).with_columns(city=long, age=pl.when(pl.int_range(NUM_NEW) < 9).then(long).otherwise(31))
    _, manifest = encoded(people, folder, tmp_path, new)
    assert sum("999…'" in note for note in manifest["notes"]) == 2
    assert max(map(len, manifest["notes"])) < 500


@pytest.mark.parametrize(
    ("change", "column", "empty", "sentence"),
    [
        (
            [pl.lit("Jena").alias("city")],
            "city",
            60,
            "has cells with texts that training does not have, which count as empty (60): ",
        ),
        (
            [pl.col("age").cast(pl.String).replace("30", "thirty")],
            "age",
            None,
            "that are not numbers and count as empty",
        ),
        ([pl.col("member").cast(pl.Int8)], "member", 0, None),
        ([pl.col("age").cast(pl.Float64)], "age", 0, None),
    ],
)
def test_other_cells_are_defined(
    people: pl.DataFrame,
    folder: Path,
    tmp_path: Path,
    change: list[pl.Expr],
    column: str,
    empty: int | None,
    sentence: str | None,
) -> None:
    """An unseen category would get the code of another one, or a stray text would stop the forecast."""
    new = people.tail(NUM_NEW).with_columns(pl.lit(30).alias("age") if sentence and column == "age" else pl.col("age"))
    new = new.with_columns(pl.when(pl.int_range(NUM_NEW) < 9).then(31).otherwise("age").alias("age"))
    rows, manifest = encoded(people, folder, tmp_path, new.with_columns(change))
    assert rows[column].is_nan().sum() == (NUM_NEW - 9 if empty is None else empty)
    assert any(sentence in note for note in manifest["notes"]) if sentence else not manifest["notes"]


def test_what_can_be_read_in_two_ways_is_as_in_training(people: pl.DataFrame, folder: Path, tmp_path: Path) -> None:
    """1,234 would be read in one of two ways without a message, and the digits of a day would not be read as a date."""
    new = people.tail(NUM_NEW)
    with pytest.raises(UserError, match=r"holds numbers such as '1,234', written as 1,234\.5 or as 1\.234,5"):
        encoded(people, folder, tmp_path, new.with_columns(price=pl.lit("1,234")))
    rows, manifest = encoded(people, folder, tmp_path, new.with_columns(pl.col("joined").dt.strftime("%Y%m%d")))
    assert manifest["notes"] == ["the column 'joined' is read as dates that are written as 20240131"]
    assert rows["joined"].to_list() == new["joined"].cast(pl.Int32).cast(pl.Float32).to_list()
    _, manifest = encoded(people, folder, tmp_path / "b", new.rename({"city": "City"}))
    assert "is 'City' meant by 'city'? Then rename it" in manifest["notes"][0]


@pytest.mark.parametrize(("years", "is_warned"), [(0, False), (60, True)])
def test_rows_unlike_those_that_trained_are_pointed_out(
    years: int, is_warned: bool, people: pl.DataFrame, folder: Path, tmp_path: Path
) -> None:
    """Rows that are unlike all training rows would be predicted without a warning."""
    people.drop("income").with_columns(pl.col("age") + years).write_csv(tmp_path / "new.csv")
    source = f"source=[{tmp_path}/new.csv]"
    printed = fork("ensemble_predictor", "predict", f"ensemble={folder}/ensemble", source, f"out={tmp_path}/out")
    assert ("the new rows differ from the training rows in 'age'" in printed) == is_warned
    assert printed.count("differ from the training rows") == is_warned
    with Predictor.load(folder / "ensemble") as predictor:
        notes = predictor.predict_with_notes(tmp_path / "new.csv")[1]
    assert [note.startswith("the new rows differ from the training rows in 'age'") for note in notes] == [True] * is_warned


def test_a_category_that_pandas_reads_as_empty_is_noted(tmp_path: Path) -> None:
    """A fit on a file has the category NA, and pandas.read_csv gives empty cells: other predictions, without a message."""
    text = "\n".join(["kind,x,y", *(f"{'NA' if row % 3 else 'b'},{row % 7},{row % 2}" for row in range(60)), ""])
    (tmp_path / "people.csv").write_text(text)
    like = prepare(tmp_path, tmp_path / "people.csv")
    assert like["notes"] == ["'NA' of the column 'kind' is a category: name it in missing=[…] if an empty cell is meant"]
    pd.read_csv(tmp_path / "people.csv").to_parquet(tmp_path / "new.parquet")
    for name, num_notes in {"new.parquet": 1, "people.csv": 0}.items():
        source = [str(tmp_path / name)]
        notes = new_data.prepare(like, {"source": source, "out": str(tmp_path / f"of {name}")})["notes"]
        sentence = (
            "the column 'kind' has empty cells (40), and training had the category 'NA': if pandas has read 'NA' as an empty"
        )
        assert [note.startswith(sentence) for note in notes] == [True] * num_notes


def test_columns_may_be_missing(people: pl.DataFrame, folder: Path, tmp_path: Path) -> None:
    """A file that lacks a column would cause a traceback, or the column would be zeros."""
    rows, manifest = encoded(people, folder, tmp_path, people.tail(NUM_NEW).drop("city", "who"))
    assert rows["city"].is_nan().all()
    assert manifest["notes"] == [
        "the new rows lack the column 'city': the cells count as empty",
        "the new rows lack the id 'who': they are named by their number alone",
    ]


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (pl.DataFrame({"x": [1]}), "the new rows have none of the columns that members learned from: they have x"),
        (
            pl.DataFrame({"age": ["old", "young"]}),
            "the column 'age' held numbers in training, but has none now: 'old",
        ),
    ],
)
def test_foreign_rows_are_refused(
    people: pl.DataFrame, folder: Path, tmp_path: Path, frame: pl.DataFrame, sentence: str
) -> None:
    """Another table would be forecast."""
    with pytest.raises(UserError, match=sentence):
        encoded(people, folder, tmp_path, frame)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("share", [5.0, -0.5, float("nan")])
def test_a_share_of_bad_lines_is_between_0_and_1(tmp_path: Path, share: float) -> None:
    """With 5, meant as 5 %, any number of lines could be unreadable without an error."""
    file = tmp_path / "a.csv"
    file.write_text("a,y\n" + "".join(f"{number},{number % 7}.5\n" for number in range(40)))
    training = prepare(tmp_path, file)
    settings = {"out": tmp_path / "new", "source": [str(file)], "max_bad_fraction": share}
    with pytest.raises(UserError, match=f"max_bad_fraction={share} is impossible: it must be between 0 and 1"):
        new_data.prepare(training, settings)


def test_groups_of_new_rows_are_ranked_together(tmp_path: Path) -> None:
    """A query's documents would be ranked among those of another."""
    generator = np.random.default_rng(0)
    query = np.repeat([f"q{number}" for number in range(60)], 8)
    frame = pl.DataFrame({"query": query, "x": generator.random(480), "y": generator.integers(0, 3, 480)})
    frame.write_csv(tmp_path / "a.csv")
    like = prepare(tmp_path / "old", tmp_path / "a.csv", task="ranking", group="query")
    frame[::-1].head(24).select("x", "query").write_csv(tmp_path / "new.csv")
    manifest = new_data.prepare(like, {"out": str(tmp_path / "out"), "source": (str(tmp_path / "new.csv"),)})
    groups = rows_of(tmp_path, manifest)["group"]
    assert names_of(tmp_path, "group").gather(groups).to_list() == ["q59"] * 8 + ["q58"] * 8 + ["q57"] * 8
    write(pl.DataFrame({"x": [1.0]}), tmp_path / "no.csv")
    with pytest.raises(UserError, match="the new rows have no column 'query'"):
        new_data.prepare(like, {"out": str(tmp_path / "no"), "source": (str(tmp_path / "no.csv"),)})


def test_two_files_of_equal_rows_are_both_predicted(tmp_path: Path) -> None:
    """The forecast would have fewer rows than were given, if two batches are equal."""
    frame = pl.DataFrame({"x": range(60), "y": [0, 1] * 30})
    for name in ("train", "one", "two"):
        frame.write_csv(tmp_path / f"{name}.csv")
    manifest = prepare(tmp_path, tmp_path / "train.csv")
    batches = tuple(str(tmp_path / f"{name}.csv") for name in ("one", "two"))
    new = new_data.prepare(manifest, {"source": batches, "out": str(tmp_path / "new")})
    assert not [note for note in new["notes"] if "in training" in note]
    assert new["splits"] == {"forecast": {"rows": 120}}
