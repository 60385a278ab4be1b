"""The file out_of_fold.parquet in a member's folder: predictions of rows by copies that were not trained on them.

It is written when the member is trained on data for cross-validation (cross_validation.py).
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ensemble import arrow
from ensemble.data.cross_validation import SPLIT
from ensemble.errors import UserError
from ensemble.task import Task

FILE = "out_of_fold.parquet"
NAME = "oof"
"""The name of the split of these predictions in prediction files."""


def write(folder: Path, fingerprint: str, columns: dict[str, np.ndarray]) -> None:
    """Write the file to a member's folder.

    fingerprint : the fingerprint of the prepared data. columns : `row_id`, (n,), and `prediction`, (n,) or (n, num_classes).
    """
    prediction = arrow.array(columns["prediction"].astype(np.float64))
    table = pa.table({"row_id": columns["row_id"], "prediction": prediction})
    pq.write_table(table.replace_schema_metadata({"fingerprint": fingerprint}), folder / FILE)


def read(folder: Path, data: str | Path, task: Task, fingerprint: str) -> dict[str, np.ndarray]:
    """The columns of a prediction file: row_id, target, prediction, group, cluster and, if the task has weights, weight.

    folder : the member's folder, whose checksums the caller has verified. data : the prepared data, with this fingerprint.
    Raises `UserError` if the member has no out-of-fold predictions, or was trained on other data.
    """
    if not (folder / FILE).is_file():
        raise UserError(f"{folder} has no out-of-fold predictions: train it on data for cross-validation")
    table = pq.read_table((folder / FILE).absolute())
    trained_on = (table.schema.metadata or {}).get(b"fingerprint", b"").decode()
    if trained_on != fingerprint:
        raise UserError(
            f"{folder} was trained on data with the fingerprint {trained_on}, but {data} has the fingerprint {fingerprint}: "
            "predict the data that it was trained on"
        )
    rows = arrow.open_table(Path(data) / "rows" / SPLIT)
    row_id, prediction = (arrow.Column(table, name).all() for name in ("row_id", "prediction"))
    position = pc.index_in(table["row_id"], rows["row_id"]).to_numpy()
    names = {"target": task.target, "group": task.group, "cluster": task.cluster}
    names |= {"weight": task.weight} if task.weight else {}
    columns = {name: rows[column].to_numpy()[position] for name, column in names.items()}
    columns |= {name: columns[name].astype(np.float64) for name in ("target", "weight") if name in columns}
    return {"row_id": row_id, "prediction": prediction, **columns}
