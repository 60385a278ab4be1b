"""Predictions and contributions of a trained tree member. Call `threads.configure` before a member is loaded."""

import functools
import importlib
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ensemble import folders
from ensemble.data import inputs, out_of_fold
from ensemble.data.reasons import likeliest_classes, order_of_forecast, strongest_reasons
from ensemble.errors import UserError
from ensemble.task import task_of
from ensemble.trees import contributions, target_encoding
from ensemble.trees.objective import from_raw
from ensemble.trees.rows import TreeData, tree_manifest
from ensemble.trees.scaling import Scaling
from ensemble.trees.unknown import SeenValues, warnings

MODULES = {
    "xgboost": "ensemble.trees.xgb",
    "lightgbm": "ensemble.trees.lgbm",
    "catboost": "ensemble.trees.cat",
    "extra_trees": "ensemble.trees.forest",
    "linear": "ensemble.trees.linear",
}
ROWS_PER_BLOCK = 1 << 15
"""Rows that a thread predicts at once: few enough for its cache, enough to make the cost of a call negligible."""
EXPLAINED_ROWS = (50, 1000)
"""The least and the largest number of rows of a forecast with contributions."""
EXPLAINED_LEAVES = 2_500_000
"""The largest product of explained rows and leaves of trees, which takes about a second on one core. With many trees, fewer
rows are explained; if even `EXPLAINED_ROWS[0]` rows are too many, fewer of the member's models explain them."""
LEAST_OF_LARGEST = 0.01
Result = TypeVar("Result")


def library_module(library: str) -> ModuleType:
    """The module of this package that calls the library; importing it loads the library."""
    return importlib.import_module(MODULES[library])


def model_files(file: str, number: int) -> list[str]:
    """The files of a member with `number` models: `file` for one, and model.0.txt, model.1.txt … for several."""
    stem, suffix = file.split(".")
    return [file] if number == 1 else [f"{stem}.{position}.{suffix}" for position in range(number)]


def average_predictions(output: str, predictions: list[np.ndarray]) -> np.ndarray:
    """The mean prediction of several models; probabilities are averaged as log odds, those of classes as logs.

    So the mean contributions of the models sum to the log odds of the result, except where the following changes them. A
    probability counts as at least `LEAST_OF_LARGEST` times the largest one of the models: a model whose rows lacked a class
    gives it a probability near 0.
    """
    if len(predictions) == 1:
        return predictions[0]
    if output == "probability":
        lowest, highest = functools.reduce(np.minimum, predictions), functools.reduce(np.maximum, predictions)
        least, most = np.maximum(LEAST_OF_LARGEST * highest, 1e-7), np.minimum(1 - LEAST_OF_LARGEST * (1 - lowest), 1 - 1e-7)
        clipped = [np.clip(prediction, least, most) for prediction in predictions]
        predictions = [np.log(share) - np.log1p(-share) for share in clipped]
    if output == "probabilities":
        least = np.maximum(LEAST_OF_LARGEST * functools.reduce(np.maximum, predictions), 1e-12)
        predictions = [np.log(np.maximum(shares, least)) for shares in predictions]
    # One model after the other: with a sum over an axis, the last bits of a row depend on the number of rows
    return from_raw(output, functools.reduce(np.add, predictions) / len(predictions))


@functools.lru_cache(maxsize=100)  # a service that runs for weeks must not keep all warnings
def warn_once(warning: str, data: str) -> None:
    """Print a warning about a folder of data, once: members that learned from the same rows give the same warnings."""
    print(f"warning: {warning}", file=sys.stderr)


