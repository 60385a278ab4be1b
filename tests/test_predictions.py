"""The prediction file: what is written is read, and each mistake in a file gets an error of one sentence."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ensemble import predictions
from ensemble.errors import UserError
from ensemble.predictions import Predictions

NUM_ROWS = 50


def forecast(**changes: Any) -> Predictions:
    """Fifty rows of one member, in no order of ids."""
    generator = np.random.default_rng(0)
    arrays = {
        "row_id": generator.permutation(NUM_ROWS) + 1000,
        "target": generator.integers(0, 2, NUM_ROWS).astype(float),
        "prediction": generator.random(NUM_ROWS),
        "group": generator.integers(0, 5, NUM_ROWS),
        "cluster": generator.integers(0, 9, NUM_ROWS),
    }
    metadata = {"recipe": "hot_sellers", "split": "blend", "member": "xgboost", "fingerprint": "f00d"}
    return Predictions(**{**arrays, **metadata, **changes})


def rewrite(path: Path, change: Any) -> None:
    """Let another program, which writes no checksums, change the table of a prediction file."""
    edit(path, lambda table: change(with_metadata(checksums=None)(table)))


def edit(path: Path, change: Any) -> None:
    """Let a person change the table of a prediction file, and keep its metadata."""
    with pq.ParquetFile(path) as file:
        table = file.read()
    pq.write_table(change(table), path)


def replace_column(name: str, values: pa.Array) -> Any:
    return lambda table: table.set_column(table.column_names.index(name), name, values)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "runs" / "xgboost.parquet"
    predictions.write(file, forecast())
    return file


def test_round_trip(tmp_path: Path) -> None:
    """Bits, row order, text or reasons would be lost between a member and the ensemble."""
    reasons = [[{"feature": "reviews_last_4_weeks", "value": 3.0, "contribution": -0.5}]] * NUM_ROWS
    original = forecast(config={"depth": 6, "seed": 1}, reasons=reasons)
    predictions.write(tmp_path / "x.parquet", original)
    copy = predictions.read(tmp_path / "x.parquet")
    for field in dataclasses.fields(Predictions):
        before, after = getattr(original, field.name), getattr(copy, field.name)
        if field.name in predictions.COLUMNS:
            assert after.dtype == before.dtype
            np.testing.assert_array_equal(after, before)
        else:
            assert after == before
    assert [file.name for file in tmp_path.iterdir()] == ["x.parquet"]


def test_unknown_target_survives(tmp_path: Path) -> None:
    """A forecast, whose targets nobody knows yet, could not be written, read or joined."""
    for member in "ab":
        predictions.write(tmp_path / member, forecast(member=member, target=np.full(NUM_ROWS, np.nan)))
    template, _ = predictions.align([predictions.read(tmp_path / member) for member in "ab"])
    assert np.isnan(template.target).all()


def test_versions_stand_in_the_file(path: Path) -> None:
    """The library versions of a forecast would be unknown."""
    metadata = json.loads(pq.read_schema(path).metadata[predictions.KEY])
    assert metadata["versions"]["numpy"] == np.__version__
    assert metadata["versions"].keys() >= {"xgboost", "lightgbm", "catboost", "scikit-learn", "torch"}  # of every member


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_prediction_is_refused(tmp_path: Path, value: float) -> None:
    """A diverged member would be averaged into the ensemble."""
    broken = forecast()
    broken.prediction[3] = value
    with pytest.raises(UserError, match=f"1 of 50 predictions are NaN or infinite, the first at row {broken.row_id[3]}"):
        predictions.write(tmp_path / "new" / "x.parquet", broken)
    assert not list(tmp_path.iterdir())


def test_nan_from_another_program_is_refused(path: Path) -> None:
    """NaN, or a null, written by another program would be read."""
    rewrite(path, replace_column("prediction", pa.array([None] + [0.5] * (NUM_ROWS - 1))))
    with pytest.raises(UserError, match="1 of 50 predictions are NaN"):
        predictions.read(path)


def test_repeated_row_id_is_refused(tmp_path: Path) -> None:
    """One row would count twice, and the join by row id would be ambiguous."""
    with pytest.raises(UserError, match="row 7 is predicted more than once"):
        predictions.write(tmp_path / "x", forecast(row_id=np.r_[7, 7, np.arange(100, 148)]))


def test_empty_and_ragged_are_refused(tmp_path: Path) -> None:
    """A split without rows, or columns of different lengths, would fail far from the cause."""
    none = np.empty(0)
    with pytest.raises(UserError, match=r"it contains no predictions.*'blend'"):
        predictions.write(tmp_path / "x", forecast(row_id=none, target=none, prediction=none, group=none, cluster=none))
    with pytest.raises(UserError, match="different lengths"):
        predictions.write(tmp_path / "x", forecast(group=np.zeros(3)))


def test_missing_columns_and_metadata_are_named(path: Path) -> None:
    """A file of another kind would end in a KeyError."""
    rewrite(path, lambda table: table.drop_columns(["cluster", "target"]))
    with pytest.raises(UserError, match="lacks: target, cluster;"):
        predictions.read(path)
    rewrite(
        path, lambda table: table.replace_schema_metadata({predictions.KEY: b'{"recipe": "hot_sellers", "split": "test"}'})
    )
    with pytest.raises(UserError, match="lacks: target, cluster, metadata 'member', metadata 'fingerprint';"):
        predictions.read(path)


@pytest.mark.parametrize(
    ("metadata", "what"),
    [(b"{oops", "the metadata 'ensemble' are not JSON .*: write it again"), (b"3", "lacks: metadata 'recipe'")],
)
def test_damaged_metadata_is_named(path: Path, metadata: bytes, what: str) -> None:
    """Metadata that is no JSON object would end in a traceback."""
    rewrite(path, lambda table: table.replace_schema_metadata({predictions.KEY: metadata}))
    with pytest.raises(UserError, match=what):
        predictions.read(path)


def test_foreign_types_are_widened(path: Path) -> None:
    """A file from R or Spark, with int32 ids, float32 predictions and boolean targets, would be refused or read wrongly."""
    original = predictions.read(path)
    for name in ("row_id", "group", "cluster"):
        rewrite(path, replace_column(name, pa.array(getattr(original, name).astype(np.int32))))
    rewrite(path, replace_column("prediction", pa.array(original.prediction.astype(np.float32))))
    rewrite(path, replace_column("target", pa.array(original.target == 1)))
    copy = predictions.read(path)
    for name, kind in predictions.COLUMNS.items():
        assert getattr(copy, name).dtype == kind.to_pandas_dtype()
    np.testing.assert_array_equal(copy.row_id, original.row_id)
    np.testing.assert_array_equal(copy.target, original.target)
    np.testing.assert_allclose(copy.prediction, original.prediction, rtol=1e-6)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(pa.array([f"row {row}" for row in range(NUM_ROWS)]), id="text"),
        pytest.param(pa.array(np.arange(NUM_ROWS) + 0.5), id="fractions"),
        pytest.param(pa.array([None, *range(NUM_ROWS - 1)]), id="nulls"),
    ],
)
def test_wrong_types_are_refused(path: Path, values: pa.Array) -> None:
    """Ids that are no whole numbers would be rounded, or made NaN, and joined to the wrong rows."""
    rewrite(path, replace_column("row_id", values))
    with pytest.raises(UserError, match="column of the wrong type"):
        predictions.read(path)


def test_damaged_file_is_refused(path: Path) -> None:
    """A file that was cut off, emptied or changed by one bit would end in a traceback, or would be used."""
    sound = path.read_bytes()
    start = sound.index(b"\x28\xb5\x2f\xfd") + 60  # inside the first compressed page
    flipped = sound[:start] + bytes([sound[start] ^ 1]) + sound[start + 1 :]
    for damaged in (sound[: len(sound) // 2], b"", b"not Parquet at all", flipped):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="not a valid Parquet file"):
            predictions.read(path)


def test_wrong_paths(tmp_path: Path, path: Path) -> None:
    """A wrong path would end in a traceback, or leave a scratch file behind."""
    with pytest.raises(UserError, match=r"none\.parquet does not exist"):
        predictions.read(tmp_path / "none.parquet")
    with pytest.raises(UserError, match="not a valid Parquet file"):
        predictions.read(tmp_path / "runs")
    with pytest.raises(UserError, match="is not a file, so the prediction file cannot take its place"):
        predictions.write(tmp_path / "runs", forecast())
    with pytest.raises(UserError, match="cannot be written"):
        predictions.write(path / "below_a_file.parquet", forecast())
    assert [file.name for file in tmp_path.rglob("*")] == ["runs", "xgboost.parquet"]


def test_align_joins_by_row_id() -> None:
    """Members that wrote their rows in different orders would be mixed up."""
    first = forecast(reasons=[[{"feature": str(row)}] for row in range(NUM_ROWS)])
    shuffle = np.random.default_rng(1).permutation(NUM_ROWS)
    shuffled = {name: getattr(first, name)[shuffle] for name in predictions.COLUMNS}
    second = dataclasses.replace(first, **{**shuffled, "prediction": shuffled["prediction"] / 2}, member="lightgbm")
    template, matrix = predictions.align([first, second])
    other_template, other_matrix = predictions.align([second, first])
    np.testing.assert_array_equal(template.row_id, np.arange(1000, 1000 + NUM_ROWS))
    np.testing.assert_array_equal(matrix[:, 1], matrix[:, 0] / 2)
    np.testing.assert_array_equal(matrix, other_matrix[:, ::-1])
    for name in ("row_id", "target", "group", "cluster"):
        np.testing.assert_array_equal(getattr(template, name), getattr(other_template, name))
    position = int(np.flatnonzero(first.row_id == 1007)[0])
    assert (template.target[7], template.reasons[7]) == (first.target[position], [{"feature": str(position)}])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"fingerprint": "beef"}, "member b has fingerprint beef, but a has f00d"),
        ({"split": "test"}, "member b has split test, but a has blend"),
        ({"recipe": "sudoku"}, "member b has recipe sudoku, but a has hot_sellers"),
        ({"target": np.zeros(NUM_ROWS)}, "member b has another target than a"),
        ({"group": np.zeros(NUM_ROWS, int)}, "member b has another group than a"),
        ({"cluster": np.zeros(NUM_ROWS, int)}, "member b has another cluster than a"),
        ({"member": "a"}, "two members have one name in a, a"),
    ],
)
def test_foreign_members_are_refused(change: dict[str, Any], sentence: str) -> None:
    """Members of other data, or two of one name, would be joined."""
    with pytest.raises(UserError, match=sentence):
        predictions.align([forecast(member="a"), forecast(**{"member": "b", **change})])


def test_missing_and_foreign_rows_are_counted() -> None:
    """A member that lacks rows would be joined by position."""
    whole = forecast(member="a")
    part = dataclasses.replace(
        whole, member="b", **{name: getattr(whole, name)[whole.row_id != 1004] for name in predictions.COLUMNS}
    )
    with pytest.raises(UserError, match=r"member b lacks 1 of the rows of a and has 0 others \(the first is row 1004\)"):
        predictions.align([whole, part])
    with pytest.raises(UserError, match=r"member a lacks 0 of the rows of b and has 1 others \(the first is row 1004\)"):
        predictions.align([part, whole])


def test_no_member_is_refused() -> None:
    """An empty list of files would end in an IndexError."""
    with pytest.raises(UserError, match="at least one member"):
        predictions.align([])


def test_a_foreign_program_writes_the_same_contract(tmp_path: Path) -> None:
    """A file of another program would be refused for the order or the types of its columns, or for additional ones."""
    import pandas as pd

    ours = forecast(member="ours")
    frame = pd.DataFrame({name: getattr(ours, name) for name in reversed(predictions.COLUMNS)})
    frame = frame.astype({"prediction": "float32", "row_id": "int32", "group": "int16"}).assign(remark="x")
    table = pa.Table.from_pandas(frame.sample(frac=1, random_state=0), preserve_index=False)
    metadata = {"recipe": "hot_sellers", "split": "blend", "member": "theirs", "fingerprint": "f00d", "output": "score"}
    pq.write_table(table.replace_schema_metadata({"ensemble": json.dumps(metadata)}), tmp_path / "theirs.blend.parquet")
    theirs = predictions.read(tmp_path / "theirs.blend.parquet")
    assert (theirs.member, theirs.output, ours.output) == ("theirs", "score", "probability")
    _, columns = predictions.align([ours, theirs])
    np.testing.assert_allclose(columns[:, 0], columns[:, 1], rtol=1e-6)


def test_an_unknown_output_is_refused(tmp_path: Path) -> None:
    """A member with odds would be taken for one with probabilities."""
    with pytest.raises(UserError, match="output is 'odds', but it must be one of probability, score, value"):
        predictions.write(tmp_path / "x", forecast(output="odds"))
    assert not list(tmp_path.iterdir())


# Probabilities of classes

CLASSES = ("ash", "birch", "cedar")


def of_classes(**changes: Any) -> Predictions:
    generator = np.random.default_rng(1)
    shares = generator.dirichlet(np.ones(3), NUM_ROWS)
    target = generator.integers(0, 3, NUM_ROWS).astype(float)
    return forecast(**{"prediction": shares, "target": target, "output": "probabilities", "classes": CLASSES, **changes})


def test_probabilities_of_classes_come_back(tmp_path: Path) -> None:
    """Probabilities would be lost or belong to another row or class, or a class would lose its name."""
    original = of_classes()
    predictions.write(tmp_path / "x.parquet", original)
    copy = predictions.read(tmp_path / "x.parquet")
    np.testing.assert_array_equal(copy.prediction, original.prediction)
    assert (copy.classes, copy.output, copy.prediction.shape) == (CLASSES, "probabilities", (NUM_ROWS, 3))
    assert pq.read_schema(tmp_path / "x.parquet").field("prediction").type == pa.list_(pa.float64(), 3)
    turned = np.argsort(-original.row_id)
    arrays = {name: getattr(original, name)[turned] for name in predictions.COLUMNS}
    second = dataclasses.replace(original, **arrays, member="lightgbm")
    template, matrix = predictions.align([original, second])
    assert matrix.shape == (NUM_ROWS, 2, 3)
    np.testing.assert_array_equal(matrix[:, 0], matrix[:, 1])
    np.testing.assert_array_equal(matrix[:, 0], original.prediction[np.argsort(original.row_id)])
    np.testing.assert_array_equal(template.prediction, matrix[:, 0])


def test_a_foreign_program_writes_lists_of_probabilities(tmp_path: Path) -> None:
    """Only a fixed-size list of doubles would be read, which few programs write."""
    path = tmp_path / "x.parquet"
    original = of_classes()
    predictions.write(path, original)
    rewrite(path, replace_column("prediction", pa.array(original.prediction.tolist(), pa.list_(pa.float32()))))
    np.testing.assert_allclose(predictions.read(path).prediction, original.prediction, rtol=1e-6)


@pytest.mark.parametrize(
    ("first", "sentence"),
    [
        ([0.5, 0.5], "column of the wrong type"),
        (None, "column of the wrong type"),
        ([None, 0.5, 0.5], "1 of 50 predictions are NaN or infinite, the first at row"),
        ([0.5, 0.5, 0.5], "1 of 50 rows are not probabilities that sum to 1, the first is row .* with sum 1.5"),
        ([1.5, -0.5, 0.0], "1 of 50 rows are not probabilities that sum to 1, the first is row .* with sum 1:"),
    ],
)
def test_what_is_no_share_of_classes_is_refused(tmp_path: Path, first: list[float] | None, sentence: str) -> None:
    """Logits, or a row that lacks a class, would be averaged as probabilities."""
    path = tmp_path / "x.parquet"
    predictions.write(path, of_classes())
    rewrite(path, replace_column("prediction", pa.array([first, *of_classes().prediction.tolist()[1:]])))
    with pytest.raises(UserError, match=sentence):
        predictions.read(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"classes": ()}, "output is 'probabilities' with no classes: 'probabilities', and only they, have two or more"),
        ({"classes": ("ash", "ash", "elm")}, "have two or more classes of different names"),
        ({"output": "score"}, r"output is 'score' with 3 classes \(ash, birch, cedar\)"),
        ({"classes": ("ash", "elm")}, r"shape \(50, 3\), but there are 2 classes \(ash, elm\): one column each"),
        ({"prediction": np.full(NUM_ROWS, 0.5)}, r"the predictions have shape \(50,\), but there are 3 classes"),
    ],
)
def test_classes_and_columns_belong_together(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    """A column would be read as the probabilities of another class."""
    with pytest.raises(UserError, match=sentence):
        predictions.write(tmp_path / "x", of_classes(**change))
    assert not list(tmp_path.iterdir())


def test_members_of_other_classes_are_refused() -> None:
    """Probabilities of different classes would be averaged, if two members have their classes in different orders."""
    turned = of_classes(member="b", classes=("birch", "ash", "cedar"))
    with pytest.raises(
        UserError, match=r"member b predicts probabilities of 3 classes \(birch, .*\), but xgboost of 3 classes"
    ):
        predictions.align([of_classes(), turned])
    with pytest.raises(UserError, match="member b predicts probabilities of no classes, but xgboost"):
        predictions.align([of_classes(), forecast(member="b")])


# Weights, and metadata of other programs


def with_metadata(**changes: Any) -> Any:
    """A function that changes the metadata of a table and removes the checksums, which other programs do not write."""

    def change(table: pa.Table) -> pa.Table:
        metadata = {**json.loads(table.schema.metadata[predictions.KEY]), **changes}
        metadata = {name: value for name, value in metadata.items() if (name, value) != ("checksums", None)}
        return table.replace_schema_metadata({predictions.KEY: json.dumps(metadata)})

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"classes": ["no", "yes"]}, r"output is 'probability' with 2 classes \(no, yes\): 'probabilities', and only they"),
        ({"output": "score", "classes": ["no", "yes"]}, "output is 'score' with 2 classes"),
        ({"output": "probabilities"}, "output is 'probabilities' with no classes: 'probabilities', and only they, have two"),
        ({"output": "probabilities", "classes": [0, 1]}, r"'classes' is \[0, 1\]: write a list of strings"),
        ({"output": "probabilities", "classes": 2}, "'classes' is 2: write a list of strings"),
        ({"output": ["probability"]}, r"'output' is \['probability'\]: write a string"),
        ({"member": None}, "'member' is None: write a string"),
        ({"config": "none"}, "'config' is 'none': write an object"),
        ({"config": {"folder": 3}}, "'folder' in the metadata 'config' is 3: write the member's folder, or leave it out"),
    ],
)
def test_metadata_of_another_kind_are_refused(path: Path, change: dict[str, Any], sentence: str) -> None:
    """A member of another program would end in a traceback."""
    rewrite(path, with_metadata(**change))
    with pytest.raises(UserError, match=sentence):
        predictions.read(path)


WEIGHT = np.arange(NUM_ROWS) / 10


def test_weights_come_back_and_belong_to_their_rows(path: Path) -> None:
    """The ensemble would weigh one row by another's weight, or lose the weights where one member's file has none."""
    assert predictions.read(path).weight is None
    with_weight = forecast(weight=WEIGHT)
    predictions.write(path, with_weight)
    copy = predictions.read(path)
    assert copy.weight is not None
    assert np.array_equal(copy.weight, WEIGHT)
    template, _ = predictions.align([forecast(member="foreign"), copy])
    assert dict(zip(template.row_id, template.weight, strict=True)) == dict(zip(copy.row_id, WEIGHT, strict=True))
    assert predictions.align([forecast(), forecast(member="other")])[0].weight is None
    with pytest.raises(UserError, match="member other has other weights than the members before it"):
        predictions.align([copy, forecast(member="other", weight=WEIGHT + 1)])


@pytest.mark.parametrize(
    ("weight", "sentence"),
    [
        (np.append(-1.0, WEIGHT[1:]), "the weight of row 10[0-9]+ is -1: a weight is 0 or more, and not all are 0"),
        (np.append(np.nan, WEIGHT[1:]), "the weight of row 10[0-9]+ is nan"),
        (0 * WEIGHT, "the weight is 0 in every row"),
        (WEIGHT[1:], "different lengths"),
    ],
)
def test_wrong_weights_are_refused(tmp_path: Path, weight: np.ndarray, sentence: str) -> None:
    """A negative weight would change the sign of a loss."""
    with pytest.raises(UserError, match=sentence):
        predictions.write(tmp_path / "x.parquet", forecast(weight=weight))


# Columns that were changed after they were written


def with_everything(**changes: Any) -> Predictions:
    reasons = [[{"feature": f"feature {row}", "value": 3.0, "contribution": -0.5}] * (row % 3) for row in range(NUM_ROWS)]
    return forecast(weight=WEIGHT, reasons=reasons, **changes)


@pytest.mark.parametrize("name", [*predictions.COLUMNS, "weight", "reasons"])
def test_a_value_that_was_changed_is_noticed(path: Path, name: str) -> None:
    """A forecast that was edited by hand would be used as the member's."""
    predictions.write(path, with_everything())
    values = pq.read_table(path)[name].to_pylist()
    values[7] = [{**values[7][0], "value": 2.0}] if name == "reasons" else values[7] + 1
    edit(path, replace_column(name, pa.array(values, pq.read_schema(path).field(name).type)))
    sentence = (
        f"the column '{name}' of .*xgboost.parquet was changed after the file was written .*: predict again, or remove"
    )
    with pytest.raises(UserError, match=sentence):
        predictions.read(path)


