"""Folds of prepared data: folders folds/0, folds/1 …, each a folder of prepared data on which a copy of a member is trained.

A fold has the splits train, validation, blend (the block of rows after its training rows), test and, if there is one,
forecast. The last fold has no blend: train and validation are all rows before test, except for embargoes. Files that the
folders have in common are hard links, or copies where the file system has no hard links. A row has the same `row_id` in all
folders. The recipe decides which rows are in a fold.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ensemble import folders
from ensemble.arrow import link
from ensemble.errors import UserError


def write_folds(
    folder: Path,
    manifest: dict[str, Any],
    splits_of_folds: list[dict[str, Any]],
    shared: Sequence[str],
    write_rows: Callable[[Path, int], None],
    checksums: dict[tuple[int, int], str],
) -> list[dict[str, Any]]:
    """Write folds/0, folds/1 … of the prepared `folder`, and return the entry `folds` of its manifest.

    manifest : what the manifest of `folder` will contain. splits_of_folds : the entry `splits` of each fold. shared :
    subfolders of `folder` that all folds use. write_rows : called with a folder and the number of a fold; it writes the rows
    of the fold to this folder. checksums : as for `folders.write_manifest`.
    """
    entries = []
    for number, splits in enumerate(splits_of_folds):
        fold = folder / "folds" / str(number)
        for name in shared:
            (fold / name).mkdir(parents=True)
            for file in sorted((folder / name).iterdir()):
                link(file, fold / name / file.name)
        write_rows(fold / "rows", number)
        written = folders.write_manifest(fold, {**manifest, "splits": splits, "fold": number}, checksums)
        entries.append({"fingerprint": written["fingerprint"], "splits": splits})
    return entries


def folder_of(data: str | Path, manifest: dict[str, Any], number: int) -> Path:
    """The folder of a fold of `data`; `UserError` if its fingerprint is not the one in the manifest of `data`."""
    folder = Path(data) / "folds" / str(number)
    fingerprint = folders.read_manifest(folder)["fingerprint"]
    if fingerprint != (listed := manifest["folds"][number]["fingerprint"]):
        raise UserError(
            f"{folder} has the fingerprint {fingerprint}, but the manifest of {data} lists {listed}: prepare both again"
        )
    return folder
