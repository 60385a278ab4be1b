"""The metrics as classes of Hugging Face's `evaluate`."""

import sys
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ensemble.errors import UserError
from ensemble.metrics import binary_scores


def binary_metric(**options: Any) -> Any:
    """`binary_scores` as an `evaluate.Metric` that works offline: compute(predictions=…, references=…, group=…).

    options : for `evaluate.Metric` (keep_in_memory, num_process, process_id, experiment_id, cache_dir, …).

    With keep_in_memory=True the cache is a temporary folder, which is deleted before this function returns. Raises
    `UserError` if the cache cannot be written.
    """
    import datasets

    # `evaluate` imports these for pipelines that are not used here; their import would take seconds
    unused = [name for name in ("scipy", "transformers") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(unused))  # type: ignore[arg-type]
    import evaluate

    for name in unused:
        del sys.modules[name]

    class BinaryMetric(evaluate.Metric):
        def _info(self) -> evaluate.MetricInfo:
            columns = {"predictions": "float64", "references": "int64", "group": "int64"}
            return evaluate.MetricInfo(
                description="Scores of probabilities: see ensemble/metrics",
                citation="",
                inputs_description="predictions: probabilities; references: 0 or 1; group: a number, such as the week",
                features=datasets.Features({name: datasets.Value(kind) for name, kind in columns.items()}),
            )

        def _compute(self, *, predictions: Any, references: Any, group: Any) -> dict[str, float]:
            return binary_scores(np.asarray(references), np.asarray(predictions), np.asarray(group))

    try:
        with TemporaryDirectory() as cache:  # `evaluate` creates its cache even with keep_in_memory=True
            return BinaryMetric(**({"cache_dir": cache} if options.get("keep_in_memory") else {}) | options)
    except OSError as error:
        raise UserError(
            f"the cache of Hugging Face cannot be written ({error}): set HF_HOME, or TMPDIR if it is in a temporary folder, "
            "to a folder that you may write"
        ) from None