class TreeMember:
    """A member in memory. Checksums are compared before it is loaded: XGBoost and LightGBM abort on a damaged model.

    Splits after blend, such as test and forecast, are predicted by the member in its folder `newest`, if there is one: its
    trees also learned blend, so they must not predict it. Raises `UserError` for a folder that is no valid member.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self._summary = folders.read_json(self.folder / "summary.json")
        model = folders.verify(self.folder)["fingerprint"]
        self._config = {**folders.read_json(self.folder / "config.json"), "model": model}
        self._library = library_module(self._summary["kind"])
        files = model_files(self._library.FILE, self._summary.get("models", 1))
        boosters = [self._library.load(self.folder / file) for file in files]
        self._names = names = self._library.feature_names(boosters[0])
        scalings = Scaling.all_from_summary(self._summary, len(files))
        encodings = target_encoding.load(self.folder, names, len(files))
        self._models = list(zip(boosters, scalings, encodings, strict=True))
        self._seen = SeenValues.load(self.folder, names)
        self._newest: TreeMember | None = None
        if (self.folder / folders.NEWEST).is_dir():
            self._newest = TreeMember(self.folder / folders.NEWEST)
            self._newest._config = self._config

    def predict(self, data: str | Path, split: str) -> dict[str, Any]:
        """The arguments of `predictions.Predictions` for a split; for a forecast, with contributions of the features.

        Raises `UserError` for data or a split that the member must not predict.
        """
        if split == out_of_fold.NAME:
            manifest = tree_manifest(data)
            inputs.refuse_foreign(self.folder, self._summary, data, manifest, split)
            columns = out_of_fold.read(self.folder, data, task_of(manifest), manifest["fingerprint"])
            return {**columns, **self._origin(manifest)}
        if self._newest and split not in inputs.LEARNED:
            return self._newest.predict(data, split)
        manifest, rows = self._open(data, split)
        blocks = list(in_blocks(lambda block: self._seen.predict(self.predict_features, block), rows))
        prediction, counts = np.concatenate([part for part, _ in blocks]), np.sum([counts for _, counts in blocks], axis=0)
        for warning in warnings(counts, rows.features, len(rows), split):
            warn_once(warning, str(data))
        weight = rows.task.weight
        return {
            **self._origin(manifest),
            "row_id": rows.column("row_id"),
            "target": rows.column(rows.task.target).astype(np.float64),
            "prediction": prediction.astype(np.float64),
            "group": rows.column(rows.task.group),
            "cluster": rows.column(rows.task.cluster),
            # A forecast is not scored, so it needs no weights
            **({"weight": rows.column(weight).astype(np.float64)} if weight and split != inputs.FORECAST else {}),
            "reasons": self._reasons(rows, prediction, manifest) if split == inputs.FORECAST else None,
        }

    def _origin(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The arguments of `predictions.Predictions` that describe the member and the data."""
        output = self._summary["output"]
        classes = {"classes": task_of(manifest).classes} if output == "probabilities" else {}
        data = {name: manifest[name] for name in ("recipe", "fingerprint")}
        return {"output": output, **classes, **data, "config": self._config}

    def write_contributions(self, data: str | Path, split: str, name: str, out: str | Path) -> Path:
        """Write contributions to OUT/NAME.SPLIT.contributions.parquet, and a picture beside it.

        Raises `UserError` as `predict` does, and for a file that cannot be written.
        """
        if self._newest and split not in inputs.LEARNED:
            return self._newest.write_contributions(data, split, name, out)
        manifest, rows = self._open(data, split)
        blocks = in_blocks(lambda block: (block.copy(), self.explain(block)), rows)
        metadata = {"recipe": manifest["recipe"], "split": split, "member": name, "fingerprint": manifest["fingerprint"]}
        output = self._summary["output"]
        learned = "probability" if self._summary.get("objective") == "binary" else output  # of another task it is a score
        metadata |= {"output": output, "unit": contributions.UNIT_OF[learned], "model": self._config["model"]}
        return contributions.write(Path(out) / f"{name}.{split}.contributions.parquet", rows, blocks, metadata)

    def predict_features(self, features: np.ndarray) -> np.ndarray:
        """Predictions in the target's unit, averaged over the models."""
        predictions = [
            scaling.value(self._library.predict(booster, encoding(features))) for booster, scaling, encoding in self._models
        ]
        return average_predictions(self._summary["output"], predictions)

    def _explained(self, num_classes: int) -> tuple[int, int]:
        """The number of rows of a forecast with contributions, and the number of models that compute them."""
        least, most = EXPLAINED_ROWS
        leaves = max(1, self._summary.get("trees", 1) * num_classes * self._config.get("max_leaves", 64))
        num_models = max(1, min(len(self._models), EXPLAINED_LEAVES // (least * leaves)))
        return max(least, min(most, EXPLAINED_LEAVES // (num_models * leaves))), num_models

    def explain(self, features: np.ndarray, classes: np.ndarray | None = None, num_models: int | None = None) -> np.ndarray:
        """Contributions (n, F + 1) for features (n, F); with several classes, to the likeliest class of each row.

        classes : other classes, (n, m), for a result of (n, m, F + 1). num_models : the number of models that are averaged,
        from the first; None for all.
        """
        if classes is None and self._summary["output"] == "probabilities":
            classes = self._seen.predict(self.predict_features, features)[0].argmax(axis=1)

        def explain(features: np.ndarray) -> np.ndarray:
            parts = [
                scaling.parts(contributions.of_classes(self._library.contributions(booster, encoding(features)), classes))
                for booster, scaling, encoding in self._models[:num_models]
            ]
            return parts[0] if len(parts) == 1 else np.mean(parts, axis=0)

        return self._seen.contributions(self.predict_features, explain, features)

    def _reasons(self, rows: TreeData, prediction: np.ndarray, manifest: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """For the first rows of a forecast, the features with the largest contributions.

        Their unit: log odds, the unit of the target, the score, or the value before the softmax of each of the two likeliest
        classes. Unknown values are left out.
        """
        num_rows, num_models = self._explained(prediction.shape[1] if prediction.ndim == 2 else 1)
        group = rows.column(rows.task.group) if rows.task.kind == "ranking" else None
        first = order_of_forecast(rows.column("row_id"), prediction, group, manifest.get("most_per_group"))[:num_rows]
        features = rows.take(first).matrix()
        classes = likeliest_classes(prediction[first])
        parts = self.explain(features, classes, num_models)[..., :-1].reshape(len(first), -1, len(rows.features))
        parts = np.where(self._seen.is_unknown(features)[:, None], 0, parts)
        return strongest_reasons(rows.features, features, parts, classes, first, len(prediction))

    def _open(self, data: str | Path, split: str) -> tuple[dict[str, Any], TreeData]:
        manifest = tree_manifest(data)
        rows = TreeData(data, split, manifest)
        if not len(rows):
            raise UserError(f"the split {split} of {data} has no rows: prepare data with rows in it")
        inputs.refuse_foreign(self.folder, self._summary, data, manifest, split)
        if rows.features != self._names:
            raise UserError(
                f"{data} has the features {', '.join(rows.features)}, but {self.folder} learned {', '.join(self._names)}: "
                "prepare the same features in the same order"
            )
        return manifest, rows


def in_blocks(work: Callable[[np.ndarray], Result], rows: TreeData) -> Iterator[Result]:
    """The results of `work` for the features (n, F) float32 of each block of rows, in order; `work` must not keep them.

    The libraries need the columns as a matrix. Each thread fills the matrix of its own block just before it predicts. So the
    matrices are filled in parallel, and are still in the cache. Only a few blocks are in memory at a time.
    """
    num_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    num_rows = max(1, min(ROWS_PER_BLOCK, math.ceil(len(rows) / num_threads)))
    thread_values = threading.local()

    def fill_and_work(block: pa.RecordBatch) -> Result:
        if not hasattr(thread_values, "matrix"):  # allocating a matrix for each block would take longer than filling it
            thread_values.matrix = np.empty((num_rows, len(rows.features)), np.float32)
        features = thread_values.matrix[: block.num_rows]
        for number, column in enumerate(block.columns):
            features[:, number] = column.to_numpy(zero_copy_only=False)
        return work(features)

    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        for block in rows.feature_table().to_batches(max_chunksize=num_rows):
            waiting.append(pool.submit(fill_and_work, block))
            if len(waiting) > 2 * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
