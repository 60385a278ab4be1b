"""The sections of the model card that are specific to candidates."""

import dataclasses
from typing import Any

from ensemble.predictor.card import Parts, default_parts


def parts(manifest: dict[str, Any], scores: dict[str, Any]) -> Parts:
    """The sections shared by all recipes, with the limit that only candidates are ranked."""
    shared = default_parts(manifest, scores)
    limit = (
        f"- It ranks only the candidates of a sequence, the {manifest['config']['num_candidates']} best items of each "
        "ranking file: if the next item is not among them, it cannot be ranked, and the scores leave that sequence out."
    )
    return dataclasses.replace(shared, limits=[limit, *shared.limits])
