"""Training of emulators: networks that learn the values of a model, and its derivatives if the data have them.

    python scripts/prepare_data.py --recipe emulator out=runs/emulator/prepared
    accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py --recipe emulator \
        data=runs/emulator/prepared out=runs/emulator/members/mlp recipe.jacobian_weight=0.1

The loss of an example is the mean over its outputs of the squared error, in standard deviations of the output, plus
`recipe.jacobian_weight` times the same mean for the product of the Jacobian with a random direction. A direction has an
entry ±d for each input, with random signs for each example and epoch. The expected term is therefore the sum over the inputs
of the squared errors of their derivatives, each times d². For sea ice, d is the standard deviation of the output divided by
the root mean square of the true derivative with respect to this input, so that all inputs have the same weight. For
Lorenz-96, d is the same for all points, such that the root mean square of the change of an output along a direction is one
standard deviation.
For a residual network, d is computed for outputs minus inputs instead of outputs.

Means and standard deviations are those of the whole training split, with the same bits on any number of ranks
(ensemble/data/statistics.py). They are buffers of the network, whose inputs and outputs are in physical units.
"""

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ensemble import configuration
from ensemble.arrow import Column, open_table, read_columns
from ensemble.data import statistics
from ensemble.data.inputs import LEARNED
from ensemble.data.splitmix import mixed
from ensemble.data.statistics import Statistics
from ensemble.errors import UserError
from ensemble.neural.loader import Batch
from ensemble.neural.prepared import PreparedRecipe, PreparedRows, num_parameters
from ensemble.recipe import Size
from ensemble.recipes.emulator import lorenz96, networks
from ensemble.recipes.emulator.settings import RecipeConfig

NUM_MEASURED = 1000
"""Number of training states of Lorenz-96 from which the size of directions is computed."""


class PairRows(PreparedRows):
    """The inputs and outputs of one split; with `sizes`, also random directions and the derivatives along them.

    sizes : (inputs,), the absolute values of the entries of a direction; None for no directions. In data without a column
    `jacobian`, the derivatives are those of Lorenz-96.
    """

    def __init__(self, folder: Path, split: str, sizes: np.ndarray | None):
        table = open_table(folder / "pairs" / split)
        self.columns = {name: Column(table, name) for name in table.column_names}
        self.sizes = sizes

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        """The float32 tensors `inputs` (B, I) and `outputs` (B, O); with `sizes`, also `direction` (B, I) and `change`
        (B, O), the product of the true Jacobian with it. A direction depends only on the row and the epoch.
        """
        arrays = {name: self.columns[name].take(rows) for name in ("inputs", "outputs")}
        if self.sizes is not None:
            direction = signs(rows, epoch, arrays["inputs"].shape[1]) * self.sizes
            arrays["direction"] = direction.astype(np.float32)
            if "jacobian" in self.columns:
                jacobian = self.columns["jacobian"].take(rows).reshape(len(rows), -1, direction.shape[1])
                change = np.einsum("boi,bi->bo", jacobian, direction)
            else:
                change = lorenz96.tangent(arrays["inputs"].astype(np.float64), direction)
            arrays["change"] = change.astype(np.float32)
        return {name: torch.from_numpy(values) for name, values in arrays.items()}


