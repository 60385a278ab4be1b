"""The folder of a fit, and its `fit.json`, which records the settings. run.py lists the other files of the folder."""

import fnmatch
import glob
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ensemble import configuration, folders
from ensemble.errors import UserError, is_disk_full, listed, shortened
from ensemble.pipeline import network
from ensemble.pipeline.plan import PREPARED, PlannedMember
from ensemble.pipeline.settings import FILE, FREE_TO_CHANGE

RANKINGS, PREDICTIONS, ENSEMBLE, REPORT = "rankings", "predictions", "ensemble", "report.html"
LEADERBOARD, COMPARISON = "leaderboard.json", "all"
"""COMPARISON: the folder in which all members are compared, if there is a follow-up (see run.py)."""
READABLE = (
    FILE, LEADERBOARD, "prepared/names/names.parquet", "prepared/rows/train/state.json", "members/name/metrics.jsonl",
    "members/name/model.0.txt", "members/name/out_of_fold.parquet", "members/name/summary.json",
    "rankings/name.test.parquet", "predictions/name.oof.parquet", "ensemble/forecast.csv", "ensemble/forecast.parquet",
    "ensemble/oof.parquet", "ensemble/scores.json", "ensemble/test.parquet",
)  # fmt: skip
"""Files of a fit, one of each format and folder, that a pattern in the settings `source` and `metadata` could match."""


def raw_paths(config: Any) -> list[str]:
    """The paths and patterns of the settings `source` and `metadata`, of which each may be missing, a text, or a list."""
    values = [getattr(config, name, ()) for name in ("source", "metadata")]
    return [path for value in values for path in ([value] if isinstance(value, str) else value) if path]


@contextmanager
def opened(out: Path, config: Any, name: str, resume: bool, lock: ExitStack) -> Iterator[dict[str, Any] | None]:
    """Create the folder of a fit, or use the existing one, and write its `fit.json`. No other fit may use the folder until
    `lock` is closed.

    Yields the content of the earlier `fit.json` with `resume`, otherwise None. If the `with` block raises, the earlier
    `fit.json` is restored; without one, the new `fit.json` and new empty folders are removed, unless other files were
    written, such as raw data: a folder with files but without `fit.json` could not be used again.

    With `resume`, it waits up to `folders.LOCK_WAIT_S` until another fit in the folder has ended, such as that of a notebook
    that was killed; then it raises `UserError`.

    name : the recipe
    """
    for pattern in raw_paths(config):
        _refuse_matching(out, pattern)
    file, earlier = out / FILE, None
    if file.is_file():
        earlier = read(out, config, name, resume)
        if not resume and not getattr(config, "overwrite", False):
            raise UserError(f"{out} contains a fit: add --resume auto to continue it, or overwrite=true to replace it")
        folders.refuse_foreign_folder(out / ENSEMBLE, ENSEMBLE)  # now, not only after the training
        folders.refuse_foreign_file(out / REPORT, "report")
        _refuse_foreign_leaderboard(out / LEADERBOARD)
    elif out.exists() and (not out.is_dir() or any(not path.match(f".{FILE}.writing-*") for path in out.iterdir())):
        raise UserError(f"{out} exists and contains no fit of this project: choose another out")
    folders.refuse_inside(out)
    target = out.resolve()  # `out` may be a link to a folder that does not exist yet
    new_folders = [folder for folder in (target, *target.parents) if not folder.exists()]
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remove_new(file, new_folders)
        raise UserError(f"the folder {out} cannot be created: {error.strerror}") from None
    lock.enter_context(folders.locked(out, "fitting in", folders.LOCK_WAIT_S if resume else 0.0))
    if resume and file.is_file():
        earlier = read(out, config, name)  # a fit that has ended in the meantime may have changed it
    limits = {"time_limit": config.time_limit, "num_draws": config.num_draws}
    try:
        fingerprint = earlier.get(PREPARED) if resume and earlier else None
        try:
            _recover(out)
            folders.write_json(file, {**_content(config, name), "limits": limits, PREPARED: fingerprint})
        except OSError as error:
            if is_disk_full(error):
                raise
            fix = "check the permissions, or choose another out"
            raise UserError(f"{file} cannot be written ({error.strerror or error}): {fix}") from None
        yield earlier if resume else None
    except BaseException:
        if earlier:
            with suppress(OSError):  # this error must not hide the first one
                folders.write_json(file, earlier)
        elif {path.name for path in out.glob("*")} <= {FILE}:  # otherwise raw files or prepared data are there
            remove_new(file, new_folders)
        raise


def _refuse_foreign_leaderboard(file: Path) -> None:
    """Raise `UserError` for a file that is not a list with the rows of predictor/leaderboard.py; a list has no place for the
    mark of this project."""
    board: Any = None if file.exists() else []
    columns = {"member", "metric", "split", "weight"}
    with suppress(UserError):  # missing, or no JSON
        board = folders.read_json(file)
    if not isinstance(board, list) or not all(isinstance(row, dict) and columns <= row.keys() for row in board):
        raise UserError(f"{file} was not written by this project, so it is not replaced: move it, or choose another out")


def _content(config: Any, name: str) -> dict[str, Any]:
    """The content of `fit.json` for these settings, without the limits and the fingerprint of prepared data."""
    settings = configuration.to_dict(config, FREE_TO_CHANGE)
    content: dict[str, Any] = json.loads(json.dumps({"written_by": folders.MARK, "recipe": name, "settings": settings}))
    return content


