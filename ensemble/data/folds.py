"""Folds of prepared data: folders folds/0, folds/1 …, each prepared data like any other, on which copies of a member train.

A fold has the splits train, validation, blend (the block out of this fold), test and, if there is one, forecast. The last
fold has no block: it trains on everything before test. Of what the folders share each byte is on disk once, and a row has
the same `row_id` in all of them. The recipe decides which rows make a fold.
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
    """Write folds/0, folds/1 … of the prepared `folder`, and return what its manifest is to say of each.

    about : the whole's manifest to be. splits_of_folds : each fold's entry `splits`. shared : folders of `folder` that all
    folds use. write_rows : writes a fold's rows to a
    folder. checksums : as for `folders.write_manifest`.
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
    """The folder of a fold, which must be the one that the manifest `about` of `data` lists; `UserError` if it is not."""
    folder = Path(data) / "folds" / str(number)
    its = folders.read_manifest(folder)["fingerprint"]
    if its != (listed := manifest["folds"][number]["fingerprint"]):
        raise UserError(f"{folder} is {its}, but {data} was prepared with {listed} there: prepare both again")
    return folder
