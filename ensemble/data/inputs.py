"""What prepared data mean to a member that learned from them, and which data it may predict."""

from pathlib import Path
from typing import Any

from ensemble.errors import UserError

FORECAST = "forecast"


def meaning(manifest: dict[str, Any]) -> dict[str, Any]:
    """From a manifest, what must be alike in any data that a member predicts: how rows were split may differ, no more.

    A manifest may say so itself, under `alike`; of one that does not, it is the features and the settings.
    """
    if "alike" in manifest:
        return manifest["alike"]
    return {
        "features": [feature["name"] for feature in manifest["features"]],
        "panel": {name: value for name, value in manifest["config"].items() if name not in ("shares", "folds")},
        **{name: manifest[name] for name in ("categories", "has_text") if name in manifest},
    }


def refuse_foreign(
    member: str | Path, learned: dict[str, Any], data: str | Path, manifest: dict[str, Any], split: str
) -> None:
    """Raise `UserError` for data that mean something else, and for splits whose rows a member may have been trained on.

    `learned` has the fingerprint and the inputs (see `meaning`) of the data that the member learned from.
    """
    here = meaning(manifest)
    differing = [name for name in {**here, **learned["inputs"]} if here.get(name) != learned["inputs"].get(name)]
    if differing:
        raise UserError(f"{data} was prepared otherwise than the data {member} learned from: {', '.join(differing)} differ")
    if split != FORECAST and manifest["fingerprint"] != learned["fingerprint"]:
        raise UserError(
            f"{member} learned from data {learned['fingerprint']}, and {data} is {manifest['fingerprint']}, whose {split} "
            "split may hold rows that it was trained on: predict on its own data, or only splits=[forecast]"
        )
