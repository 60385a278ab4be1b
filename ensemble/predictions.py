"""The prediction file, by which members, the ensemble and the report exchange predictions.

A prediction file is Parquet, one row per example:

    row_id       int64     identifies the example within the prepared data
    target       float64   the outcome; NaN in a forecast, where it is not known yet
    prediction   float64   a probability, score or value; finite. Or fixed_size_list<float64>[K]: K probabilities, sum 1
    group        int64     examples that are ranked against each other: the week, the user
    cluster      int64     examples that the bootstrap draws together: the product, the user
    weight       float64   optional: how much the example counts in fits and scores, 0 or more
    reasons      list<struct<feature, value, contribution>>   optional: the contributions of features to the prediction, the
                 largest absolute value first, and with an empty `feature` the sum of those not stored; empty but for the
                 first rows of a forecast; with several classes one class after the other, with its number in `class`

and in its metadata, under the key `ensemble`, a JSON object with `recipe`, `split`, `member`, `fingerprint` (of the prepared
data), `config`, `versions`, `checksums` of the columns, and `output`, which is one of these: probability (the default);
score, of which only the order has a meaning; value, of a numerical target; or probabilities, one for each of the K names in
`classes`, where the target is the number of a class. A file of out-of-fold rows may have the `importance` of features (see
metrics/permutation.py). Files are joined by `row_id`, never by position.

A model of any other kind joins an ensemble by such files, written by any program, without checksums:

    table = pa.table({"row_id": …, "target": …, "prediction": …, "group": …, "cluster": …})
    metadata = {"recipe": "hot_sellers", "split": "blend", "member": "mine", "fingerprint": "f00d", "output": "score"}
    pq.write_table(table.replace_schema_metadata({"ensemble": json.dumps(metadata)}), "predictions/mine.blend.parquet")
"""

import dataclasses
import importlib.metadata
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ensemble import verification
from ensemble.commands import imports
from ensemble.errors import UserError, listed
from ensemble.folders import new_file

imports.pyarrow_alone()

