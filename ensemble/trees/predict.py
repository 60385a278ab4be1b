"""A trained tree member, asked for its predictions.

    python scripts/predict.py member=runs/demo/members/xgboost data=runs/demo/prepared out=runs/demo/predictions

Call `threads.settle` before a member is loaded.
"""

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
from ensemble.data.reasons import EXPLAINED_CLASSES, order_of_forecast, strongest_reasons
from ensemble.task import task_of
from ensemble.trees import contributions, target_encoding
from ensemble.trees.rows import TreeData, description
from ensemble.trees.scaling import Scaling
from ensemble.trees.target_encoding import TargetEncoding
from ensemble.trees.unknown import Known, sentences

MODULES = {"xgboost": "ensemble.trees.xgb", "lightgbm": "ensemble.trees.lgbm", "catboost": "ensemble.trees.cat"}
ROWS_PER_BLOCK = 1 << 15
"""Rows that a thread stacks and predicts at once: few enough to stay in its cache, enough for a call to cost little."""
ROWS_WITH_REASONS = (50, 1000)
"""Rows of a forecast that are explained: at least, and at most."""
LEAVES_EXPLAINED = 2_500_000
"""Rows times leaves of the trees that explain them, which take about a second on one core. With many trees fewer rows are
explained, and where even the fewest rows are too many, by fewer of the member's models."""
Found = TypeVar("Found")


def module_of(library: str) -> ModuleType:
    """The one that speaks with the library; loads it."""
    return importlib.import_module(MODULES[library])


def model_files(file: str, number: int) -> list[str]:
    """Names of the files of a member with so many models: `file` for one, and model.0.txt, model.1.txt … for several."""
    stem, suffix = file.split(".")
    return [file] if number == 1 else [f"{stem}.{position}.{suffix}" for position in range(number)]


def mean_of(output: str, predictions: list[np.ndarray]) -> np.ndarray:
    """The mean of the predictions of several models: of probabilities, that of their log odds, or of their logs.

    The result's log odds are then the sum of the models' mean contributions.
    """
    if len(predictions) == 1:
        return predictions[0]
    if output == "probability":
        clipped = [np.clip(of, 1e-7, 1 - 1e-7) for of in predictions]
        return 1 / (1 + np.exp(-np.mean([np.log(of) - np.log1p(-of) for of in clipped], axis=0)))
    if output == "probabilities":
        logs = np.mean([np.log(np.maximum(of, 1e-12)) for of in predictions], axis=0)
        odds = np.exp(logs - logs.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)
    return np.mean(predictions, axis=0)


