"""The contribution of each feature to each prediction of a member, as a file. For boosted trees the libraries compute SHAP.

    MEMBER.SPLIT.contributions.parquet   row_id int64; base_value and features float32, or float64 if `output` is value
    MEMBER.SPLIT.contributions.png       the twenty features with the largest contributions, and their direction

The contributions of a row and its base value sum to the log odds if the member learned a binary objective, to its value or
score, or with several classes to the value of the likeliest class before the softmax. Lundberg et al. 2020,
https://doi.org/10.1038/s42256-019-0138-9.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ensemble.commands import imports
from ensemble.errors import UserError
from ensemble.folders import MARK, new_file
from ensemble.predictions import KEY
from ensemble.trees.pictures import bars
from ensemble.trees.rows import TreeData

BASE = "base_value"
NUM_SHOWN = 20
ROUNDING = 1e-12
"""The largest relative error of a variance that is computed from sums in float64."""
UNIT_OF = {
    "probability": "log odds",
    "probabilities": "likeliest class, before the softmax",
    "value": "value",
    "score": "score",
}
"""The unit of contributions by the output of a member that learned the task's own objective."""


def of_classes(parts: np.ndarray, classes: np.ndarray | None) -> np.ndarray:
    """Select the contributions to some classes of each row: (n, F + 1) or (n, m, F + 1) from (n, K, F + 1).

    classes : the numbers of the classes, (n,) or (n, m). If it is None, as for tasks without several classes,
    `parts` is returned unchanged.
    """
    return parts if classes is None else parts[np.arange(len(parts)).reshape(-1, *[1] * (classes.ndim - 1)), classes]


def write(path: Path, rows: TreeData, blocks: Iterable[tuple[np.ndarray, np.ndarray]], metadata: dict[str, Any]) -> Path:
    """Write blocks of features (n, F) and contributions (n, F + 1), the base value last, in the order of the rows.

    metadata : of the Parquet file, with `member`, `split`, `output` and `unit`, a value of `UNIT_OF`. If a block raises an
    error or the disk is full, neither the file nor the picture is written, and earlier ones stay. Returns the path.
    """
    if BASE in rows.features:
        raise UserError(f"a feature is called {BASE}, which is a reserved name: rename it, and prepare the data again")
    kind = pa.float64() if metadata["output"] == "value" else pa.float32()  # a target may be too large for float32
    schema = pa.schema(
        [("row_id", pa.int64()), *((name, kind) for name in (BASE, *rows.features))],
        {KEY: json.dumps({**metadata, "mark": MARK}).encode()},
    )
    row_id, summary, start = rows.column("row_id"), Summary(len(rows.features)), 0
    with (
        new_file(path, "contributions") as scratch,
        new_file(path.with_suffix(".png"), "picture of contributions") as picture,
    ):
        with pq.ParquetWriter(scratch, schema, compression="zstd", write_page_checksum=True) as file:
            for features, parts in blocks:
                columns = [row_id[start : start + len(parts)], parts[:, -1], *parts[:, :-1].T]
                arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
                file.write_batch(pa.record_batch(arrays, schema=schema))
                summary.add(features, parts[:, :-1])
                start += len(parts)
        draw(picture, rows, summary, f"{metadata['member']}, {metadata['split']}", metadata["unit"])
    return path


class Summary:
    """The size and the direction of the contributions by feature, (F,), computed from sums over blocks of rows."""

    def __init__(self, num_features: int):
        self._num_rows = 0
        self._size = np.zeros(num_features)
        self._sums = np.zeros((6, num_features))

    def add(self, features: np.ndarray, parts: np.ndarray) -> None:
        self._num_rows += len(parts)
        self._size += np.abs(parts).sum(axis=0)
        known = np.isfinite(features)
        x, y = np.where(known, features, 0).astype(np.float64), np.where(known, parts, 0).astype(np.float64)
        self._sums += [values.sum(axis=0) for values in (known, x, y, x * x, y * y, x * y)]

    def size(self) -> np.ndarray:
        """The mean of the absolute contributions."""
        return self._size / max(1, self._num_rows)

    def direction(self) -> np.ndarray:
        """Correlation of a feature's finite values with its contributions, -1 to 1; 0 where either is constant."""
        count, x, y, xx, yy, xy = self._sums
        x_variance, y_variance = count * xx - x * x, count * yy - y * y
        # A constant has a variance of 0 only up to rounding
        varies = (x_variance > ROUNDING * count * xx) & (y_variance > ROUNDING * count * yy)
        spread = np.sqrt(np.where(varies, x_variance * y_variance, np.inf))
        return np.clip((count * xy - x * y) / spread, -1, 1)


def draw(file: Path, rows: TreeData, summary: Summary, title: str, unit: str) -> None:
    """Draw a bar for each of the features with the largest contributions, coloured by their direction."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    size, colours = summary.size(), ScalarMappable(Normalize(-1, 1), "coolwarm")
    top = np.argsort(-size, kind="stable")[:NUM_SHOWN][::-1]
    direction = np.where([name in rows.categories for name in rows.features], 0, summary.direction())  # codes have no order
    figure = imports.figure_class()(figsize=(7, 6), layout="constrained")
    axes = figure.add_subplot()
    names = [rows.features[feature] for feature in top]
    bars(axes, names, size[top], f"{title}: contributions to the predictions", color=colours.to_rgba(direction[top]))
    axes.set_xlabel(f"mean of the absolute contribution ({unit})")
    bar = figure.colorbar(colours, ax=axes, ticks=[-1, 0, 1], shrink=0.5)
    bar.ax.set_yticklabels(["high values lower\nthe prediction", "neither", "high values raise\nthe prediction"])
    figure.savefig(file, dpi=120, format="png", metadata={"Software": MARK})
