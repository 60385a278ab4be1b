"""The prediction files of an ensemble's members and baselines, checked and joined by row id."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ensemble import combine, predictions
from ensemble.arrow import open_table
from ensemble.combine.scales import NONE
from ensemble.combine.weights import EQUAL
from ensemble.data import out_of_fold
from ensemble.data.cross_validation import CrossValidation
from ensemble.data.inputs import BLEND, FORECAST
from ensemble.errors import UserError, refuse_unreadable
from ensemble.predictions import Predictions
from ensemble.predictor.forecast import check_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemberFiles:
    """Prediction files of n members and baselines, which are in the same order everywhere."""

    on: str
    """The split on which weights and calibration are fitted."""
    scored: str
    """The split that is scored; it can be the same."""
    names: list[str]
    is_baseline: np.ndarray
    """(n,) bool."""
    files: dict[str, list[Predictions]]
    """By split, a file for each name."""
    rows: dict[str, Predictions]
    """By split, the rows, with the columns that all files have in common."""
    columns: dict[str, np.ndarray]
    """By split, the predictions, (num_rows, n), or (num_rows, n, num_classes)."""

    @property
    def member_names(self) -> list[str]:
        return [name for name, is_baseline in zip(self.names, self.is_baseline, strict=True) if not is_baseline]

    def of_members(self, split: str) -> np.ndarray:
        """The predictions of the members alone."""
        return self.columns[split][:, ~self.is_baseline]

    def outputs(self) -> list[str]:
        """The `output` of each member, such as probability; `UserError` if a member's files have different outputs."""
        outputs: dict[str, str] = {}
        for split, files in self.files.items():
            for file in files:
                if outputs.setdefault(file.member, file.output) != file.output:
                    raise UserError(
                        f"member {file.member} predicts a {file.output} on {split}, and a {outputs[file.member]} on another "
                        "split: predict all splits again, so that they have one output"
                    )
        return [outputs[name] for name in self.member_names]

    def probabilities(self, ensemble: combine.Ensemble, is_forward: bool) -> dict[str, np.ndarray]:
        """By member, the predictions of the scored rows; scores of a binary task become probabilities, by their rank.

        If the scored rows are also those to which the probabilities are fitted, they are cross-fitted, as the ensemble's:
        those of a block are fitted to other blocks, and rows in no block have NaN. is_forward : as for
        `combine.fit_cross_fitted`.
        """
        rows, result = self.rows[self.on], {}
        options: Any = {"combiner": EQUAL, "calibration": NONE, "compare": False}
        options |= {"weight": rows.weight, "is_forward": is_forward}
        columns = np.moveaxis(self.of_members(self.scored), 1, 0)
        for name, output, column in zip(self.member_names, self.outputs(), columns, strict=True):
            if self.scored == self.on and ensemble.kind == "binary" and output == "score":
                one = rows.target, column[:, None], rows.group, [name]
                result[name] = combine.fit_cross_fitted(*one, outputs=[output], **options)[1]
            else:
                result[name] = ensemble.probabilities(name, column)
        return result


def read(
    folder: Path, data: str | Path, manifest: dict[str, Any], names: tuple[str, ...], on: str, scored: str
) -> MemberFiles:
    """Read the files of the splits `on`, `scored` and, if the data have it, forecast.

    folder : with the files. data : the prepared data, with `manifest`. names : members and baselines; if empty, all that
    have a file of `on`. Raises `UserError` for missing files, files of other data, files of different models of one member,
    reserved names, and if all names are baselines.
    """
    sorted_names = sorted(names or (path.name.removesuffix(f".{on}.parquet") for path in folder.glob(f"*.{on}.parquet")))
    if not sorted_names:
        refuse_unreadable(folder)
        others = ", ".join(sorted({path.name.split(".")[-2] for path in folder.glob("*.*.parquet")}))
        only = f", only of {others}" if others else ""
        raise UserError(
            f"there are no prediction files of {on} in {folder}{only}: write them with scripts/predict.py, or check the path"
        )
    splits = (*manifest["splits"], out_of_fold.NAME)
    stored = {path.name.removesuffix(f".{split}.parquet") for split in splits for path in folder.glob(f"*.{split}.parquet")}
    left_out = sorted(stored - set(sorted_names))
    if left_out and not names:
        print(f"left out, without predictions of {on}: {', '.join(left_out)}", file=sys.stderr)
    for name in sorted_names:
        check_name(name, manifest)
    files = {
        split: [
            _read(folder / f"{name}.{split}.parquet", name, split, manifest["fingerprint"], data) for name in sorted_names
        ]
        for split in dict.fromkeys((on, scored, *((FORECAST,) if FORECAST in manifest["splits"] else ())))
    }
    for split, files_of_split in files.items():
        for first, file in zip(files[on], files_of_split, strict=True):
            if file.config.get("model") != first.config.get("model"):
                raise UserError(
                    f"the predictions of member {file.member} for {on} and {split} are of different models, as after a "
                    "second training: predict all splits again"
                )
    aligned = {split: predictions.align(files_of_split) for split, files_of_split in files.items()}
    for split, (rows, _) in aligned.items():
        _compare_with_data(rows, Path(data), manifest, split)
    is_baseline = np.array([file.config.get("kind") == "baseline" for file in files[on]])
    if is_baseline.all():
        other = BLEND if on == out_of_fold.NAME else out_of_fold.NAME
        if not names and (of_other := [name for name in left_out if (folder / f"{name}.{other}.parquet").exists()]):
            raise UserError(
                f"there is no member with predictions of {on} in {folder}, only baselines, but {', '.join(of_other)} "
                f"predicted {other}: add on={other}"
            )
        raise UserError(f"there is no member in {folder}, only baselines: train one and predict with it")
    return MemberFiles(
        on=on,
        scored=scored,
        names=sorted_names,
        is_baseline=is_baseline,
        files=files,
        rows={split: rows for split, (rows, _) in aligned.items()},
        columns={split: columns for split, (_, columns) in aligned.items()},
    )