class TreeMember:
    """A member in memory; the manifest's checksums are compared first, for on a damaged model both libraries abort.

    Raises `UserError` for a folder that is no sound member.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self._summary = folders.read_json(self.folder / "summary.json")
        model = folders.verify(self.folder)["fingerprint"]
        self._config = {**folders.read_json(self.folder / "config.json"), "model": model}
        self._library = module_of(self._summary["kind"])
        files = model_files(self._library.FILE, self._summary.get("models", 1))
        self._boosters = [self._library.load(self.folder / file) for file in files]
        self._scalings = Scaling.all_in_summary(self._summary, len(files))
        names = self._library.feature_names(self._boosters[0])
        self._encodings = target_encoding.load(self.folder, names, len(files))
        self._known = Known.load(self.folder, names)

    def predict(self, data: str | Path, split: str) -> dict[str, Any]:
        """Predictions of a split, and of the forecast what features contribute to them, for `predictions.Predictions`.

        Raises `UserError` for data or a split that it must not predict.
        """
        if split == out_of_fold.NAME:
            return self._out_of_fold(data)
        about, rows = self._open(data, split)
        blocks = list(in_blocks(lambda block: self._known.predict(self._ask, block), rows))
        prediction, counts = np.concatenate([of for of, _ in blocks]), np.sum([counts for _, counts in blocks], axis=0)
        for sentence in sentences(counts, rows.features, len(rows), split):
            print(f"warning: {sentence}", file=sys.stderr)
        output = self._summary["output"]
        return {
            "row_id": rows.column("row_id"),
            "target": rows.column(rows.task.target).astype(np.float64),
            "prediction": prediction.astype(np.float64),
            "output": output,
            **({"classes": rows.task.classes} if output == "probabilities" else {}),
            "group": rows.column(rows.task.group),
            "cluster": rows.column(rows.task.cluster),
            **self._weight(rows, split),
            "recipe": about["recipe"],
            "fingerprint": about["fingerprint"],
            "config": self._config,
            "reasons": self._reasons(rows, prediction) if split == inputs.FORECAST else None,
        }

    def _out_of_fold(self, data: str | Path) -> dict[str, Any]:
        about = description(data)
        inputs.refuse_foreign(self.folder, self._summary, data, about, out_of_fold.NAME)
        task, output = task_of(about), self._summary["output"]
        return {
            **out_of_fold.read(self.folder, data, task, about["fingerprint"]),
            "output": output,
            **({"classes": task.classes} if output == "probabilities" else {}),
            "recipe": about["recipe"],
            "fingerprint": about["fingerprint"],
            "config": self._config,
        }

    def _weight(self, rows: TreeData, split: str) -> dict[str, np.ndarray]:
        """The weights of the rows, where the task has some; a forecast is not scored, so its rows need none."""
        if not rows.task.weight or split == inputs.FORECAST:
            return {}
        return {"weight": rows.column(rows.task.weight).astype(np.float64)}

    def write_contributions(self, data: str | Path, split: str, name: str, out: str | Path) -> Path:
        """Each feature's part of each prediction, to OUT/NAME.SPLIT.contributions.parquet, and a picture beside it.

        Raises `UserError` as `predict` does, and for a file that cannot be written.
        """
        about, rows = self._open(data, split)
        blocks = in_blocks(lambda block: (block.copy(), self._contributions(block)), rows)
        words = {"recipe": about["recipe"], "split": split, "member": name, "fingerprint": about["fingerprint"]}
        words["output"], words["model"] = self._summary["output"], self._config["model"]
        return contributions.write(Path(out) / f"{name}.{split}.contributions.parquet", rows, blocks, words)

    def _ask(self, features: np.ndarray) -> np.ndarray:
        """Predictions in the target's unit, those of several models averaged."""
        predicted = [
            scale.value(self._library.predict(model, encoding(features))) for model, scale, encoding in self._models()
        ]
        return mean_of(self._summary["output"], predicted)

    def _models(self) -> list[tuple[Any, Scaling, TargetEncoding]]:
        return list(zip(self._boosters, self._scalings, self._encodings, strict=True))

    def _explained(self, num_classes: int) -> tuple[int, int]:
        """The number of rows of a forecast that are explained, and by how many models."""
        least, most = ROWS_WITH_REASONS
        leaves = max(1, self._summary["trees"] * num_classes * self._config.get("max_leaves", 64))
        num_models = max(1, min(len(self._boosters), LEAVES_EXPLAINED // (least * leaves)))
        return max(least, min(most, LEAVES_EXPLAINED // (num_models * leaves))), num_models

    def _contributions(
        self, features: np.ndarray, of_class: np.ndarray | None = None, num_models: int | None = None
    ) -> np.ndarray:
        """Of features (n, F) those of the likeliest class, (n, F + 1), or of the classes `of_class`, (n, m, F + 1).

        num_models : the first ones, whose mean it is; None for all.
        """
        if of_class is None and self._summary["output"] == "probabilities":
            of_class = self._known.predict(self._ask, features)[0].argmax(axis=1)

        def explain(features: np.ndarray) -> np.ndarray:
            parts = [
                scale.parts(self._library.contributions(model, encoding(features), of_class))
                for model, scale, encoding in self._models()[:num_models]
            ]
            return parts[0] if len(parts) == 1 else np.mean(parts, axis=0)

        return self._known.contributions(self._ask, explain, features)

    def _reasons(self, rows: TreeData, prediction: np.ndarray) -> list[list[dict[str, Any]]]:
        """For the first rows of a forecast, the features that contribute most (TreeSHAP): in log odds, in the unit of the
        target, in the score, or before the softmax to each of the two likeliest classes. A value that training never had is
        no reason.
        """
        reasons: list[list[dict[str, Any]]] = [[] for _ in prediction]
        is_classes = prediction.ndim == 2
        num_rows, num_models = self._explained(prediction.shape[1] if is_classes else 1)
        group = rows.column(rows.task.group) if rows.task.kind == "ranking" else None
        first = order_of_forecast(rows.column("row_id"), prediction, group)[:num_rows]
        features = np.stack([rows.column(name)[first] for name in rows.features], axis=1)
        classes = np.argsort(-prediction[first], axis=1, kind="stable")[:, :EXPLAINED_CLASSES] if is_classes else None
        parts = self._contributions(features, classes, num_models)[..., :-1].reshape(len(first), -1, len(rows.features))
        parts = np.where(self._known.unknown(features)[:, None], 0, parts)
        for row, of_row in zip(first.tolist(), strongest_reasons(rows.features, features, parts, classes), strict=True):
            reasons[row] = of_row
        return reasons

    def _open(self, data: str | Path, split: str) -> tuple[dict[str, Any], TreeData]:
        about = description(data)
        rows = TreeData(data, split, about)
        inputs.refuse_foreign(self.folder, self._summary, data, about, split)
        return about, rows


def in_blocks(work: Callable[[np.ndarray], Found], rows: TreeData) -> Iterator[Found]:
    """What `work` makes of the features (n, F) float32 of each block of rows, in their order; it must not keep them.

    Columns must be stacked to a matrix for the libraries. Each thread does so for its own blocks, just before it works on
    them on its own: then this is as parallel as the trees, and the matrix is still in the cache. Few blocks are in memory.
    """
    num_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    num_rows = max(1, min(ROWS_PER_BLOCK, math.ceil(len(rows) / num_threads)))
    own = threading.local()

    def stack(block: pa.RecordBatch) -> Found:
        if not hasattr(own, "matrix"):  # new pages for each block would take longer than filling them
            own.matrix = np.empty((num_rows, len(rows.features)), np.float32)
        features = own.matrix[: block.num_rows]
        for number, column in enumerate(block.columns):
            features[:, number] = column.to_numpy(zero_copy_only=False)
        return work(features)

    waiting: deque[Future[Found]] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        for block in rows.feature_table().to_batches(max_chunksize=num_rows):
            waiting.append(pool.submit(stack, block))
            if len(waiting) > 2 * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
