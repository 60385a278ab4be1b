"""Copy prepared data to a node's own disk, and compare every file with its checksum.

python scripts/stage_data.py source=runs/demo/prepared out=/local/scratch/prepared
"""

import shutil
from pathlib import Path
from typing import Any

from ensemble import folders
from ensemble.arrow import link
from ensemble.errors import UserError


def stage(source: str | Path, out: str | Path) -> tuple[int, bool]:
    """Copy prepared data and their folds to `out`, unless it has them. Equal files, which folds share by hard links, are
    stored once. Returns the size in bytes, and whether the data were copied.

    If another command copies the same data to `out` at the same time, one copy is kept. Raises `UserError` for damaged data,
    for a disk without enough space, and if `out` has other content or cannot be written.
    """
    source, out = Path(source), Path(out)
    parts = [Path(), *(manifest.parent.relative_to(source) for manifest in sorted(source.glob(f"folds/*/{folders.NAME}")))]
    manifests = {part: folders.read_manifest(source / part) for part in parts}
    entries = [entry for manifest in manifests.values() for entry in manifest["files"].values()]
    num_bytes = sum({entry["sha256"]: entry["bytes"] for entry in entries}.values())
    if _has_copy(out, source, manifests):
        return num_bytes, False
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        fault = "is a file" if out.is_file() else "holds files that are no copy of prepared data"
        raise UserError(f"{out} {fault}: choose another folder")
    disk = next(folder for folder in out.resolve().parents if folder.is_dir())
    if (free := shutil.disk_usage(disk).free) < num_bytes:
        raise UserError(
            f"{disk} has {free / 1e9:.1f} GB free, but {source} has {num_bytes / 1e9:.1f} GB: leave SCRATCH_FOLDER in "
            "slurm/site.sh empty, or name a larger disk"
        )
    try:
        with folders.new_folder(out, False, "staged data") as folder:
            copies: dict[str, Path] = {}  # by checksum
            for part, manifest in manifests.items():
                for name, entry in manifest["files"].items():
                    file = folder / part / name
                    file.parent.mkdir(parents=True, exist_ok=True)
                    copy = copies.setdefault(entry["sha256"], file)
                    shutil.copyfile(source / part / name, file) if copy == file else link(copy, file)
                    if folders.sha256(file) != entry["sha256"]:
                        fix = "prepare the data again, or check both disks"
                        raise UserError(f"the copy of {source / part / name} differs from its checksum: {fix}")
                shutil.copyfile(source / part / folders.NAME, folder / part / folders.NAME)
    except UserError:
        if _has_copy(out, source, manifests):  # of another command, which began at the same time
            return num_bytes, False
        raise
    return num_bytes, True


def _has_copy(out: Path, source: Path, manifests: dict[Path, dict[str, Any]]) -> bool:
    """Whether `out` has a folder with a manifest. Raises `UserError` if it is not a complete copy of the data.

    manifests : of the data and their folds, by the path in `source`
    """
    if not (out / folders.NAME).exists():
        return False
    for part, manifest in manifests.items():
        try:
            fingerprint = folders.verify(out / part)["fingerprint"]
        except UserError as error:
            reason = str(error).rsplit(": ", 1)[0]
            fix = "choose another folder, or delete this one"
            raise UserError(f"{out} is no complete copy of {source} ({reason}): {fix}") from None
        if fingerprint != manifest["fingerprint"]:
            raise UserError(f"{out} holds other data than {source}: choose another folder")
    return True
