"""The folder of a fit, and its `fit.json`, which records the settings. run.py lists the other files of the folder."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ensemble import configuration, folders
from ensemble.errors import UserError, shortened
from ensemble.pipeline.plan import PREPARED
from ensemble.pipeline.settings import FILE, FREE_TO_CHANGE

RANKINGS, PREDICTIONS = "rankings", "predictions"
MOST_NAMED = 3
"""The maximum number of settings that an error names."""


@contextmanager
def opened(out: Path, config: Any, name: str, resume: bool, lock: ExitStack) -> Iterator[dict[str, Any] | None]:
    """Create the folder of a fit, or use the existing one, and write its `fit.json`. No other fit may use the folder until
    `lock` is closed.

    Yields the content of the earlier `fit.json` with `resume`, otherwise None. If the `with` block raises, the earlier
    `fit.json` is restored; without one, the new `fit.json` and new empty folders are removed, unless data were prepared.

    name : the recipe
    """
    file, earlier = out / FILE, None
    if file.is_file():
        earlier = read(out, config, name, resume)
        if not resume and not getattr(config, "overwrite", False):
            raise UserError(f"{out} contains a fit: add --resume auto to continue it, or overwrite=true to replace it")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and contains no fit of this project: choose another out")
    folders.refuse_inside(out)
    new_folders = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remove_new(file, new_folders)
        raise UserError(f"the folder {out} cannot be created: {error.strerror}") from None
    lock.enter_context(folders.locked(out, "fitting in"))
    limits = {"time_limit": config.time_limit, "num_draws": config.num_draws}
    try:
        _recover(out)
        fingerprint = earlier.get(PREPARED) if resume and earlier else None
        folders.write_json(file, {**_content(config, name), "limits": limits, PREPARED: fingerprint})
        yield earlier if resume else None
    except BaseException:
        if earlier:
            folders.write_json(file, earlier)
        elif not (out / PREPARED).exists():
            remove_new(file, new_folders)
        raise


def _content(config: Any, name: str) -> dict[str, Any]:
    """The content of `fit.json` for these settings, without the limits and the fingerprint of prepared data."""
    settings = configuration.to_dict(config, FREE_TO_CHANGE)
    content: dict[str, Any] = json.loads(json.dumps({"written_by": folders.MARK, "recipe": name, "settings": settings}))
    return content


def read(out: Path, config: Any, name: str, must_be_equal: bool = True) -> dict[str, Any]:
    """The content of `fit.json`; `UserError` if another program wrote it, or, with `must_be_equal`, if settings differ."""
    content = folders.read_json(out / FILE)
    if not isinstance(content, dict) or content.get("written_by") != folders.MARK:
        raise UserError(f"{out / FILE} was not written by this project, so nothing is changed: choose another out")
    before, now = _settings_to_compare(content), _settings_to_compare(_content(config, name))
    if must_be_equal and before != now:
        changed = [
            f"{key}={shortened(str(before.get(key)))}, not {shortened(str(now.get(key)))}"
            for key in sorted({*before, *now})
            if before.get(key) != now.get(key)
        ]
        raise UserError(
            f"{out} was fitted with other settings: give the same ({'; '.join(changed[:MOST_NAMED])}), or add "
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
    """Remove a file, and those of the folders that were created for it that are empty."""
    with suppress(OSError):
        file.unlink(missing_ok=True)
    for folder in new_folders:
        with suppress(OSError):  # the folder is not empty, or its name is too long
            folder.rmdir()


def _recover(out: Path) -> None:
    """Remove incomplete files of a killed command, and restore a folder that it was replacing."""
    for old in out.glob(".*.old-*"):
        folders.recover(out / old.name[1:].rpartition(".old-")[0])
    folders.discard_scratch([*out.glob(".*.writing-*"), *(out / PREDICTIONS).glob(".*.writing-*")])
    for old in out.glob(".*.old-*"):
        folders.discard(old)
