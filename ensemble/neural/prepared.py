"""The methods that networks on a folder of prepared data have in common, and the rows of its splits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from ensemble import folders, recipe
from ensemble.arrow import Column, read_columns
from ensemble.data import inputs
from ensemble.errors import UserError
from ensemble.neural.optim import adamw
from ensemble.task import task_of

Config = TypeVar("Config")
Split = TypeVar("Split", bound="PreparedRows")


def num_parameters(build: Callable[[], torch.nn.Module]) -> int:
    """The number of parameters of the model that `build` makes, without allocating memory for them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build().parameters())


class PreparedRows:
    """The rows of one split, read from memory-mapped `columns`; a subclass defines the method `gather` of `loader.Rows`."""

    columns: dict[str, Column]
    arguments: tuple[Any, ...]
    """The arguments of the constructor."""

    def __new__(cls, *arguments: Any) -> Any:
        rows = super().__new__(cls)
        rows.arguments = arguments
        return rows

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments only, with which a DataLoader worker opens the files: a pickled memory map is a full copy."""
        return type(self), self.arguments


class PreparedRecipe(Generic[Config, Split]):
    """Some of the methods of `ensemble.recipe.NeuralRecipe`. A subclass defines the others, and `open_rows(split)`.

    Raises `UserError` for data of another recipe, unless the network accepts any features.
    """

    name: str

    def __init__(self, config: Config, data: str | Path):
        self.config, self.folder = config, Path(data)
        self.manifest = folders.read_manifest(data)
        recipe.check_named(self.name, self.manifest, data, has_network=True)
        self.fingerprint, self.inputs = self.manifest["fingerprint"], inputs.meaning(self.manifest)
        self._rows: dict[str, Split] = {}

    def rows(self, split: str) -> Split:
        """The rows of a split, which are opened once. Raises `UserError` if the data do not have the split."""
        if split not in self._rows:
            if self.stored_split(split) not in self.manifest["splits"]:
                raise UserError(f"{self.folder} has no split '{split}': it has {', '.join(self.manifest['splits'])}")
            self._rows[split] = self.open_rows(split)
        return self._rows[split]

    def stored_split(self, split: str) -> str:
        """The split of the prepared data that contains the rows of `split`: itself, unless a subclass overrides this."""
        return split

    def open_rows(self, split: str) -> Split:
        """The rows of a split that the data have; `rows` calls it once for each split."""
        raise NotImplementedError

    def describe(self, split: str) -> dict[str, np.ndarray]:
        """The columns of rows/SPLIT that are row_id, group and cluster of the prediction file."""
        task = task_of(self.manifest)
        names = {"row_id": "row_id", "group": task.group, "cluster": task.cluster}
        stored = read_columns(self.folder / "rows" / split, set(names.values()))
        return {name: stored[column] for name, column in names.items()}

    def optimizers(self, model: torch.nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
        return [adamw(model, learning_rate, weight_decay)]
