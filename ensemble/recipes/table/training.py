"""Training of TabM on tables, and on any data with flat features: a copy of the network for each fold, all in one launch.

    accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py --recipe table \
        data=runs/steps/prepared out=runs/steps/members/tabm

Copy c of the network is fitted on the rows `fit` of fold c, and predicts the rows `held` (see data/cross_validation.py). For
early stopping it predicts the rows `stop`; the score of these predictions of all copies chooses one step for all copies. The
quantiles, bins, known categories and target scale of a copy are computed from its `fit` rows. They are buffers of the model,
so that a checkpoint is sufficient to predict new rows.

With data without cross-validation, one copy is trained on the split train and stopped by the split validation. The
relevances of a ranking are a regression target.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ensemble.arrow import Column, open_table
from ensemble.commands import imports
from ensemble.data import inputs
from ensemble.data.cross_validation import SPLIT, CrossValidation, Fold
from ensemble.data.reasons import likeliest_classes, order_of_forecast, strongest_reasons
from ensemble.errors import UserError
from ensemble.neural.loader import Batch
from ensemble.neural.prepared import PreparedRecipe, PreparedRows
from ensemble.recipe import Size
from ensemble.recipes.table import encoding, shapley, sizes
from ensemble.recipes.table.settings import RecipeConfig
from ensemble.task import ABSOLUTE_ERROR, Task, task_of

with imports.without("sklearn"):  # rtdl_num_embeddings imports it only for embeddings that are not used here
    from ensemble.recipes.table.model import LARGEST_ONE_HOT, Copies, Network, Shape, rows_of_copies

ANY_FEATURES = True
"""This network can be trained on prepared data of any recipe with a task and flat features."""
OUT_OF_FOLD, VALIDATION, FORECAST = "oof", "validation", inputs.FORECAST
BY_LOSS = {
    "binary": ("log_loss", False, "probability"),
    "multiclass": ("multiclass_log_loss", False, "probabilities"),
    "regression": ("root_mean_squared_error", False, "value"),
    ABSOLUTE_ERROR: ("mean_absolute_error", False, "value"),
    "ranking": ("ndcg_at_10", True, "score"),
}
"""By name of the loss: the metric that chooses the step, whether higher is better, and the type of the predictions."""
LEAST_EXPLAINED, MOST_EVALUATED = 50, 16_000
"""Reasons are computed for at least the first number of forecast rows, and for more if they need at most about the second
number of evaluations of the network, some seconds on one core. The latter also limits the importance of the features."""
EXPLAINING_COPIES = 2
"""Number of copies whose predictions are explained, to limit the time."""
LEAST_REFERENCES, NUM_REFERENCES = 2, 8
MOST_VALUES = 50_000_000
"""The largest number of values, evaluations × features, for reasons, some four seconds on one core. With more than 350
features there are fewer references for this, and then fewer rows: 41 rows of 1,107 features took 29 s."""


class FlatRows(PreparedRows):
    """Rows of a split, each with the copies that process it."""

    def __init__(self, folder: Path, stored: str, names: tuple[list[str], list[str]], task: Task, uses: np.ndarray,
                 rows: np.ndarray | None = None):  # fmt: skip
        table = open_table(folder / "rows" / stored)
        self.numbers, self.codes = ([Column(table, name) for name in features] for features in names)
        column_of = {"row_id": "row_id", "target": task.target, "group": task.group, "cluster": task.cluster}
        column_of |= {"weight": task.weight} if task.weight and task.weight in table.column_names else {}
        self.columns = {name: Column(table, column) for name, column in column_of.items()}
        self.row_numbers = rows
        """Row numbers in the stored split; None for all of them."""
        self.uses = np.broadcast_to(uses, (len(self), uses.shape[-1]))
        """Which copies process a row, (num_rows, num_copies) bool. The argument may be (num_copies,) for all rows."""

    def __len__(self) -> int:
        return super().__len__() if self.row_numbers is None else len(self.row_numbers)

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        """For B rows and C copies: numbers and codes (B, …) float32, uses (B, C) bool, target (B,) float64, weight (B,)
        float32, group (B,) int64."""
        stored = rows if self.row_numbers is None else self.row_numbers[rows]
        columns = {name: self.columns[name].take(stored) for name in self.columns.keys() - {"row_id", "cluster"}}
        weight = columns.get("weight", np.ones(len(rows)))
        batch = {
            "numbers": _stacked(self.numbers, stored),
            "codes": _stacked(self.codes, stored),
            "uses": self.uses[rows],
            "target": columns["target"].astype(np.float64),
            "weight": weight.astype(np.float32),
            "group": columns["group"].astype(np.int64),
        }
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def column(self, name: str) -> np.ndarray:
        """A whole column of these rows."""
        values = self.columns[name].all()
        return values if self.row_numbers is None else values[self.row_numbers]


class TabularNetwork(PreparedRecipe[RecipeConfig, FlatRows]):
    """The methods of `recipe.NeuralRecipe` for tables. Raises `UserError` if the settings do not fit the data."""

    name = "table"

    def __init__(self, config: RecipeConfig, data: str | Path):
        sizes.check(config)
        super().__init__(config, data)
        features = self.manifest.get("features")
        if not features:
            raise UserError(
                f"{data} has no flat features for this network, since it was prepared for the recipe "
                f"{self.manifest['recipe']}: train the network of that recipe with --recipe {self.manifest['recipe']}"
            )
        self.task = task_of(self.manifest)
        self.cross_validation = CrossValidation.from_manifest(self.manifest)
        num_rows = self.manifest["splits"].get("train", {"rows": 0})["rows"]
        self.config = sizes.of_network(config, self.task, num_rows, len(features), self.cross_validation)
        self.monitor, self.higher_is_better, self.output = BY_LOSS[self.task.loss]
        self.categories = {entry["name"]: int(entry["categories"]) for entry in features if entry.get("categories")}
        numbers = [entry["name"] for entry in features if entry["name"] not in self.categories]
        self.names = numbers, list(self.categories)

    @property
    def num_copies(self) -> int:
        """The number of copies: one for each fold, and with new_rows=refit one more that is fitted on all rows."""
        return self.config.num_copies + (self.config.new_rows == "refit")

    def choose(self, config: Any) -> Any:
        """Replace settings that are 0 or auto by values that follow from the task and the numbers of rows and features.

        Raises `UserError` if `new_rows` or `num_copies` does not fit the data.
        """
        if self.config.new_rows == "refit" and not self.cross_validation:
            raise UserError(f"recipe.new_rows=refit needs cross-validation, which {self.folder} does not have: leave it out")
        expected = self.cross_validation.num_folds if self.cross_validation else 1
        if self.config.num_copies != expected:
            raise UserError(f"recipe.num_copies={self.config.num_copies}, but {self.folder} needs {expected}: leave it out")
        chosen = dataclasses.replace(config, recipe=self.config)
        return sizes.of_training(chosen, self.task.kind, len(self.rows(SPLIT)))

    def model(self) -> Copies:
        """A new model; each copy has the scales of the rows that it is fitted on, if the data have a train split."""
        config, task = self.config, self.task
        shape = Shape(
            num_numbers=len(self.names[0]),
            categories=tuple(self.categories.values()),
            num_outputs=len(task.classes) if task.kind == "multiclass" else 1,
            num_knots=encoding.NUM_KNOTS,
            num_bins=config.num_bins,
            embedding_size=config.embedding_size,
            num_submodels=config.num_submodels,
            width=config.width,
            num_layers=config.num_layers,
            dropout=config.dropout,
        )
        model = Copies(shape, self.num_copies)
        if SPLIT in self.manifest["splits"]:
            rows = self.rows(SPLIT)
            numbers, codes = ([column.all() for column in columns] for columns in (rows.numbers, rows.codes))
            target = rows.columns["target"].all()
            for number, network in enumerate(model.copies):
                assert isinstance(network, Network)
                fit = self._fit(number)
                set_scales(network, [values[fit] for values in numbers], [values[fit] for values in codes])
                if task.kind in ("regression", "ranking"):
                    fit_target = target[fit].astype(np.float64)
                    model.mean[number], deviation = fit_target.mean(), fit_target.std()
                    model.deviation[number] = deviation if deviation > 0 else 1.0
        return model

    def step(self, model: torch.nn.Module, batch: Batch, state: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """The sum of the losses of all pairs of a copy and a row that it is fitted on, and the number of pairs.

        The loss of a pair is the mean over the submodels of the copy, times the row's weight relative to the mean weight.
        """
        uses = batch["uses"]
        used_rows = rows_of_copies(uses)
        outputs = model(batch["numbers"], batch["codes"], used_rows)
        weight = batch["weight"] / self._mean_weight
        scales = _scales(model)
        total = torch.zeros((), device=weight.device)
        for number, (output, rows) in enumerate(zip(outputs, used_rows, strict=True)):
            total = total + (self._loss(output.float(), batch["target"][rows], scales[:, number]) * weight[rows]).sum()
        return total, uses.sum().float(), state

    def predict(self, model: torch.nn.Module, batch: Batch) -> Batch:
        uses, kind, scales = batch["uses"], self.task.kind, _scales(model)
        used_rows = rows_of_copies(uses)
        outputs = model(batch["numbers"], batch["codes"], used_rows)
        total = torch.zeros(len(uses), outputs[0].shape[-1], dtype=torch.float64, device=uses.device)
        for number, (output, rows) in enumerate(zip(outputs, used_rows, strict=True)):
            output = output.float()
            if kind == "binary":
                total[rows] += output.sigmoid().mean(dim=1).double()
            elif kind == "multiclass":
                total[rows] += output.softmax(dim=2).mean(dim=1).double()
            else:
                mean, deviation = scales[:, number]
                total[rows] += output.mean(dim=1).double() * deviation + mean
        prediction = total / uses.sum(dim=1, keepdim=True)
        weight = {"weight": batch["weight"].double()} if self.task.weight else {}
        prediction = prediction if kind == "multiclass" else prediction[:, 0]
        return {"prediction": prediction, "target": batch["target"], "group": batch["group"], **weight}

    def importance(self, model: Copies) -> dict[str, Any] | None:
        """The importance of the features by permutation of out-of-fold rows.

        None for a ranking, for data without cross-validation, and for many features.
        """
        from ensemble.metrics import permutation

        if self.task.kind == "ranking" or not self.cross_validation:
            return None
        rows, names = self.rows(OUT_OF_FOLD), [*self.names[0], *self.names[1]]

        def columns(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
            batch = rows.gather(numbers)
            weight = batch["weight"].double().numpy() if self.task.weight else None
            return batch["target"].numpy(), batch["group"].numpy(), weight

        def features(numbers: np.ndarray) -> np.ndarray:
            batch = rows.gather(numbers)
            return torch.cat([batch["numbers"], batch["codes"]], dim=1).numpy()

        copies = range(self.config.num_copies)
        return permutation.importance(
            self.task.metric,
            names,
            [np.flatnonzero(rows.uses[:, copy]) for copy in copies],
            [functools.partial(self._predicted, model, [copy]) for copy in copies],
            MOST_EVALUATED // (len(names) + 1),
            features,
            columns,
        )

    def reasons(self, model: Copies, prediction: np.ndarray) -> list[list[dict[str, Any]]]:
        """The features that contribute most to the first rows of the split forecast, by shapley.py.

        Contributions are in log odds, in the unit of the target, or in log probabilities of the most probable classes.
        prediction : of all n rows of the forecast, (n,), or (n, K) for K classes.
        """
        rows, names = self.rows(FORECAST), [*self.names[0], *self.names[1]]
        variants = len(names) + 1
        affordable = max(1, MOST_VALUES // variants**2)  # pairs of a row and a reference
        num_references = int(np.clip(affordable // LEAST_EXPLAINED, LEAST_REFERENCES, NUM_REFERENCES))
        least_rows = min(LEAST_EXPLAINED, max(1, affordable // num_references))
        num_rows = max(least_rows, MOST_EVALUATED // (NUM_REFERENCES * variants))
        group = rows.column("group") if self.task.kind == "ranking" else None
        first = order_of_forecast(rows.column("row_id"), prediction, group, self.manifest.get("most_per_group"))[:num_rows]
        features = np.concatenate([_stacked(rows.numbers, first), _stacked(rows.codes, first)], axis=1)
        explaining = np.flatnonzero(rows.uses[0])[:EXPLAINING_COPIES]
        references = model.copies[explaining[0]].references(num_references)

        def predict(values: np.ndarray) -> np.ndarray:
            output = self._predicted(model, explaining, values)
            clipped = np.clip(output, 1e-7, 1 - 1e-7)
            if self.task.kind == "binary":
                return np.log(clipped / (1 - clipped))[:, None]
            return np.log(clipped) if self.task.kind == "multiclass" else output[:, None]

        contributions = shapley.values(predict, features, references).transpose(0, 2, 1)
        classes = likeliest_classes(prediction[first])
        if classes is not None:
            contributions = np.take_along_axis(contributions, classes[:, :, None], axis=1)
        return strongest_reasons(names, features, contributions, classes, first, len(prediction))

    def _predicted(self, model: Copies, copies: Sequence[int] | np.ndarray, values: np.ndarray) -> np.ndarray:
        """The mean predictions of some copies for rows of features, (n, F): (n,), or (n, K) for K classes."""
        device, was_training = next(model.parameters()).device, model.training
        uses = torch.zeros(self.num_copies, dtype=torch.bool)
        uses[torch.as_tensor(copies)] = True
        model.eval()
        predictions = []
        for begin in range(0, len(values), shapley.ROWS_AT_ONCE):
            block = torch.from_numpy(values[begin : begin + shapley.ROWS_AT_ONCE])
            batch = {
                "numbers": block[:, : len(self.names[0])],
                "codes": block[:, len(self.names[0]) :],
                "uses": uses.expand(len(block), -1),
                **dict.fromkeys(("target", "weight", "group"), torch.zeros(len(block))),
            }
            with torch.no_grad():
                on_device = {name: tensor.to(device) for name, tensor in batch.items()}
                predictions.append(self.predict(model, on_device)["prediction"].cpu().numpy())
        model.train(was_training)
        return np.concatenate(predictions)

    def metrics(self, predictions: dict[str, np.ndarray]) -> dict[str, float]:
        from ensemble.metrics import METRIC_FUNCTIONS
        from ensemble.metrics.weighting import relative_weights

        columns = [predictions[name] for name in ("target", "prediction", "group")]
        weight = relative_weights(predictions.get("weight"))
        names = dict.fromkeys((self.monitor, self.task.metric))
        return {name: float(METRIC_FUNCTIONS[name].function(*columns, weight)) for name in names}

    def describe(self, split: str) -> dict[str, np.ndarray]:
        rows = self.rows(split)
        return {name: rows.column(name) for name in ("row_id", "group", "cluster")}

    def size(self, num_rows: int) -> Size:
        config, num_outputs = self.config, max(1, len(self.task.classes))
        num_codes = [number + 1 for number in self.categories.values()]  # one code is for missing values
        sizes_of_inputs = (size if size <= LARGEST_ONE_HOT else LARGEST_ONE_HOT // 2 for size in num_codes)
        num_inputs = len(self.names[0]) * config.embedding_size + sum(sizes_of_inputs)
        layers = (num_inputs + 1) * config.width + (config.num_layers - 1) * (config.width + 1) * config.width
        heads = config.num_submodels * (num_inputs + (config.width + 1) * num_outputs)
        embeddings = len(self.names[0]) * (config.num_bins + 3) * config.embedding_size
        if max(num_codes, default=0) > LARGEST_ONE_HOT:
            embeddings += sum(num_codes) * LARGEST_ONE_HOT // 2
        activations = 2 * config.num_submodels * config.width * config.num_layers + num_inputs
        return Size(
            num_parameters=self.num_copies * (layers + heads + embeddings),
            # 4 bytes per float32; about half of the copies process a row
            batch_bytes=2 * num_rows * self.num_copies * activations,
            settings=tuple(
                f"recipe.{name}" for name in ("num_submodels", "width", "num_layers", "embedding_size", "num_bins")
            ),
        )

    def _loss(self, output: torch.Tensor, target: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """The mean loss of the k submodels of a copy, with outputs (b, k, num_outputs), for each of its b rows, (b,)."""
        num_submodels = output.shape[1]
        if self.task.kind == "multiclass":
            classes = target.long().repeat_interleave(num_submodels)
            return F.cross_entropy(output.flatten(0, 1), classes, reduction="none").view(-1, num_submodels).mean(dim=1)
        if self.task.kind == "binary":
            expected = target.float()[:, None].expand(-1, num_submodels)
            return F.binary_cross_entropy_with_logits(output[..., 0], expected, reduction="none").mean(dim=1)
        mean, deviation = scale
        expected = ((target - mean) / deviation).float()
        errors = output[..., 0] - expected[:, None]
        return (errors.abs() if self.task.loss == ABSOLUTE_ERROR else errors.square()).mean(dim=1)

    @functools.cached_property
    def _mean_weight(self) -> float:
        return float(self.rows(SPLIT).column("weight").mean(dtype=np.float64)) if self.task.weight else 1.0

    def _fit(self, copy: int) -> np.ndarray:
        """The rows of the train split that a copy is fitted on."""
        if self.cross_validation and copy < self.config.num_copies:
            return self._folds[copy].fit
        return np.arange(len(self.rows(SPLIT).columns["row_id"]))

    @functools.cached_property
    def _folds(self) -> list[Fold]:
        assert self.cross_validation
        return self.cross_validation.folds(self.folder, self.task.cluster)

    def stored_split(self, split: str) -> str:
        return SPLIT if self.cross_validation and split in (OUT_OF_FOLD, VALIDATION) else split

    def open_rows(self, split: str) -> FlatRows:
        stored = self.stored_split(split)
        if not self.cross_validation or stored != SPLIT:
            uses = np.arange(self.num_copies) >= (self.config.num_copies if self.config.new_rows == "refit" else 0)
            return FlatRows(self.folder, stored, self.names, self.task, uses)
        uses = np.zeros((self.manifest["splits"][SPLIT]["rows"], self.num_copies), bool)
        for number, fold in enumerate(self._folds):
            uses[{OUT_OF_FOLD: fold.held, VALIDATION: fold.stop}.get(split, fold.fit), number] = True
        if split == SPLIT:
            uses[:, self.config.num_copies :] = True
        rows = np.flatnonzero(uses.any(axis=1))
        return FlatRows(self.folder, stored, self.names, self.task, uses[rows], rows)


make = TabularNetwork


def _scales(model: torch.nn.Module) -> torch.Tensor:
    """Mean and standard deviation of the target in the rows of each copy, (2, C) float64."""
    copies: Any = getattr(model, "module", model)
    return torch.stack([copies.mean, copies.deviation])


def set_scales(network: Network, numbers: list[np.ndarray], codes: list[np.ndarray]) -> None:
    """Set the buffers of a copy from the rows that it is fitted on: quantiles and bins of numbers, and known categories."""
    if numbers:
        scales = [encoding.fit(values, network.shape.num_bins) for values in numbers]
        for name in ("knots", "segments", "edges"):
            getattr(network, name).copy_(torch.from_numpy(np.stack([getattr(scale, name) for scale in scales])))
    if codes:
        seen = []
        for values, num_categories in zip(codes, network.shape.categories, strict=True):
            known = np.isfinite(values) & (values >= 0) & (values < num_categories)
            counts = np.bincount(values[known].astype(np.int64), minlength=num_categories)
            seen.append(np.append(counts, (~known).sum()) / max(1, len(values)))
        network.seen.copy_(torch.from_numpy(np.concatenate(seen)))


def _stacked(columns: list[Column], rows: np.ndarray) -> np.ndarray:
    """Columns of some rows as a matrix, (num_rows, number of columns) float32."""
    if not columns:
        return np.empty((len(rows), 0), np.float32)
    return np.stack([column.take(rows) for column in columns], axis=1).astype(np.float32, copy=False)
