"""The interface of a recipe, and how a recipe is found. A recipe is a package that answers one question.

`--recipe NAME` takes a built-in name or an importable package of the user's own, such as `my_company.churn`. The package
consists of the modules below. Only settings.py and prepare.py are required. Each is imported when it is first used, so a
process loads only the libraries that it needs. `ensemble/recipes/README.md` is a guide with a worked example.

    __init__.py   WORDS: Words                            terms of the report and the model card for rows and positives
    settings.py   PrepareConfig                           settings of scripts/prepare_data.py; imports nothing heavy
                  RecipeConfig                            settings of scripts/train.py under `recipe.`
                  TRAINING                                other defaults of TrainConfig (neural/settings.py), by name
    prepare.py    prepare(config) -> manifest             converts raw data to a folder of prepared data
    training.py   make(config, data) -> NeuralRecipe      what scripts/train.py trains
                  ANY_FEATURES                            True if it learns from data of any recipe with flat features
    baselines.py  kinds(manifest) -> {name: kind}         baselines, by name for member=…; kinds: `members.BASELINE_KINDS`
                  predict(data, split, name) -> columns     row_id, target, prediction, group, cluster: see predictions.py
    plan.py       plan(manifest, num_threads) -> [PlannedMember]     the members of scripts/fit.py: see pipeline/plan.py
                  combining(manifest) -> {name: value}    settings of their combination, such as combiner
                  follow_up(manifest, data, rankings) -> FollowUp     further members, for a recipe without a task
    comparison.py compare(…) -> scores, and METRIC        scores of all members, without a task: see recipes/next_item
    outputs.py    PREDICTED_SPLITS                        the only splits to predict; see `bag.default_splits`
                  write(path, columns, split, member)     another format than a prediction file
                  forecast_table(forecast) -> Table       the rows of forecast.parquet
                  RESERVED                                its columns, whose names no member may have
                  scores_by_part(kind, test, predictions, data)   further scores of the test split, for ensemble.json
    new_data.py   prepare(training, settings) -> manifest      new raw data; `training` is the manifest of the training data
                  check(training, source, metadata)       refuses missing raw data before anything is written
                  ROWS                                    name of the rows of a DataFrame in messages; by default reviews
    requests.py   Request, counts, problem, tables, facts, answer      a request to scripts/serve.py and its response
    page.py       parts(run) -> {name: value}             variables of the page's template
                  pictures(run, series) -> [Picture]      further pictures
                  feature_label(feature) -> label         the label of a feature, an entry of the manifest's `features`
                  METRIC_DESCRIPTIONS, NEEDED             texts as in report/words.py; entries that the manifest must have
                  FORECAST_COLUMNS                        columns that forecast.parquet must have
                  prepare_words(manifest) -> [word]       the words of the command that prepared the data
    page.html.j2  a template that extends "page.html.j2"
    card.py       parts(manifest, scores) -> Parts        the recipe's sentences of the model card
    export.py     export(member, data, out, dtype) -> [line]      exports a neural member, and returns lines to print

`manifest` is a manifest of prepared data. Shared code accesses these modules through `Recipe` only, and names no recipe.
"""

import argparse
import dataclasses
import difflib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from ensemble import configuration
from ensemble.commands import hooks
from ensemble.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from ensemble.neural.carry import State
    from ensemble.neural.loader import Batch, Rows