def read(out: Path, config: Any, name: str, must_be_equal: bool = True) -> dict[str, Any]:
    """The content of `fit.json`; `UserError` if another program wrote it, or, with `must_be_equal`, if settings differ from
    those with which data were prepared."""
    content = folders.read_json(out / FILE)
    if not isinstance(content, dict) or content.get("written_by") != folders.MARK:
        raise UserError(f"{out / FILE} was not written by this project, so nothing is changed: choose another out")
    before, now = _settings_to_compare(content), _settings_to_compare(_content(config, name))
    changed = [
        f"{key}={shortened(str(before.get(key)))}, not {shortened(str(now.get(key)))}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]
    if must_be_equal and changed and content.get(PREPARED):
        raise UserError(
            f"{out} was fitted with other settings: give the same ({listed(changed, 3, '; ')}), or add "
            "overwrite=true without --resume"
        )
    return content


def _settings_to_compare(fit_json: dict[str, Any]) -> dict[str, Any]:
    """The recipe and the settings that must be equal to continue a fit.

    `source` and `metadata` are left out, since these files may have moved: run.py compares their content.
    """
    settings = {name: value for name, value in fit_json.get("settings", {}).items() if name not in ("source", "metadata")}
    return {"recipe": fit_json.get("recipe", ""), **settings}


def remove_new(file: Path, new_folders: list[Path]) -> None:
    """Remove a file, and those of `new_folders` that are empty."""
    with suppress(OSError):
        file.unlink(missing_ok=True)
    for folder in new_folders:
        with suppress(OSError):  # the folder is not empty, or its name is too long
            folder.rmdir()


def _recover(out: Path) -> None:
    """Remove incomplete files of a killed command, and restore a folder that it was replacing."""
    for old in out.glob(".*.old-*"):
        folders.recover(out / old.name[1:].rpartition(".old-")[0])
    _discard_unfinished([*out.glob(".*.writing-*"), *(out / PREDICTIONS).glob(".*.writing-*")])


def _discard_unfinished(paths: list[Path]) -> None:
    """Delete what killed commands left unfinished, but not the folder that a running command writes."""
    folders.discard_abandoned(paths, also_empty=True)
    folders.discard_scratch(path for path in paths if path.is_file())


def _refuse_matching(out: Path, pattern: str) -> None:
    """Raise `UserError` for a glob that would match files of the fit in `out`, which are not raw data."""
    if not glob.has_magic(pattern):
        return
    parts = Path(os.path.realpath(pattern)).parts
    for name in READABLE:
        if _matches(Path(os.path.realpath(out / name)).parts, parts):
            where = f"out={out} lies where {pattern} would match files of the fit, such as {name}"
            raise UserError(f"{where}: choose another out")


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether `glob.glob` with `recursive=True` would find a path; both are given by their parts."""
    if not parts or not pattern:
        return not parts and not [part for part in pattern if part != "**"]
    if parts[0].startswith(".") and not pattern[0].startswith("."):  # wildcards match no hidden names
        return pattern[0] == "**" and _matches(parts, pattern[1:])
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def refuse_foreign(out: Path, planned: Sequence[PlannedMember]) -> None:
    """Raise `UserError` if the folder of a member that is to be replaced contains a user's file."""
    from ensemble.trees import train

    for member in planned:
        folder = out / "members" / member.name
        if member.kind == "neural":
            network.refuse_foreign(folder)
        else:
            folders.refuse_foreign_folder(folder, train.KIND)


def discard_results(out: Path, planned: Sequence[PlannedMember]) -> None:
    """Delete the results of a fit that is replaced, but no folder that contains a user's file.

    planned : all members that are planned for the data. Others were trained by the user, and are kept with their predictions
    """
    from ensemble.trees import stored
    from ensemble.trees.checkpoint import Checkpoints

    names = {member.name for member in planned}
    for folder in (out / name for name in {ENSEMBLE, COMPARISON, *(member.data for member in planned)} - {PREPARED}):
        folders.discard(folder)
    (out / LEADERBOARD).unlink(missing_ok=True)
    (out / REPORT).unlink(missing_ok=True)  # `opened` has refused these two if the project did not write them
    for folder in sorted((out / "members").glob("*")):
        # Names of members, and of copies that the user made of their folders, may have a dot
        member = folder.with_suffix("") if folder.suffix in (".checkpoint", ".copies") else folder
        if member.name not in names:
            continue
        if folder.suffix == ".checkpoint":
            Checkpoints(member, "").clear()
        elif folder.suffix == ".copies":
            stored.clear(member)
        elif not (folder / "status").is_file():
            folders.discard(folder)
        elif not network.foreign(folder):
            folders.delete(folder)
    _discard_unfinished([*out.glob(".*.writing-*"), *(out / "members").glob(".*")])
    predictions = out / PREDICTIONS  # NAME.SPLIT.parquet, and NAME.SPLIT.contributions.parquet and .png
    for file in [*predictions.glob("*.parquet"), *predictions.glob("*.contributions.png")]:
        with suppress(UserError):
            folders.refuse_foreign_file(file, "prediction file")
            if file.stem.removesuffix(".contributions").rpartition(".")[0] in names:
                file.unlink()