def test_a_column_that_was_added_or_taken_away_is_noticed(path: Path) -> None:
    """Rows would have weights that the data do not have, or would count equally although the data have weights."""
    edit(path, lambda table: table.append_column("weight", pa.array(WEIGHT)))
    with pytest.raises(UserError, match=r"the column 'weight' of .* was changed after"):
        predictions.read(path)
    predictions.write(path, with_everything())
    edit(path, lambda table: table.drop_columns(["weight"]))
    with pytest.raises(UserError, match=r"the column 'weight' of .* was changed after"):
        predictions.read(path)


def test_a_file_in_another_layout_is_the_same(path: Path) -> None:
    """A copy in other row groups, with another compression, would be refused."""
    for original in (with_everything(), of_classes(), forecast(target=np.full(NUM_ROWS, np.nan))):
        predictions.write(path, original)
        pq.write_table(pq.read_table(path), path, row_group_size=7, compression="gzip")
        np.testing.assert_array_equal(predictions.read(path).prediction, original.prediction)


def test_a_file_without_checksums_is_read(path: Path) -> None:
    """Files of other programs, and those of versions that wrote no checksums, would be refused."""
    rewrite(path, lambda table: table)
    assert "checksums" not in json.loads(pq.read_schema(path).metadata[predictions.KEY])
    np.testing.assert_array_equal(predictions.read(path).prediction, forecast().prediction)


def test_a_file_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of another user, whose umask is 077, would be called damaged, and the advice would be to write it again."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pq, "ParquetFile", refuse)
    with pytest.raises(UserError, match=r"cannot be read .Permission denied.: check its permissions$"):
        predictions.read(tmp_path / "clear.test.parquet")