BUILT_IN = {
    "hot_sellers": "ensemble.recipes.hot_sellers",
    "next_item": "ensemble.recipes.next_item",
    "candidates": "ensemble.recipes.next_item.candidates",
    "table": "ensemble.recipes.table",
    "sudoku": "ensemble.recipes.sudoku",
    "emulator": "ensemble.recipes.emulator",
}
"""Name of each recipe of this project: its package."""
TRAINED, FITTED = (tuple(name for name in BUILT_IN if name != other) for other in ("candidates", "sudoku"))
"""The names of the recipes that scripts/train.py can train, and of those that scripts/fit.py can fit."""
DEFAULT = "hot_sellers"
"""The recipe of scripts that prepare or train, if the user names none."""
RANKING = "ranking"
"""The `output` of a recipe whose predictions are rankings of items."""
OUTPUTS = ("probability", "probabilities", "value", "score", RANKING)
"""The possible values of `NeuralRecipe.output`."""
_named_by_user: set[str] = set()
"""Recipes that are not built in and that the user named, so that their packages may be imported."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Words:
    """Terms for the rows, in the report and the model card."""

    unit: str = "row"
    """What a cluster of the bootstrap is, such as product. The page and the card add an s for the plural."""
    yes: str = "positive"
    """A binary target of 1, as an adjective or a noun."""
    positives: str = "positive rows"
    """Rows whose target is 1."""
    became_yes: str = "was positive"
    """The words after "the share of rows that", for rows whose target is 1."""
    block: str = "block of rows"
    """Rows with the same value of the task's `group` column, such as week."""
    blocks: str = "rows"
    """Plural of what the blend split consists of, such as weeks; combiners are compared on blocks of them."""
    follow_time: bool = False
    """Whether the splits follow each other in time. If the settings of the data name a `time`, they do so in any case."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """A lower bound of the memory that a training needs, known before anything is allocated."""

    num_parameters: int
    batch_bytes: int
    """Bytes of a micro-batch, with what its forward pass keeps for the backward pass."""
    settings: tuple[str, ...]
    """The settings on which it depends."""


class NeuralRecipe(Protocol):
    """The interface of a recipe for the training loop; `training.make(config, data)` returns one.

    `neural.prepared.PreparedRecipe` has the methods that most networks have in common.
    """

    name: str
    fingerprint: str
    """The fingerprint of the prepared data."""
    inputs: dict[str, Any]
    """`data.inputs.meaning` of their manifest; it must be the same for data to predict."""
    monitor: str
    """The validation metric that selects `best` and stops training early."""
    higher_is_better: bool
    """Whether a higher value of `monitor` is better."""
    output: str
    """The type of `prediction`: probability, probabilities of classes, value or score; or `RANKING`."""

    def rows(self, split: str) -> "Rows": ...

    def model(self) -> "torch.nn.Module": ...

    def optimizers(
        self, model: "torch.nn.Module", learning_rate: float, weight_decay: float
    ) -> "list[torch.optim.Optimizer]": ...

    def step(self, model: "torch.nn.Module", batch: "Batch", state: "State") -> "tuple[torch.Tensor, torch.Tensor, State]":
        """The *sum* of the losses, the number of summed terms, and the state that the next call gets (the first gets None).

        The first dimension of the state's tensors is the batch: row k continues row k of the previous global batch. They
        must not be changed in place. A rank without rows gets None also in the middle of a run.
        """

    def predict(self, model: "torch.nn.Module", batch: "Batch") -> "Batch":
        """Tensors whose first dimension is the batch, among them `prediction`, (B,) or (B, K) for K classes, and `target`.

        For a task with weights also `weight`, (B,), for `metrics` and the prediction file.
        """

    def metrics(self, predictions: "dict[str, np.ndarray]") -> dict[str, float]:
        """Scores of a split, `monitor` among them, from the arrays of `predict`, each (num_rows, …).

        For a recipe with the method `sums`, the argument contains the sums of its results over all rows instead.
        """

    # Optional methods: `size(num_rows) -> Size`, by which a model that cannot fit into memory is refused.
    # `choose(config) -> config` replaces settings that the user left open by values that depend on the data.
    # `reasons(model, prediction)` returns the reasons of the rows of a forecast, as in `predictions.Predictions`.
    # `importance(model)` returns that of the features in the out-of-fold rows, as `metrics.permutation.importance` does.
    # `columns(split, predicted) -> columns`, with the arrays of `predict`, returns the arguments of
    # `predictions.Predictions` if a row of the data is several rows of a prediction file, or has probabilities of classes.
    # `sums(model, batch)` returns the summands of each row, float tensors whose first dimension is the batch. Their sums, in
    # float64, are the argument of `metrics`, so no rank keeps the predictions of a whole split.
    # `predicting(starts, votes, select)` gets the settings of scripts/predict.py with these names (0 or "" if not given).

    def describe(self, split: str) -> "dict[str, np.ndarray]":
        """row_id, group and cluster of a split's rows, for the prediction file."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe's package; its modules are imported when they are first used."""

    name: str
    package: str

    def has(self, name: str) -> bool:
        """Whether the recipe has one of the modules in the docstring of this file, which is not imported."""
        return importlib.util.find_spec(f"{self.package}.{name}") is not None

    def module(self, name: str) -> ModuleType | None:
        """One of the modules; None if the recipe does not have it."""
        return importlib.import_module(f"{self.package}.{name}") if self.has(name) else None

    def get(self, module: str, attribute: str) -> Any:
        """An attribute of one of the recipe's modules; None if the module or attribute does not exist."""
        return hooks.checked(getattr(self.module(module), attribute, None), module, attribute, self.name)

    @property
    def words(self) -> Words:
        return getattr(importlib.import_module(self.package), "WORDS", Words())

    @property
    def folder(self) -> Path:
        """The folder of the package."""
        return Path(importlib.import_module(self.package).__path__[0])  # without an __init__.py, there is no __file__

    def require(self, module: str, attribute: str, consequence: str) -> Any:
        """As `get`, but `UserError` if there is no such attribute. consequence : such as "cannot prepare data"."""
        if (value := self.get(module, attribute)) is None:
            raise UserError(f"the recipe {self.name} {consequence}: {self.package} has no {attribute} in {module}.py")
        return value


