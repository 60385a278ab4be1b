"""Load a member of any kind, or a baseline, and predict with it.

Scripts, the service and the ensemble load members by this module only. A member's library is loaded with the member. PyTorch
and the tree libraries must not share a process, since each brings an OpenMP runtime of its own.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ensemble import folders, predictions, recipe
from ensemble.data import cross_validation, inputs
from ensemble.data.out_of_fold import NAME as OUT_OF_FOLD
from ensemble.errors import UserError
from ensemble.predictor import bag
from ensemble.predictor.bag import Predict

KINDS = {
    "neural": "neural network",
    "xgboost": "XGBoost",
    "lightgbm": "LightGBM",
    "catboost": "CatBoost",
    "extra_trees": "extremely randomised trees",
    "linear": "linear model",
}
"""The kinds of members, as in the entry `kind` of their summary.json, with their names in the report."""
TREES = tuple(kind for kind in KINDS if kind != "neural")
BASELINE_KINDS = ("baseline", "ranking")
"""`baseline`: a prediction with which members are compared. `ranking`: scores that are a column of the data, such as those
of a next_item member for candidates; they join the ensemble as a member."""


@dataclasses.dataclass(frozen=True)
class LoadedMember:
    """A member, a bag of copies, or a baseline, in memory."""

    predict: Predict
    is_main_process: bool = True
    """False on the ranks of a distributed prediction that must not write files."""
    write_contributions: Callable[[str | Path, str, str, str | Path], Path] | None = None
    """A function of data, split, name and folder that writes the contribution of each feature to each prediction, and
    returns the path of the file; None for a member without contributions."""


def _load_network(folder: Path, data: str | Path, accelerator: Any, options: dict[str, Any]) -> LoadedMember:
    from ensemble.neural.predict import NeuralMember

    predict = bag.load(folder, lambda copy: NeuralMember(copy, accelerator, data, options).predict)
    return LoadedMember(predict, accelerator.is_main_process)


def _load_trees(folder: Path, threads: int, options: dict[str, Any] | None, quiet: bool) -> LoadedMember:
    if options:
        given = ", ".join(name for name, value in options.items() if value)
        raise UserError(f"{given} are settings of neural members, and {folder} is none: leave them out")

    from ensemble.trees import threads as openmp

    if not openmp.is_openmp_loaded():
        openmp.configure(threads, quiet)

    from ensemble.trees.predict import TreeMember

    if bag.copies(folder) != [folder]:
        return LoadedMember(bag.load(folder, lambda copy: TreeMember(copy).predict))
    member = TreeMember(folder)
    return LoadedMember(member.predict, write_contributions=member.write_contributions)


def baselines(manifest: dict[str, Any]) -> dict[str, str]:
    """Name and kind of each baseline of data with this manifest; none if its recipe has no baselines."""
    kinds = recipe.of(manifest).get("baselines", "kinds")
    kind_of_name: dict[str, str] = kinds(manifest) if kinds else {}
    for name, kind in kind_of_name.items():
        if "/" in name:
            raise UserError(f"the baseline {name} cannot be a file name: leave the '/' out")
        if kind not in BASELINE_KINDS:
            raise UserError(f"the baseline {name} is of kind '{kind}', not {' or '.join(BASELINE_KINDS)}: see recipe.py")
    return kind_of_name


def kind_of(folder: Path, manifest: dict[str, Any] | None = None) -> str:
    """The kind of the member in a folder, or of all copies of a bag; `UserError` if it is none of `KINDS`.

    manifest : of the data to predict, for the names of baselines in the error.
    """
    if not (folder / "summary.json").exists():
        whole = folder.parent.parent if folder.parent.name == "checkpoints" else folder.parent
        if (whole / "summary.json").exists() or (whole / "status").is_file():
            raise UserError(f"{folder} is a part of a member: give its folder, {whole}")
        if (status := folder / "status").is_file():  # of a network's training, which writes the summary at its end
            state = " ".join(status.read_text(encoding="utf-8").split())
            raise UserError(f"the training of {folder} is not complete, its status is {state}: wait, or use --resume last")
    if manifest and not folder.exists() and (names := baselines(manifest)):
        raise UserError(
            f"{folder / 'summary.json'} does not exist: check the path, or name a baseline of the recipe "
            f"{manifest['recipe']}: {', '.join(names)}"
        )
    kind = bag.kind_of(folder)
    if kind not in KINDS:
        raise UserError(f"{folder} is of kind '{kind}', not one of {', '.join(KINDS)}: name that of a trained member")
    return kind


def check_splits(splits: Sequence[str], data: str | Path, manifest: dict[str, Any]) -> None:
    """Raise `UserError` for a split that members cannot predict on data with this manifest."""
    predicted = recipe.of(manifest).get("outputs", "PREDICTED_SPLITS")
    known = [name for name in manifest["splits"] if not predicted or name in predicted]
    known += [OUT_OF_FOLD] if not predicted and (manifest.get("folds") or cross_validation.KEY in manifest) else []
    for split in splits:
        if split not in known and (predicted or split != OUT_OF_FOLD):
            raise UserError(f"{data} has no split '{split}' to predict: it has {', '.join(known)}")


def load(
    folder: Path, data: str | Path, threads: int = 0, options: dict[str, Any] | None = None, quiet: bool = False
) -> LoadedMember:
    """Compare the checksums of a trained member or bag, and load it.

    data : prepared data with the same columns as the data to predict. threads : 0 for all granted cores. options : starts,
    votes and select, all three, for recipes with such a choice: see `NeuralRecipe`. quiet : whether not to print the number
    of threads of trees.
    """
    bag.model_fingerprint(folder)  # compares the checksums
    if kind_of(folder) in TREES:
        return _load_trees(folder, threads, options, quiet)
    if threads < 0:
        raise UserError(f"threads={threads} is impossible: give a number of cores, or 0 for all granted ones")
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)

    from ensemble.neural import launch

    return _load_network(folder, data, launch.to_predict(bag.copies(folder)), options or {})


def load_baseline(name: str, manifest: dict[str, Any]) -> LoadedMember:
    """A baseline of the recipe of the data with this manifest; `name` is a key of `baselines`."""
    predict = recipe.of(manifest).require("baselines", "predict", "has no baselines")

    def predict_split(data: str | Path, split: str) -> dict[str, Any]:
        manifest = folders.read_manifest(data)
        if split not in manifest["splits"]:
            raise UserError(f"{data} has no split '{split}': it has {', '.join(manifest['splits'])}")
        common = {"recipe": manifest["recipe"], "fingerprint": manifest["fingerprint"], "config": {}}
        names = () if recipe.of(manifest).get("outputs", "write") else predictions.COLUMNS
        function = f"predict(…) in baselines.py of the recipe {manifest['recipe']}"
        return {**common, **inputs.checked_columns(predict(data, split, name), function, names)}

    return LoadedMember(bag.with_out_of_fold(predict_split))


def refuse_other_member(path: Path, name: str, folder: Path | None) -> None:
    """Raise `UserError` if a prediction file is of another member: one of another folder that still exists, or a baseline.

    folder : of the member that would replace the file; None for a baseline.
    """
    try:
        metadata = json.loads((pq.read_schema(path.absolute()).metadata or {})[predictions.KEY])
        now, before = (os.path.realpath(path) if path else "" for path in (folder, metadata["config"].get("folder")))
    except (OSError, pa.ArrowException, AttributeError, KeyError, TypeError, ValueError):
        return  # there is none, it is damaged, or another program wrote it
    if before != now and (not before or Path(before).is_dir()):
        other, fix = before or f"the baseline {name}", "choose another out, or with scripts/predict.py another name=…"
        raise UserError(f"{path} has predictions of {other}: {fix}")


def check_files(folder: str | Path, manifest: dict[str, Any], out: str | Path) -> None:
    """Raise `UserError` if the predictions of the member that will be trained in `folder` cannot be written to `out`."""
    folder = Path(folder).resolve()
    folders.refuse_unwritable(Path(out) / f"{folder.name}.parquet", folder)
    for split in (*manifest["splits"], OUT_OF_FOLD):
        refuse_other_member(Path(out) / f"{folder.name}.{split}.parquet", folder.name, folder)


def write_splits(
    loaded: LoadedMember,
    name: str,
    kind: str,
    splits: Sequence[str],
    data: str | Path,
    manifest: dict[str, Any],
    out: str | Path,
    folder: Path | None = None,
) -> Iterator[tuple[str, Path, int]]:
    """Predict splits of `data`, and write `out`/NAME.SPLIT.parquet for each, or a file in the format of the data's recipe.

    Yields the split, the path and the number of rows; nothing on ranks that do not write. folder : of the member; its
    path is stored in the files. None for a baseline.
    """
    write_format = recipe.of(manifest).get("outputs", "write")
    location = {} if folder is None else {"folder": str(folder.absolute())}  # with its ..: before them may be a link
    for split in splits:
        columns = loaded.predict(data, split)
        if loaded.is_main_process:
            path = Path(out) / f"{name}.{split}.parquet"
            columns = {**columns, "config": {**columns["config"], "kind": kind, **location}}
            if write_format:
                write_format(path, columns, split, name)
            else:
                predictions.write(path, predictions.Predictions(**columns, split=split, member=name))
            yield split, path, len(columns["row_id"])


def predict_with_ranks(folder: str | Path, accelerator: Any, data: str | Path, out: str | Path) -> None:
    """Write the prediction files of a neural member that an ensemble needs, on the ranks that trained it; collective."""
    folder, manifest = Path(folder), folders.read_manifest(data)
    loaded, splits = _load_network(folder, data, accelerator, {}), bag.default_splits(folder, manifest, is_baseline=False)
    list(write_splits(loaded, folder.resolve().name, kind_of(folder), splits, data, manifest, out, folder))
