"""What the model card of an ensemble says of candidates."""

import dataclasses
from typing import Any

from ensemble.predictor.card import Parts, default_parts


def parts(about: dict[str, Any], scores: dict[str, Any]) -> Parts:
    """The sentences for rows of any kind, and that an item which is no candidate cannot be ranked."""
    shared = default_parts(about, scores)
    limit = (
        f"- It ranks only the candidates of a sequence, the {about['config']['num_candidates']} best items of each ranking "
        "file: where the next item is not among them, no ensemble can find it, and the scores leave that sequence out."
    )
    return dataclasses.replace(shared, limits=[limit, *shared.limits])
