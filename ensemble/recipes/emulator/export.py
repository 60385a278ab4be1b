"""A trained member as one file for other programs, in the format of the file's suffix: see formats.py.

python scripts/export_model.py member=runs/emulator/members/mlp data=runs/emulator/prepared out=runs/emulator/mlp.pt2
"""

from ensemble import folders
from ensemble.recipes.emulator import trained


def export(member: str, data: str, out: str, dtype: str) -> list[str]:
    """Write the file and return what is to be printed; see `formats.export`.

    member : folder of the member
    data : the prepared data that it learned from
    dtype : float32 or float64
    """
    network = trained.network_of(member, data)

    from ensemble.recipes.emulator import formats

    found = formats.export(network, folders.read_manifest(data), out, dtype)
    return [
        f"{out}: {found['format']}, {dtype}, {', '.join(found['methods'])}",
        f"differs from the network by {found['difference']:.1e} of the largest value at most, on {found['rows']} rows",
    ]