REASONS = pa.list_(pa.struct({"feature": pa.string(), "value": pa.float32(), "contribution": pa.float64()}))
REASONS_OF_CLASSES = pa.list_(pa.struct([*REASONS.value_type, pa.field("class", pa.int32())]))
COLUMNS = {
    "row_id": pa.int64(),
    "target": pa.float64(),
    "prediction": pa.float64(),
    "group": pa.int64(),
    "cluster": pa.int64(),
}
ORIGIN = ("recipe", "split", "member", "fingerprint")
"""Entries that the metadata of each file must have."""
KEY = b"ensemble"
OUTPUTS = ("probability", "score", "value", "probabilities")
OUTPUTS_OF = {
    "binary": ("probability", "score"),
    "multiclass": ("probabilities",),
    "regression": ("value",),
    "ranking": ("score", "value", "probability"),
}
"""By kind of task, the outputs of members that can be combined, the kind's own output first."""
WEIGHT = "weight"
TOLERANCE = 1e-4
"""By how much the sum of a row's probabilities may differ from 1. Float32 members with many classes miss 1 by less."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predictions:
    """The predictions of one member for one split: (num_rows,) each; probabilities of classes (num_rows, num_classes)."""

    row_id: np.ndarray
    target: np.ndarray
    prediction: np.ndarray
    group: np.ndarray
    cluster: np.ndarray
    recipe: str
    split: str
    member: str
    fingerprint: str
    output: str = "probability"
    classes: tuple[str, ...] = ()
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    weight: np.ndarray | None = None
    reasons: list[list[dict[str, Any]]] | None = None
    importance: dict[str, Any] | None = None


def write(path: str | Path, predictions: Predictions) -> None:
    """Write a prediction file in one rename, with checksums that `read` verifies.

    Raises `UserError` for NaN or infinite predictions, probabilities that do not sum to 1, repeated row ids, weights that
    are negative or all 0, and a path that cannot be written.
    """
    path = Path(path)
    _check(predictions, path)
    types = _column_types(predictions.weight is not None)
    arrays = {name: pa.array(np.ravel(getattr(predictions, name)), arrow_type) for name, arrow_type in types.items()}
    if predictions.classes:
        arrays["prediction"] = pa.FixedSizeListArray.from_arrays(arrays["prediction"], len(predictions.classes))
    if predictions.reasons is not None:
        arrays["reasons"] = pa.array(predictions.reasons, REASONS_OF_CLASSES if predictions.classes else REASONS)
    metadata = {name: getattr(predictions, name) for name in (*ORIGIN, "output", "config")}
    metadata |= {name: value for name in ("classes", "importance") if (value := getattr(predictions, name))}
    write_checked(path, "prediction file", pa.table(arrays), metadata)


def read(path: str | Path) -> Predictions:
    """Read and check a prediction file, written by any program.

    Raises `UserError` if the file is missing or damaged, lacks a column or metadata, or has values that `write` refuses.
    """
    table, metadata = read_checked(path, "prediction file", COLUMNS, "ensemble/predictions.py")
    _check_metadata(metadata, Path(path))
    output, classes = metadata.get("output", "probability"), tuple(metadata.get("classes", ()))
    types = _column_types(WEIGHT in table.column_names)
    if classes:
        types["prediction"] = pa.list_(pa.float64(), len(classes))
    # Only floats may be null: a null would convert an integer column to floats
    fields = [pa.field(name, kind, nullable=pa.types.is_floating(kind)) for name, kind in types.items()]
    try:
        columns = table.select(list(types)).cast(pa.schema(fields))
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise UserError(f"{path} has a column of the wrong type: {' '.join(str(error).split())}") from None
    arrays = {name: columns[name].to_numpy() for name in types if name != "prediction" or not classes}
    if classes:
        arrays["prediction"] = np.reshape(columns["prediction"].combine_chunks().flatten(), (-1, len(classes)))
    predictions = Predictions(
        **arrays,
        **{name: metadata[name] for name in ORIGIN},
        output=output,
        classes=classes,
        config=metadata.get("config", {}),
        reasons=table["reasons"].to_pylist() if "reasons" in table.column_names else None,
    )
    _check(predictions, Path(path))
    return predictions


def write_checked(path: Path, kind: str, table: pa.Table, metadata: dict[str, Any]) -> None:
    """Write a table in one rename. Its metadata under `KEY` contain `metadata`, checksums of the columns, and versions."""
    metadata = {**metadata, "checksums": verification.column_checksums(table), "versions": versions()}
    table = table.replace_schema_metadata({KEY: json.dumps(metadata).encode()})
    with new_file(path, kind) as scratch:
        pq.write_table(table, scratch, compression="zstd", write_page_checksum=True)


def read_checked(path: str | Path, kind: str, columns: Iterable[str], document: str) -> tuple[pa.Table, dict[str, Any]]:
    """The table and metadata of a file that `write_checked` or another program wrote. kind : kind of file, for messages.

    Raises `UserError` if the file is missing, damaged or edited, or lacks one of `columns` or of `ORIGIN`, which the file
    `document` describes.
    """
    try:
        with pq.ParquetFile(Path(path).absolute(), page_checksum_verification=True) as file:
            table = file.read()
        metadata = json.loads((table.schema.metadata or {}).get(KEY, b"{}"))
    except FileNotFoundError:
        raise UserError(f"the {kind} {path} does not exist: write it with scripts/predict.py") from None
    except PermissionError:
        raise UserError(f"the {kind} {path} cannot be read (Permission denied): check its permissions") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: the metadata '{KEY.decode()}' are not JSON ({error}): write it again") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} is not a valid Parquet file ({' '.join(str(error).split())}): write it again") from None
    metadata = metadata if isinstance(metadata, dict) else {}
    verification.refuse_changed_columns(path, table, metadata.get("checksums"), KEY.decode())
    missing = [name for name in columns if name not in table.column_names]
    missing += [f"metadata '{name}'" for name in ORIGIN if name not in metadata]
    if missing:
        raise UserError(f"{path} is not a {kind}, it lacks: {', '.join(missing)}; see {document}")
    return table, metadata


def refuse_repeated_rows(path: Path, row_id: np.ndarray) -> None:
    """Raise `UserError` if an id occurs more than once in a file."""
    ids, counts = np.unique(row_id, return_counts=True)
    if ids.size < row_id.size:
        raise UserError(f"{path}: row {ids[counts > 1][0]} is predicted more than once: predict again")


def check_names(names: Sequence[str]) -> None:
    """Raise `UserError` if two members have the same name."""
    if len(set(names)) < len(names):
        raise UserError(f"two members have one name in {', '.join(names)}: give each its own with name=…")


def check_origins(members: Sequence[Any]) -> None:
    """Raise `UserError` if two members have the same name, or predict different data or splits."""
    check_names([member.member for member in members])
    for member in members:
        for name in ("fingerprint", "split", "recipe"):
            if getattr(member, name) != getattr(members[0], name):
                raise UserError(
                    f"member {member.member} has {name} {getattr(member, name)}, but {members[0].member} has "
                    f"{getattr(members[0], name)}: predict with both on the same prepared data and split"
                )


def align(members: list[Predictions]) -> tuple[Predictions, np.ndarray]:
    """Join members by row id: a template with sorted rows, and the members' predictions, (num_rows, num_members).

    Probabilities of classes have shape (num_rows, num_members, num_classes). The template is the file of the first member,
    with the weights of any member that has some; files by other programs may have none. Raises `UserError` if fingerprints,
    splits, recipes, classes, row ids, targets, groups, clusters or weights differ, or two names are equal.
    """
    if not members:
        raise UserError("an ensemble needs at least one member: name the prediction files")
    check_origins(members)
    first = members[0]
    order = np.argsort(first.row_id, kind="stable")
    columns, weight = [], None
    for member in members:
        if member.classes != first.classes:
            raise UserError(
                f"member {member.member} predicts probabilities of {_named(member.classes)}, but {first.member} of "
                f"{_named(first.classes)}: predict with both on the same task"
            )
        member_order = np.argsort(member.row_id, kind="stable")
        if not np.array_equal(member.row_id[member_order], first.row_id[order]):
            missing, additional = np.setdiff1d(first.row_id, member.row_id), np.setdiff1d(member.row_id, first.row_id)
            example = f"row {missing[0]}" if missing.size else f"row {additional[0]}"
            raise UserError(
                f"member {member.member} lacks {missing.size} of the rows of {first.member} and has {additional.size} "
                f"others (the first is {example}): predict again with both on the same split"
            )
        for name in ("target", "group", "cluster"):
            if not np.array_equal(getattr(member, name)[member_order], getattr(first, name)[order], equal_nan=True):
                raise UserError(f"member {member.member} has another {name} than {first.member}: predict again with both")
        if member.weight is not None:
            if weight is not None and not np.array_equal(member.weight[member_order], weight):
                raise UserError(f"member {member.member} has other weights than the members before it: predict all again")
            weight = member.weight[member_order]
        columns.append(member.prediction[member_order])
    template = dataclasses.replace(
        first,
        **{name: getattr(first, name)[order] for name in COLUMNS},
        weight=weight,
        reasons=None if first.reasons is None else [first.reasons[row] for row in order],
    )
    return template, np.stack(columns, axis=1)


def select_rows(predictions: Predictions, rows: np.ndarray | slice) -> Predictions:
    """Some rows of a prediction file, without reasons. rows : row numbers, a slice, or (num_rows,) bool."""
    names = _column_types(predictions.weight is not None)
    return dataclasses.replace(predictions, reasons=None, **{name: getattr(predictions, name)[rows] for name in names})


def versions() -> dict[str, str]:
    """The installed versions of the libraries that a prediction can depend on."""
    installed = {}
    libraries = ("torch", "accelerate", "datasets", "xgboost", "lightgbm", "catboost", "scikit-learn", "polars", "numpy")
    for name in ("accelerate-ensemble", *libraries):
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def _check_metadata(metadata: dict[str, Any], path: Path) -> None:
    """Raise `UserError` for metadata of the wrong type, and for an output that does not agree with the classes."""
    for name in (*ORIGIN, "output"):
        if not isinstance(metadata.get(name, ""), str):
            raise UserError(f"{path}: the metadata '{name}' is {metadata[name]!r}: write a string")
    if not isinstance(metadata.get("config", {}), dict):
        raise UserError(f"{path}: the metadata 'config' is {metadata['config']!r}: write an object")
    if not isinstance(folder := metadata.get("config", {}).get("folder", ""), str):
        raise UserError(
            f"{path}: 'folder' in the metadata 'config' is {folder!r}: write the member's folder, or leave it out"
        )
    classes = metadata.get("classes", [])
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise UserError(f"{path}: the metadata 'classes' is {classes!r}: write a list of strings")
    _check_output(metadata.get("output", "probability"), tuple(classes), path)


def _column_types(has_weight: bool) -> dict[str, pa.DataType]:
    """The Arrow types of the columns, by name, without `reasons`."""
    return {**COLUMNS, WEIGHT: pa.float64()} if has_weight else dict(COLUMNS)


def _named(classes: tuple[str, ...]) -> str:
    return f"{len(classes)} classes ({listed(classes, 3)})" if classes else "no classes"


def _check_output(output: str, classes: tuple[str, ...], path: Path) -> None:
    """Raise `UserError` for an unknown output, and for one that does not agree with the classes."""
    if output not in OUTPUTS:
        raise UserError(f"{path}: output is '{output}', but it must be one of {', '.join(OUTPUTS)}: correct it")
    if not (len(set(classes)) == len(classes) >= 2 if output == "probabilities" else not classes):
        raise UserError(
            f"{path}: output is '{output}' with {_named(classes)}: 'probabilities', and only they, have two or "
            "more classes of different names"
        )


def _check(predictions: Predictions, path: Path) -> None:
    """Raise `UserError` for values that no prediction file may have; `path` is named in the error."""
    _check_output(predictions.output, predictions.classes, path)
    classes, shape = predictions.classes, np.shape(predictions.prediction)
    if shape[1:] != ((len(classes),) if classes else ()):
        raise UserError(f"{path}: the predictions have shape {shape}, but there are {_named(classes)}: one column each")
    weight = predictions.weight
    lengths = {name: len(getattr(predictions, name)) for name in _column_types(weight is not None)}
    if len(set(lengths.values())) > 1:
        raise UserError(f"{path}: the columns have different lengths: {lengths}")
    if predictions.row_id.size == 0:
        raise UserError(f"{path}: it contains no predictions: check the split '{predictions.split}'")
    if weight is not None:
        bad = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
        if bad.size or not weight.any():
            what = f"of row {predictions.row_id[bad[0]]} is {weight[bad[0]]:g}" if bad.size else "is 0 in every row"
            raise UserError(f"{path}: the weight {what}: a weight is 0 or more, and not all are 0")
    finite = np.isfinite(predictions.prediction)
    bad = np.flatnonzero(~(finite.all(axis=1) if classes else finite))
    if bad.size:
        raise UserError(
            f"{path}: {bad.size} of {len(predictions.prediction)} predictions are NaN or infinite, the first at row "
            f"{predictions.row_id[bad[0]]}: look at the member's training log"
        )
    if classes:
        total = predictions.prediction.sum(axis=1)
        bad = np.flatnonzero((np.abs(total - 1) > TOLERANCE) | (predictions.prediction < 0).any(axis=1))
        if bad.size:
            raise UserError(
                f"{path}: {bad.size} of {len(total)} rows are not probabilities that sum to 1, the first is row "
                f"{predictions.row_id[bad[0]]} with sum {total[bad[0]]:g}: check the member's output"
            )
    refuse_repeated_rows(path, predictions.row_id)
