"""Parts of the report that differ for candidates."""

from typing import Any

from ensemble.report.commands import settings_words


def prepare_words(manifest: dict[str, Any]) -> list[str]:
    """The arguments of the scripts/prepare_data.py command that prepared the data; folders are not in the manifest."""
    settings = {name: manifest["config"][name] for name in ("num_candidates", "num_learned", "shares", "seed")}
    return ["data=DATA", "rankings=[RANKINGS]", *settings_words(settings)]
