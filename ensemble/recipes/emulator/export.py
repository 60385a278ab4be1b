"""Export of a trained member to a file for other programs. The suffix of the file determines the format (formats.py).

python scripts/export_model.py member=runs/emulator/members/mlp data=runs/emulator/prepared out=runs/emulator/mlp.pt2
"""

from ensemble import folders
from ensemble.recipes.emulator import trained


def export(member: str, data: str, out: str, dtype: str) -> list[str]:
    """Write the file of a member that was trained on `data`, and return lines to print; see `formats.export`."""
    network = trained.network_of(member, data)

    from ensemble.recipes.emulator import formats

    report = formats.export(network, folders.read_manifest(data), out, dtype)
    return [
        f"{out}: {report['format']}, {dtype}, {', '.join(report['methods'])}",
        f"differs from the network by {report['difference']:.1e} of the largest value at most, on {report['rows']} rows",
    ]