def named(name: str) -> Recipe:
    """A recipe that the user named, whose name `of` then accepts in manifests; `UserError` if it cannot be imported."""
    if name not in BUILT_IN:
        _require_package(name)
        _named_by_user.add(name)
    return Recipe(name, BUILT_IN.get(name, name))


def of(manifest: dict[str, Any]) -> Recipe:
    """The recipe that a manifest names. A package of the user is imported only if the user named it too: see `named`."""
    name = manifest["recipe"]
    if name not in BUILT_IN and name not in _named_by_user:
        raise UserError(
            f"these data are of the recipe '{name}', which is not part of this project: if you trust that package, "
            f"add --recipe {name}, or call ensemble.recipe.named('{name}') in Python"
        )
    return Recipe(name, BUILT_IN.get(name, name))


def follows_time(manifest: dict[str, Any]) -> bool:
    """Whether the splits of prepared data follow each other in time."""
    return of(manifest).words.follow_time or bool(manifest.get("config", {}).get("time"))


def check_named(name: str, manifest: dict[str, Any], data: str | Path, has_network: bool = False) -> None:
    """Raise `UserError` if `name` is not '' and not the recipe of the data.

    With `has_network`, a recipe whose network learns from data of any recipe is allowed.
    """
    if name and name != manifest["recipe"] and not (has_network and named(name).get("training", "ANY_FEATURES")):
        raise UserError(
            f"{data} was prepared for the recipe {manifest['recipe']}, not for {name}: give --recipe {manifest['recipe']}"
        )


def words_of_command_line() -> list[str]:
    """The options with which another process of this project may import the same packages of the user."""
    return [word for name in sorted(_named_by_user) for word in ("--recipe", name)]


def from_command_line(schema: type, description: str | None) -> tuple[Any, str]:
    """The settings of a script that reads prepared data, and the recipe that the user named with --recipe, or ''."""
    parser = option()
    if named_by_user := parser.parse_known_args()[0].recipe:
        named(named_by_user)
    return configuration.from_command_line(schema, description, [parser]), named_by_user


def option(default: str = "", purpose: str = "", names: tuple[str, ...] = tuple(BUILT_IN)) -> argparse.ArgumentParser:
    """A parser with --recipe only, as a parent of a script's own parser.

    purpose : the beginning of the help text, if the user chooses one of `names`; empty if the data name the recipe.
    """
    parser = argparse.ArgumentParser(add_help=False)
    chosen = f"{purpose}: {', '.join(names)}, or a package of your own; by default {default}"
    text = chosen if purpose else "the package of your own recipe, if it prepared the data"
    parser.add_argument("--recipe", default=default, metavar="NAME", help=text)
    return parser


def prepare_config(name: str) -> type:
    """The settings class of a recipe's preparation."""
    schema = hooks.checked_settings(named(name).require("settings", "PrepareConfig", "cannot prepare data"), name)
    if "out" not in configuration.field_names(schema):
        raise UserError(f'PrepareConfig of the recipe {name} lacks the folder to write: add out: str = "???"')
    return schema


def _require_package(name: str) -> None:
    """Raise `UserError` unless the user's package can be imported, with the current folder last on the path."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        spec = importlib.util.find_spec(f"{name}.settings") if all(name.split(".")) else None
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and f"{name}.settings.".startswith(f"{error.name}.")
        if not is_absent:  # an import in the package itself fails
            raise UserError(f"the package of the recipe {name} cannot be imported: {error}") from None
        spec = None
    if spec is None:
        near = difflib.get_close_matches(name.lower(), BUILT_IN, n=1)
        hint = f"did you mean '{near[0]}'? Known" if near else "known"
        raise UserError(
            f"there is no recipe '{name}': {hint} are {', '.join(BUILT_IN)}, and any package that can be imported from here "
            "and has a settings.py"
        )
