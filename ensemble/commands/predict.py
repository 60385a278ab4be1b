"""Predict splits with a member, and write a prediction file (for next_item a ranking file) for each.

python scripts/predict.py member=runs/demo/members/xgboost data=runs/demo/prepared out=runs/demo/predictions
python scripts/predict.py member=runs/demo/bags/xgboost data=runs/demo/prepared out=runs/demo/predictions   # a bag of copies
python scripts/predict.py member=momentum data=runs/demo/prepared out=runs/demo/predictions                 # a baseline
python scripts/predict.py member=co_occurrence data=runs/beauty/prepared out=runs/beauty/rankings           # for next_item
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from ensemble import errors, recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """The member, the data to predict, and the folder for the prediction files."""

    member: str = "???"
    """The folder of a trained member, or of a bag of its copies; or the name of a baseline of the data's recipe (momentum
    for hot_sellers; popularity and co_occurrence for next_item; for candidates, the name of a ranking file from which they
    were made); or the word baselines, for all baselines of the recipe."""
    data: str = "???"
    """The folder of prepared data; for a bag the data with the folds, not a fold."""
    verify: Literal["changed", "full"] = "changed"
    """Files of the data whose checksums are verified: those changed since they were last read, or all (full)."""
    out: str = "???"
    """The folder for the prediction files, or for next_item the ranking files, with the names MEMBER.SPLIT.parquet."""
    splits: tuple[str, ...] = ()
    """The splits to predict; empty for blend, test and forecast, if the data have them. For a bag and for data with
    cross-validation, oof (out-of-fold rows) replaces blend; with folds in time, as in hot_sellers, a baseline predicts both.
    For next_item empty stands for validation, test and forecast, for sudoku for blend, test and validation."""
    name: str = ""
    """The member's name in the ensemble; empty for the name of its folder."""
    starts: int = 0
    """For sudoku: number of random latent states from which each puzzle is solved; 0 for one."""
    votes: int = 0
    """For sudoku: number of symmetric images of the puzzle that are solved, the puzzle itself included; 0 for one."""
    select: Literal["", "mean", "vote", "surest", "first"] = ""
    """For sudoku, how the results of starts and images are combined: mean of their probabilities, the most frequent board
    (vote), the board with the highest halting probability at the end (surest), or the one that halts first; empty for
    mean."""
    threads: int = 0
    """OpenMP threads; 0 for as many cores as are granted, or outside of Slurm OMP_NUM_THREADS if that is less."""
    contributions: bool = False
    """For a tree or linear member, not a bag: also write MEMBER.SPLIT.contributions.parquet, the contribution of each
    feature to each prediction, and a picture of them."""


def main() -> None:
    settings, named_recipe = recipe.from_command_line(PredictConfig, __doc__)

    from ensemble import folders
    from ensemble.predictor import members

    manifest = folders.read_manifest(settings.data, settings.verify == "full")
    recipe.check_named(named_recipe, manifest, settings.data, has_network=True)
    if "/" in settings.name:
        raise errors.UserError(f"name={settings.name} cannot be a file name: leave the '/' out")
    names = members.baselines(manifest) if settings.member == "baselines" else [settings.member]
    if settings.name and len(names) > 1:
        raise errors.UserError(f"name={settings.name} is for one member, but there are {len(names)} baselines: leave it out")
    for name in names:
        predict(dataclasses.replace(settings, member=name), manifest)
    if not names:
        print(f"the recipe {manifest['recipe']} has no baselines")


def predict(settings: PredictConfig, manifest: dict[str, Any]) -> None:
    """Predict the splits of one member or baseline."""
    from ensemble.data import out_of_fold
    from ensemble.predictor import bag, forecast, members

    folder = Path(settings.member)
    baseline = members.baselines(manifest).get(settings.member)
    kind = baseline or members.kind_of(folder, manifest)
    splits = settings.splits or bag.default_splits(folder, manifest, baseline == "baseline")
    members.check_splits(splits, settings.data, manifest)
    options = {"starts": settings.starts, "votes": settings.votes, "select": settings.select}
    options = options if any(options.values()) else {}
    if baseline and options:
        raise errors.UserError(f"starts, votes and select are for networks, not for {settings.member}: leave them out")
    loaded = (
        members.load_baseline(settings.member, manifest)
        if baseline
        else members.load(folder, settings.data, settings.threads, options)
    )
    if settings.contributions and not loaded.write_contributions:
        raise errors.UserError(f"contributions=true is for one tree or linear member, which {folder} is not: leave it out")
    name = settings.name or (settings.member if baseline else folder.resolve().name)
    forecast.check_name(name, manifest)
    member_folder = None if baseline else folder
    for split in splits:
        members.refuse_other_member(Path(settings.out) / f"{name}.{split}.parquet", name, member_folder)
    for split, path, num_rows in members.write_splits(
        loaded, name, kind, splits, settings.data, manifest, settings.out, member_folder
    ):
        print(f"{path}: {num_rows:,} rows")
        if settings.contributions and split == out_of_fold.NAME:
            reason = "they are means over all copies, but one copy predicts an out-of-fold row"
            print(f"no contributions for {split}: {reason}")
        elif settings.contributions and loaded.write_contributions:
            print(loaded.write_contributions(settings.data, split, name, settings.out))


if __name__ == "__main__":
    errors.run(main)
