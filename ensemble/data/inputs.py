"""The columns and settings of prepared data that a member depends on, and the check that it may predict other data."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ensemble.errors import UserError, listed, shortened

FORECAST = "forecast"
BLEND = "blend"
"""The split on which an ensemble is fitted."""
LEARNED = ("train", "validation", BLEND)
"""The splits whose rows the final model of a refit learns. This model predicts only later splits."""


IDS = ("row_id", "group", "cluster")
"""The columns of whole numbers in a prediction file."""


def meaning(manifest: dict[str, Any]) -> dict[str, Any]:
    """The entries of a manifest that must be equal in a member's training data and in all data that it predicts.

    They are the entry `alike` if there is one. Otherwise they are the names of the features, the settings of the preparation
    except those that say how rows are split, and the entries `categories` and `has_text` if there are such.
    """
    if "alike" in manifest:
        return manifest["alike"]
    return {
        "features": [feature["name"] for feature in manifest["features"]],
        "panel": {name: value for name, value in manifest["config"].items() if name not in ("shares", "folds")},
        **{name: manifest[name] for name in ("categories", "has_text") if name in manifest},
    }


def refuse_foreign(
    member: str | Path, trained_on: dict[str, Any], data: str | Path, manifest: dict[str, Any], split: str
) -> None:
    """Raise `UserError` for data with other features or settings, and for a split that may contain training rows.

    trained_on : `fingerprint` and `inputs` (see `meaning`) of the member's training data. data : the folder of the
    data to predict. manifest : of this folder.
    """
    inputs, expected = meaning(manifest), trained_on["inputs"]
    differing = _differences(inputs, expected)
    if differing:
        raise UserError(
            f"{data} was prepared in another way than the training data of {member}, with other values of "
            f"{listed(differing)}: prepare it with the same settings, and from the same files if these "
            "values depend on them, or train again"
        )
    if split != FORECAST and manifest["fingerprint"] != trained_on["fingerprint"]:
        or_forecast = ", or only splits=[forecast]" if FORECAST in manifest["splits"] else ""
        raise UserError(
            f"{member} was trained on data with the fingerprint {trained_on['fingerprint']}, but {data} has the fingerprint "
            f"{manifest['fingerprint']}, so its {split} split may contain training rows: predict the data that {member} was "
            f"trained on{or_forecast}"
        )


def _differences(inputs: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The names of differing entries; if an entry is a mapping, the names of its differing keys with both values."""
    names = []
    for name in {**inputs, **expected}:
        now, before = inputs.get(name), expected.get(name)
        if isinstance(now, dict) and isinstance(before, dict):
            names += [
                f"{name}.{key} ({shortened(str(now.get(key)), 40)}, not {shortened(str(before.get(key)), 40)})"
                for key in {**now, **before}
                if now.get(key) != before.get(key)
            ]
        elif now != before:
            names.append(name)
    return names


def checked_columns(columns: Any, function: str, names: Iterable[str]) -> dict[str, Any]:
    """Return the columns that a function of a recipe returned; `UserError` unless those of `names` are NumPy arrays, and
    `IDS` whole numbers."""
    if not isinstance(columns, dict):
        raise UserError(f"{function} returns {type(columns).__name__}: return a dict of NumPy arrays")
    for name in names:
        values = columns.get(name)
        kind = f"of the type {values.dtype}" if isinstance(values, np.ndarray) else f"as {type(values).__name__}"
        if name not in columns:
            raise UserError(f"{function} returns no {name}: return this column of the rows too")
        if not isinstance(values, np.ndarray) or (name in IDS and values.dtype.kind not in "iu"):
            rule = "whole numbers" if name in IDS else "numbers"
            raise UserError(f"{function} returns {name} {kind}: return a NumPy array of {rule}")
    return columns