class Emulation(PreparedRecipe[RecipeConfig, PairRows]):
    """The methods of `recipe.NeuralRecipe` for emulator. Raises `UserError` if the settings do not fit the data."""

    name = "emulator"
    monitor, higher_is_better = "root_mean_squared_error", False
    output = "value"

    def __init__(self, config: RecipeConfig, data: str | Path):
        super().__init__(config, data)
        self.facts = self.manifest["emulator"]
        """The entry `emulator` of the manifest: system, formula, and the names of inputs and outputs."""
        self.is_residual = config.residual or config.network == "bilinear"
        self._check()
        self._weight: torch.Tensor | None = None

    def _check(self) -> None:
        """Raise `UserError` for settings that are impossible, in general or with these data."""
        config, system = self.config, self.facts["system"]
        num_inputs, num_outputs = (len(self.facts[name]) for name in ("inputs", "outputs"))
        is_ring, is_square = system == lorenz96.NAME, num_inputs == num_outputs
        configuration.check(
            config,
            "recipe.",
            widths=(len(config.widths) > 0 and min(config.widths) >= 1, "one number or more, each at least 1"),
            at_least_0="jacobian_weight",
            network=(is_ring or config.network != "bilinear", f"mlp: {system} has no states on a ring"),
            residual=(
                is_square or not config.residual,
                f"false unless there are as many outputs as inputs, not {num_outputs} and {num_inputs}",
            ),
            conserve=(
                not config.conserve or (is_square and len(config.conserve) == num_inputs and any(config.conserve)),
                f"empty, or with as many outputs as inputs a weight for each of the {num_inputs} inputs, not all of them 0",
            ),
            output=(
                config.output == "linear" or not (is_ring or self.is_residual),
                f"linear: the outputs of {system}, or their changes with residual, are not between 0 and 1",
            ),
        )
        weights = torch.tensor(config.conserve, dtype=torch.float32)
        if config.conserve and not 0 < float(weights @ weights) < math.inf:
            raise UserError(
                f"recipe.conserve: the sum of the squared weights is {float(weights @ weights):g} in float32, but the "
                "network divides by it: multiply all weights by the same factor"
            )
        if config.jacobian_weight and not self.facts["formula"]:
            raise UserError(
                f"recipe.jacobian_weight={config.jacobian_weight:g} needs true derivatives, and {self.folder} has none, "
                "since its files have no formula: set it to 0"
            )

    def open_rows(self, split: str) -> PairRows:
        has_directions = split == "validation" or (split in LEARNED and self.config.jacobian_weight > 0)
        return PairRows(self.folder, split, self._direction_sizes if has_directions and self.facts["formula"] else None)

    @functools.cached_property
    def statistics(self) -> tuple[Statistics, Statistics]:
        """Statistics of the training split's inputs and outputs; for a residual network, the second are of outputs - inputs.

        All ranks of a launched job must call this. Every point of a ring gets the statistics of all points together.
        """
        names = [*self.facts["inputs"], *self.facts["outputs"]]
        pairs = _Columns(open_table(self.folder / "pairs" / "train"), ("inputs", "outputs"), self.is_residual)
        merged = statistics.of_shards([pairs], **statistics.ranks(), names=names)
        num_inputs = len(self.facts["inputs"])
        inputs, outputs = merged.of_columns(slice(None, num_inputs)), merged.of_columns(slice(num_inputs, None))
        if self.facts["system"] == lorenz96.NAME:
            inputs, outputs = (part.of_all().repeated(len(part.mean)) for part in (inputs, outputs))
        return inputs, outputs

    @functools.cached_property
    def _direction_sizes(self) -> np.ndarray:
        """The absolute values of the entries of random directions, (inputs,). All ranks of a launched job must call this."""
        deviation = self.statistics[1].deviation
        table = open_table(self.folder / "pairs" / "train")
        if self.facts["system"] == lorenz96.NAME:
            states = Column(table, "inputs").take(np.arange(min(NUM_MEASURED, table.num_rows))).astype(np.float64)
            direction = signs(np.arange(len(states)), 0, states.shape[1])
            change = lorenz96.tangent(states, direction) - (direction if self.is_residual else 0)
            return np.full(states.shape[1], deviation[0] / np.sqrt((change**2).mean()))
        slopes = _Columns(table, ("jacobian",))
        merged = statistics.of_shards([slopes], **statistics.ranks(), names=self.facts["inputs"])
        slope = np.sqrt(merged.mean**2 + merged.variance)
        return np.divide(deviation, slope, out=np.zeros_like(slope), where=slope > 0)

    def model(self) -> networks.Emulator:
        """A network with new weights, and with the statistics of the training split if the data have this split."""
        scales: dict[str, np.ndarray] = {}
        if "train" in self.manifest["splits"]:
            for name, part in zip(("input", "output"), self.statistics, strict=True):
                scales |= {f"{name}_mean": part.mean, f"{name}_std": _positive(part.deviation)}
        return self._network(conserve=self.config.conserve, statistics=scales)

    def _network(self, **options: Any) -> networks.Emulator:
        config = self.config
        return networks.build(
            config.network,
            len(self.facts["inputs"]),
            len(self.facts["outputs"]),
            widths=config.widths,
            activation=config.activation,
            output=config.output,
            residual=config.residual,
            **options,
        )

    def size(self, num_rows: int) -> Size:
        """A lower bound of the memory: the parameters, and the outputs of the hidden layers."""
        num_points = len(self.facts["inputs"]) if self.config.network == "bilinear" else 1
        return Size(
            num_parameters=num_parameters(lambda: self._network(statistics={})),
            batch_bytes=4 * num_rows * num_points * sum(self.config.widths),
            settings=("recipe.widths",),
        )

    def step(self, model: torch.nn.Module, batch: Batch, state: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """The sum of the losses of the examples, and their number."""
        outputs, weight = batch["outputs"], self._output_weight(batch["outputs"])
        if self.config.jacobian_weight:
            predicted, change = model(batch["inputs"], batch["direction"])
            slope_error = (change - batch["change"]).square() @ weight
            loss = (predicted - outputs).square() @ weight + self.config.jacobian_weight * slope_error
        else:
            loss = (model(batch["inputs"]) - outputs).square() @ weight
        return loss.sum(), torch.tensor(float(len(outputs)), device=outputs.device), state

    def predict(self, model: torch.nn.Module, batch: Batch) -> Batch:
        return {"prediction": model(batch["inputs"]).float(), "target": batch["outputs"]}

    def sums(self, model: torch.nn.Module, batch: Batch) -> Batch:
        """The terms of each example and output from whose sums the metrics are computed, (B, O) each."""
        outputs, terms = batch["outputs"], {}
        if "direction" in batch:
            predicted, change = model(batch["inputs"], batch["direction"])
            terms = {"slope_error": (change - batch["change"]).square(), "slope": batch["change"].square()}
        else:
            predicted = model(batch["inputs"])
        input_statistics, output_statistics = self.statistics
        mean = output_statistics.mean + (input_statistics.mean if self.is_residual else 0)
        # The variance is computed from sums of squares, which lose few digits if the mean is subtracted first
        distance = (outputs - torch.as_tensor(mean, dtype=outputs.dtype, device=outputs.device)).double()
        return {
            **terms,
            "rows": torch.ones_like(outputs),
            "squared_error": (predicted - outputs).double().square(),
            "distance": distance,
            "squared_distance": distance.square(),
        }

    def metrics(self, sums: dict[str, np.ndarray]) -> dict[str, float]:
        """RMSE in physical units and R² over all outputs; if true derivatives are known, also the relative error of the
        Jacobian along random directions.

        The R² of several outputs is 1 minus the sum of all squared errors divided by the sum of squares about each
        output's mean.
        """
        rows, error = sums["rows"], sums["squared_error"].sum()
        spread = (sums["squared_distance"] - sums["distance"] ** 2 / rows).sum()
        scores = {
            "root_mean_squared_error": float(np.sqrt(error / rows.sum())),
            "r_squared": float(1 - error / spread) if spread > 0 else float("nan"),
        }
        if "slope" in sums:
            scores["jacobian_error"] = float(np.sqrt(sums["slope_error"].sum() / sums["slope"].sum()))
        return scores

    def columns(self, split: str, predicted: dict[str, np.ndarray]) -> dict[str, Any]:
        """The columns of a prediction file, whose rows are those of rows/SPLIT: some or all outputs of each pair."""
        names = ("pair", "output", self.manifest["task"]["target"])
        pair, output, target = read_columns(self.folder / "rows" / split, names).values()
        prediction = predicted["prediction"][pair, output].astype(np.float64)
        return {**self.describe(split), "target": target.astype(np.float64), "prediction": prediction}

    def _output_weight(self, outputs: torch.Tensor) -> torch.Tensor:
        """The weight of each output's squared error in the loss, 1 / (number of outputs · variance), (O,); computed once."""
        if self._weight is None or (self._weight.dtype, self._weight.device) != (outputs.dtype, outputs.device):
            deviation = _positive(self.statistics[1].deviation)
            weight = 1 / (len(deviation) * deviation**2)
            self._weight = torch.as_tensor(weight, dtype=outputs.dtype, device=outputs.device)
        return self._weight


make = Emulation


class _Columns:
    """Columns of a table, concatenated along their last axis for `statistics.of_shards`, which reads some rows at a time.

    is_residual : whether the first column is subtracted from the second
    """

    def __init__(self, table: Any, names: tuple[str, ...], is_residual: bool = False):
        self.columns, self.is_residual = [Column(table, name) for name in names], is_residual

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, rows: slice) -> np.ndarray:
        numbers = np.arange(*rows.indices(len(self)))
        values = [column.take(numbers).astype(np.float64) for column in self.columns]
        if self.is_residual:
            values[1] -= values[0]
        return np.concatenate(values, axis=1)


def signs(row: np.ndarray, epoch: int, num_inputs: int) -> np.ndarray:
    """Random signs ±1.0, (len(row), num_inputs), which depend on the number of the row and on the epoch alone."""
    words = mixed(row[:, None], epoch, np.arange(math.ceil(num_inputs / 64)))
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=num_inputs)
    return 2.0 * bits - 1.0


def _positive(deviation: np.ndarray) -> np.ndarray:
    """The deviation, or 1 for a constant column."""
    return np.where(deviation > 0, deviation, 1.0)
