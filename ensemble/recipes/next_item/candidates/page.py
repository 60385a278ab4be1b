"""The part of the report that differs for candidates: the command that prepared the data."""

from typing import Any

from ensemble.report.commands import settings_words


def prepare_words(manifest: dict[str, Any]) -> list[str]:
    """The arguments of the scripts/prepare_data.py command that prepared the data; the manifest has no folders."""
    settings = {name: manifest["config"][name] for name in ("num_candidates", "num_learned", "shares", "seed")}
    return ["data=DATA", "rankings=[RANKINGS]", *settings_words(settings)]
