"""Copy prepared data to a node's own disk, and compare every file with its checksum.

python scripts/stage_data.py source=runs/demo/prepared out=/local/scratch/prepared
"""

import shutil
from pathlib import Path

from ensemble import folders
from ensemble.errors import UserError

KIND = "staged data"


def stage(source: str | Path, out: str | Path) -> tuple[int, bool]:
    """Copy prepared data and their folds to `out`, unless it has them. Returns their size in bytes, and whether they were
    copied.

    Raises `UserError` for damaged data, for a disk without enough space, and if `out` has other content.
    """
    source, out = Path(source), Path(out)
    parts = [Path(), *(manifest.parent.relative_to(source) for manifest in sorted(source.glob(f"folds/*/{folders.NAME}")))]
    manifests = {part: folders.read_manifest(source / part) for part in parts}
    num_bytes = sum(entry["bytes"] for manifest in manifests.values() for entry in manifest["files"].values())
    if (out / folders.NAME).exists():
        if any(folders.verify(out / part)["fingerprint"] != manifests[part]["fingerprint"] for part in parts):
            raise UserError(f"{out} holds other data than {source}: choose another folder")
        return num_bytes, False
    out.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(out.parent).free) < num_bytes:
        raise UserError(
            f"{out.parent} has {free / 1e9:.1f} GB free, but {source} has {num_bytes / 1e9:.1f} GB: leave SCRATCH_FOLDER in "
            "slurm/site.sh empty, or name a larger disk"
        )
    with folders.new_folder(out, False, KIND) as folder:
        for part, manifest in manifests.items():
            for name in (*manifest["files"], folders.NAME):
                (folder / part / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / part / name, folder / part / name)
            folders.verify(folder / part)
    return num_bytes, True
