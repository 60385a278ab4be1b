"""The one way to ask a member of any kind for predictions: its folder, or a baseline's name, to `predict(data, split)`.

Scripts, the service and the ensemble use this module and no other. A member's library is loaded when the member is: PyTorch
and the tree libraries do not share a process, since each brings an OpenMP runtime of its own.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ensemble import folders, recipe
from ensemble.data.out_of_fold import NAME as OUT_OF_FOLD
from ensemble.errors import UserError
from ensemble.predictor import bag
from ensemble.predictor.bag import Predict


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A member, a bag of copies, or a baseline, ready to predict."""

    predict: Predict
    is_main_process: bool = True
    """False on the ranks of a distributed prediction that are not to write files."""
    write_contributions: Callable[[str | Path, str, str, str | Path], Path] | None = None
    """data, split, name and folder to a file with each feature's part of each prediction; None if it cannot be had."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of member: the entry `kind` of its summary.json."""

    words: str
    """For people."""
    is_tree: bool
    load: Callable[[Path, str | Path, int, dict[str, Any]], Loaded]
    """Folder of the member, prepared data that are like those to predict, number of threads (0: all granted cores), and how
    it predicts: `options` of `load`."""


def _load_neural(folder: Path, data: str | Path, threads: int, options: dict[str, Any]) -> Loaded:
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)

    from ensemble.neural import launch

    accelerator = launch.start()

    from ensemble.neural.predict import NeuralMember

    ask = bag.load(folder, lambda copy: NeuralMember(copy, accelerator, data, options).predict)
    return Loaded(ask, accelerator.is_main_process)


def _load_trees(folder: Path, data: str | Path, threads: int, options: dict[str, Any]) -> Loaded:
    if options:
        raise UserError(f"{', '.join(options)} are choices of neural members, and {folder} holds trees: leave them out")

    from ensemble.trees import threads as openmp

    if not openmp.is_openmp_loaded():
        openmp.configure(threads)

    from ensemble.trees.predict import TreeMember

    if bag.copies(folder) != [folder]:
        return Loaded(bag.load(folder, lambda copy: TreeMember(copy).predict))
    member = TreeMember(folder)
    return Loaded(member.predict, write_contributions=member.write_contributions)


KINDS = {
    "neural": Kind("neural network", False, _load_neural),
    "xgboost": Kind("XGBoost", True, _load_trees),
    "lightgbm": Kind("LightGBM", True, _load_trees),
    "catboost": Kind("CatBoost", True, _load_trees),
}


BASELINE_KINDS = ("baseline", "ranking")
"""A baseline, which members are compared with; or scores of a member that the data hold, which joins the ensemble."""
TREES = tuple(name for name, kind in KINDS.items() if kind.is_tree)


def kind_in_summary(folder: Path) -> str | None:
    """What summary.json of one trained member names; None if it names nothing."""
    summary = folders.read_json(folder / "summary.json")
    return summary.get("kind") if isinstance(summary, dict) else None


def baselines(about: dict[str, Any]) -> dict[str, str]:
    """Name and kind of each baseline of data with this manifest; none if its recipe has no baselines."""
    kinds = recipe.of(about).get("baselines", "kinds")
    found = kinds(about) if kinds else {}
    for name, kind in found.items():
        if kind not in BASELINE_KINDS:
            raise UserError(
                f"the baseline {name} is of kind '{kind}', not one of {', '.join(BASELINE_KINDS)}: see recipe.py"
            )
    return found


def kind_of(folder: Path, about: dict[str, Any] | None = None) -> str:
    """The kind of the member in a folder, or of all copies of a bag; `UserError` if it is none of `KINDS`.

    `about` is the manifest of the data that are to be predicted, whose baselines the error names.
    """
    names = ", ".join(baselines(about)) if about and not folder.exists() else ""
    if names:
        raise UserError(
            f"{folder / 'summary.json'} does not exist: check the path, or name a baseline of the recipe "
            f"{about['recipe'] if about else ''}: {names}"
        )
    kind = bag.kind_of(folder)
    if kind not in KINDS:
        raise UserError(
            f"{folder} is of kind '{kind}', not one of {', '.join(KINDS)}: name a folder that a train script wrote"
        )
    return kind


def check_name(name: str, about: dict[str, Any]) -> None:
    """Raise `UserError` for a name that no member of an ensemble may have, for it is the ensemble's own."""
    from ensemble.predictor.fit import BASE_RATE, ENSEMBLE
    from ensemble.predictor.forecast import RESERVED

    if name in (ENSEMBLE, BASE_RATE, *RESERVED, *(recipe.of(about).get("outputs", "RESERVED") or ())):
        raise UserError(f"name={name} is a name of the ensemble's own, which no member may have: give another name=…")


def check_splits(splits: Sequence[str], data: str | Path, about: dict[str, Any]) -> None:
    """Raise `UserError` for a split that members cannot predict on data with this manifest."""
    predicted = recipe.of(about).get("outputs", "PREDICTED_SPLITS")
    known = [name for name in about["splits"] if not predicted or name in predicted]
    for split in splits:
        if split not in known and (predicted or split != OUT_OF_FOLD):
            raise UserError(f"{data} has no split '{split}' to predict: it has {', '.join(known)}")


def load(folder: Path, data: str | Path, threads: int = 0, options: dict[str, Any] | None = None) -> Loaded:
    """Load a trained member or bag, its checksums compared; `data` are prepared data like those that it is to predict.

    options : starts, votes and select, all three, for recipes with a choice of how to predict: see `NeuralRecipe`.
    """
    bag.model_of(folder)
    return KINDS[kind_of(folder)].load(folder, data, threads, options or {})


def load_baseline(name: str, about: dict[str, Any]) -> Loaded:
    """A baseline of the recipe of `about`, by a name of `baselines`."""
    predict = recipe.of(about).require("baselines", "predict", "has no baselines")

    def checked(data: str | Path, split: str) -> dict[str, Any]:
        here = folders.read_manifest(data)
        if split not in here["splits"]:
            raise UserError(f"{data} has no split '{split}': it has {', '.join(here['splits'])}")
        common = {"recipe": here["recipe"], "fingerprint": here["fingerprint"], "config": {}}
        return {**common, **predict(data, split, name)}

    return Loaded(bag.with_out_of_fold(checked))


def write_splits(
    loaded: Loaded,
    name: str,
    kind: str,
    splits: Sequence[str],
    data: str | Path,
    about: dict[str, Any],
    out: str | Path,
    folder: Path | None = None,
) -> Iterator[tuple[str, Path, int]]:
    """Predict splits of `data`, and write NAME.SPLIT.parquet for each to `out`; yields split, file and number of rows.

    folder : of the member, which the files name; None for a member without one. Nothing is yielded on ranks that do not
    write.
    """
    where = {} if folder is None else {"folder": os.path.abspath(folder)}
    for split in splits:
        columns = loaded.predict(data, split)
        if loaded.is_main_process:
            path = Path(out) / f"{name}.{split}.parquet"
            write(path, about, {**columns, "config": {**columns["config"], "kind": kind, **where}}, split, name)
            yield split, path, len(columns["row_id"])


def write(path: Path, about: dict[str, Any], columns: dict[str, Any], split: str, member: str) -> None:
    """Write what `predict` returned: a prediction file, or the format of the data's recipe."""
    from ensemble import predictions

    written = recipe.of(about).get("outputs", "write")
    if written:
        written(path, columns, split, member)
    else:
        predictions.write(path, predictions.Predictions(**columns, split=split, member=member))
