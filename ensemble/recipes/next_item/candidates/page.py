"""What the report of candidates says otherwise than that of a table."""

from typing import Any

from ensemble.report.commands import settings_words


def prepare_words(about: dict[str, Any]) -> list[str]:
    """The words of scripts/prepare_data.py that prepared the data, from folders that no manifest names."""
    settings = {name: about["config"][name] for name in ("num_candidates", "num_learned", "shares", "seed")}
    return ["data=DATA", "rankings=[RANKINGS]", *settings_words(settings)]
