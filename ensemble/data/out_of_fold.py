"""The out-of-fold predictions of a member, in its folder: each of a row that the model which predicts it never learned from.

They are made when the member is trained on data for cross-validation (cross_validation.py). Afterwards they are read.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ensemble.arrow import open_table
from ensemble.data.cross_validation import SPLIT
from ensemble.errors import UserError
from ensemble.task import Task

FILE = "out_of_fold.parquet"
NAME = "oof"
"""The split that prediction files call it."""


def write(folder: Path, fingerprint: str, found: dict[str, np.ndarray]) -> None:
    """Write the file to a member's folder.

    fingerprint : of the prepared data. found : `row_id`, (n,), and `prediction`, (n,) or (n, K).
    """
    prediction: Any = pa.array(found["prediction"].astype(np.float64).ravel())
    if found["prediction"].ndim > 1:
        prediction = pa.FixedSizeListArray.from_arrays(prediction, found["prediction"].shape[1])
    table = pa.table({"row_id": found["row_id"], "prediction": prediction})
    pq.write_table(table.replace_schema_metadata({"fingerprint": fingerprint}), folder / FILE)


def read(folder: Path, data: str | Path, task: Task, fingerprint: str) -> dict[str, np.ndarray]:
    """Columns of a prediction file: row_id, target, prediction, group, cluster and, if the task has some, weight.

    folder : of the member, whose checksums were compared. data : the prepared data, with this fingerprint. Raises
    `UserError` if the member has no such predictions, or not of these data.
    """
    if not (folder / FILE).is_file():
        raise UserError(f"{folder} has no out-of-fold predictions: train it on data for cross-validation")
    table = pq.read_table(folder / FILE)
    its = (table.schema.metadata or {}).get(b"fingerprint", b"").decode()
    if its != fingerprint:
        raise UserError(f"{folder} learned from data {its}, and {data} is {fingerprint}: predict on its own data")
    rows = open_table(Path(data) / "rows" / SPLIT)
    row_id = table["row_id"].to_numpy()
    ids = rows["row_id"].to_numpy()
    order = np.argsort(ids, kind="stable")
    place = order[np.searchsorted(ids, row_id, sorter=order)]
    prediction = table["prediction"].combine_chunks()
    values = prediction.flatten() if pa.types.is_fixed_size_list(prediction.type) else prediction
    columns = {"target": task.target, "group": task.group, "cluster": task.cluster}
    columns |= {"weight": task.weight} if task.weight else {}
    found = {name: rows[column].to_numpy()[place] for name, column in columns.items()}
    found |= {name: found[name].astype(np.float64) for name in ("target", "weight") if name in found}
    return {
        "row_id": row_id,
        "prediction": values.to_numpy().reshape(len(table), -1).squeeze(axis=1)
        if values is prediction
        else values.to_numpy().reshape(len(table), -1),
        **found,
    }
