"""The forecast of next_item compared with events that the fit does not have: the last event of each user is hidden."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.commands import command
from benchmarks.timing import script, timed
from ensemble import folders
from ensemble.data.census import Census
from ensemble.errors import UserError
from ensemble.metrics import bootstrap
from ensemble.recipes.next_item import interactions, item_metrics

NUM_DRAWS = 1000
FORECASTS = {"ensemble": "ensemble/forecast.csv", "best member on validation": "all/forecast.csv"}
"""The files of a fit with a forecast, by the name of what predicted it."""
IDS = {"user_id": pl.String, "item_id": pl.String}


@command
def next_item_forecast(source: str = "???", time_limit: int = 60, core: int = 1, seed: int = 0) -> dict[str, Any]:
    """NDCG@10 and HR@10 of the forecasts of a fit, on the last event of each user, which is hidden; a minute or two.

    source : a file of interactions with times since 1970, such as ml-100k/u.data
    time_limit, core : settings of scripts/fit.py
    seed : the random seed of the bootstrap over users
    """
    events, formats = interactions.read([Path(source)], "auto", {}, Census())
    if not set(formats) <= interactions.DATED:
        raise UserError(f"source={source} has no times since 1970: give another file")
    events = interactions.ordered(events).with_columns(is_last=pl.col("user").is_last_distinct())
    hidden = events.filter("is_last").select("user", "item")
    with tempfile.TemporaryDirectory() as folder:
        raw, out = Path(folder) / "events.txt", Path(folder) / "fit"
        known = events.filter(~pl.col("is_last")).select("user", "item", pl.col("time") / 1000)
        known.write_csv(raw, include_header=False, separator=" ")
        settings = (f"source=[{raw}]", "format=times", f"time_limit={time_limit}", f"core={core}")
        timed(script("fit", "--recipe", "next_item", *settings, f"out={out}"))
        results = {
            name: _scores(pl.read_csv(out / file, schema_overrides=IDS), hidden, seed) for name, file in FORECASTS.items()
        }
        on_test = {row["member"]: row["value"] for row in folders.read_json(out / "leaderboard.json")}
    return {"source": Path(source).name, "users": len(hidden), "forecast": results, "ndcg_at_10_on_test": on_test}


def _scores(forecast: pl.DataFrame, hidden: pl.DataFrame, seed: int) -> dict[str, Any]:
    """The scores of a forecast, with 95 % intervals over users. hidden : the `user` and `item` of each hidden event."""
    joined = hidden.join(forecast, left_on=["user", "item"], right_on=[*IDS], how="left")
    rank = joined["rank"].cast(pl.Float64).fill_null(np.inf).to_numpy()
    gains = np.stack([item_metrics.ndcg(rank, 10), item_metrics.hit(rank, 10)], axis=1)
    draws = bootstrap.draws_of(
        lambda weight: weight @ gains / weight.sum(), np.arange(len(rank)), NUM_DRAWS, np.random.default_rng(seed)
    )
    names = ["ndcg_at_10", "hr_at_10"]
    return {name: interval.as_json() for name, interval in bootstrap.intervals(names, draws).items()}
