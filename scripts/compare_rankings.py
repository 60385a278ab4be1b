"""Compare next_item members and baselines by their ranking files: a table, all scores as JSON, a picture, and a forecast.

python scripts/compare_rankings.py rankings=runs/beauty/rankings data=runs/beauty/prepared out=runs/beauty/table
python scripts/compare_rankings.py rankings=runs/beauty/rankings data=runs/beauty/prepared out=runs/beauty/table \\
    candidates=runs/beauty/candidates predictions=runs/beauty/predictions ensemble=runs/beauty/ensemble
"""

import dataclasses

from ensemble import configuration, errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """The ranking files to compare, and the folder for the result."""

    rankings: str = "???"
    """The folder of ranking files of scripts/predict.py, for validation and for `split`."""
    data: str = "???"
    """The prepared data that were predicted."""
    out: str = "???"
    """The folder for table.md, scores.json, by_length.png and forecast.csv."""
    split: str = "test"
    """The split on which members are compared; the best member is chosen on validation."""
    candidates: str = ""
    """Data of `prepare_data.py --recipe candidates`, whose members are added to the table; empty for none. Only with
    split=test."""
    predictions: str = ""
    """The folder of prediction files for the candidates; empty for none."""
    ensemble: str = ""
    """The folder of an ensemble that was fitted on these prediction files; empty for none."""
    num_draws: int = 1000
    """Draws of the bootstrap over users."""
    seed: int = 0
    """Seed of the bootstrap."""
    overwrite: bool = False
    """Replace `out` if it exists."""


def main() -> None:
    settings = configuration.from_command_line(CompareConfig, __doc__)
    configuration.check(settings, num_draws=(settings.num_draws >= 1, "at least 1"), seed=(settings.seed >= 0, "0 or more"))
    if bool(settings.candidates) != bool(settings.predictions or settings.ensemble):
        raise errors.UserError(
            "candidates=… needs predictions=… or ensemble=…, each of which needs candidates=…: give them together, or none"
        )

    from ensemble.recipes.next_item import comparison

    print(comparison.as_text(comparison.compare(**configuration.to_dict(settings))))


if __name__ == "__main__":
    errors.run(main)
