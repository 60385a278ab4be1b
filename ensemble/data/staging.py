"""Copy prepared data to a node's own disk, and compare every file with its checksum.

python scripts/stage_data.py source=runs/demo/prepared out=/local/scratch/prepared
"""

import shutil
from pathlib import Path

from ensemble import folders
from ensemble.errors import UserError

KIND = "staged data"


def stage(source: str | Path, out: str | Path) -> tuple[int, bool]:
    """Copy prepared data to `out`, unless it contains them already. Returns their bytes, and whether they were copied.

    Raises `UserError` for damaged data, for a disk without enough space, and if `out` has other content.
    """
    source, out = Path(source), Path(out)
    manifest = folders.read_manifest(source)
    num_bytes = sum(entry["bytes"] for entry in manifest["files"].values())
    if (out / folders.NAME).exists():
        if folders.verify(out)["fingerprint"] != manifest["fingerprint"]:
            raise UserError(f"{out} holds other data than {source}: choose another folder")
        return num_bytes, False
    out.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(out.parent).free) < num_bytes:
        raise UserError(
            f"{out.parent} has {free / 1e9:.1f} GB free, but {source} has {num_bytes / 1e9:.1f} GB: leave SCRATCH_FOLDER in "
            "slurm/site.sh empty, or name a larger disk"
        )
    with folders.new_folder(out, False, KIND) as folder:
        for name in (*manifest["files"], folders.NAME):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, folder / name)
        folders.verify(folder)
    return num_bytes, True