def _read(path: Path, name: str, split: str, fingerprint: str, data: str | Path) -> Predictions:
    """A member's prediction file; `UserError` unless the file is of this member, this split and these data."""
    file = predictions.read(path)
    if (file.member, file.split) != (name, split):
        raise UserError(
            f"{path} holds {file.member}'s predictions of {file.split}: name it {file.member}.{file.split}.parquet"
        )
    if file.fingerprint != fingerprint:
        raise UserError(
            f"member {name} predicted {split} of data with the fingerprint {file.fingerprint}, but {data} has the "
            f"fingerprint {fingerprint}: predict again with this data"
        )
    return file


def _compare_with_data(rows: Predictions, data: Path, manifest: dict[str, Any], split: str) -> None:
    """Raise `UserError` if prediction files, which any program may write, have other row ids, targets, groups, clusters
    or weights than the data.

    Data without a numeric target column are not compared.
    """
    task = manifest.get("task", {})
    folder, target = data / "rows" / split, task.get("target")
    if split == out_of_fold.NAME and CrossValidation.from_manifest(manifest):
        folder = data / "rows" / "train"
    classes = tuple(task.get("classes", ()))
    if rows.classes and classes and rows.classes != classes:
        first = next((pair for pair in zip(rows.classes, classes, strict=False) if pair[0] != pair[1]), None)
        differ = f"'{first[0]}' where the data have '{first[1]}'" if first else f"{len(rows.classes)}, not {len(classes)}"
        raise UserError(f"the prediction files of {split} have other classes than the data ({differ}): predict again")
    table = open_table(folder) if folder.is_dir() else None
    if table is not None and len(rows.row_id) < len(table) and split != out_of_fold.NAME:
        print(f"warning: the files have {len(rows.row_id):,} of the {len(table):,} rows of {split}", file=sys.stderr)
    if table is None or not {"row_id", target} <= set(table.column_names):
        return
    kind = table.schema.field(target).type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return
    positions = pc.index_in(pa.array(rows.row_id), table["row_id"]).fill_null(-1).to_numpy()
    unknown = np.flatnonzero(positions < 0)
    if unknown.size:
        raise UserError(f"the prediction files have a row {rows.row_id[unknown[0]]}, which {folder} lacks: predict again")
    weight = task.get("weight")
    if weight and weight in table.column_names and rows.weight is None and split != FORECAST:
        raise UserError(f"the prediction files of {split} have no weights, but the task has {weight}: predict again")
    stored = {target: rows.target, task.get("group"): rows.group, task.get("cluster"): rows.cluster, weight: rows.weight}
    for name, values in stored.items():
        if not name or values is None or name not in table.column_names:
            continue
        expected = table[name].to_numpy(zero_copy_only=False)[positions].astype(np.float64)
        rtol = 1e-6 if name in (target, weight) else 0  # float32 or float64; numbers of groups are whole
        different = np.flatnonzero(~np.isclose(expected, values.astype(np.float64), rtol=rtol, atol=0, equal_nan=True))
        if different.size:
            first = different[0]
            raise UserError(
                f"row {rows.row_id[first]} has {name}={values[first]:g} in the prediction files, and {expected[first]:g} in "
                f"{folder}: predict again with this data"
            )
