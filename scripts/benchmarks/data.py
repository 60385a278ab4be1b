"""The cost of data: weekly rows from millions of reviews, the memory for preparing them, and batches gathered from them."""

import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.commands import command
from benchmarks.runs import enough, in_turn, spread
from benchmarks.timing import call, called, cpu_seconds, script, timed
from ensemble import folders

NUM_REVIEWS, NUM_PRODUCTS = 4_000_000, 400_000
"""The size of the generated file of `panel`."""


@command
def panel(reference: str = "", reference_python: str = "python3") -> dict[str, Any]:
    """Seconds and memory of weekly features from a large file: all features, basic columns, a public project's script.

    reference : build_weekly_dataset_fast.py of LookJohnny/csci653-as01; empty measures this project alone
    reference_python : an interpreter with pandas, pyarrow, tqdm and dask[dataframe]
    """
    if reference:
        timed([reference_python, reference, "--help"])  # fails now, not after minutes, if one of the two cannot run
    with tempfile.TemporaryDirectory() as scratch:
        file = called(market_parquet, scratch, NUM_REVIEWS, NUM_PRODUCTS)
        all_features = (f"source=[{file}]", f"out={scratch}/prepared", "panel.num_tokens=0", "overwrite=true")
        commands: dict[str, list[Any]] = {
            "all features": script("prepare_data", *all_features),
            "basic columns": [sys.executable, *call(basic_panel, file, f"{scratch}/basic.parquet")],
        }
        if reference:
            commands["reference"] = [reference_python, reference, "--input", file, "--out", f"{scratch}/reference.parquet"]
        measured = in_turn({name: partial(timed, words) for name, words in commands.items()}, 3)
    result: dict[str, Any] = {"reviews": NUM_REVIEWS, "products": NUM_PRODUCTS, "runs": measured}
    for figure in ("wall_s", "cpu_s", "peak_mb"):
        result[f"median_{figure}"] = {
            name: statistics.median(run[figure] for run in runs) for name, runs in measured.items()
        }
    if reference:
        pairs = list(zip(measured["reference"], measured["basic columns"], strict=True))
        result["times_faster_than_reference"] = spread([theirs["wall_s"] / ours["wall_s"] for theirs, ours in pairs])
    return result


def prepared_market(folder: str | Path, *words: str) -> Path:
    """Prepared data of hot_sellers from a generated market; `words` are settings of prepare_data.py."""
    data = Path(folder) / "prepared"
    timed(script("prepare_data", f"out={data}", f"raw={folder}/raw", *words))
    return data


def market(folder: str, num_reviews: int, num_products: int, with_text: bool = True) -> list[str]:
    """Write a generated market, and return the files of reviews and of products."""
    from ensemble.recipes.hot_sellers.market import write_market
    from ensemble.recipes.hot_sellers.settings import MarketConfig

    config = MarketConfig(num_reviews=num_reviews, num_products=num_products, with_text=with_text)
    return list(map(str, write_market(Path(folder), config, progress=True)))


def market_parquet(folder: str, num_reviews: int, num_products: int) -> str:
    """A generated market without text as one Parquet file in the raw schema of 2023."""
    import polars as pl

    lines, _ = market(f"{folder}/raw", num_reviews, num_products, False)
    pl.scan_ndjson(lines).sink_parquet(f"{folder}/reviews.parquet")
    Path(lines).unlink()
    return f"{folder}/reviews.parquet"


def basic_panel(source: str, out: str) -> None:
    """Compute the reference's columns from a Parquet file in the raw schema, with the recipe's weekly sums and windows.

    There is a row for each week in which a product has reviews: reviews, helpful votes, verified purchases, mean rating,
    reviews in the 4 weeks up to this one and in the 12 weeks after it, growth, and whether the growth is among the top 5 %
    of the week.
    """
    import numpy as np
    import polars as pl

    from ensemble.recipes.hot_sellers import splits, weekly

    columns = ["parent_asin", "timestamp", "rating", "helpful_vote", "verified_purchase"]
    raw = pl.read_parquet(source, columns=columns)
    products = raw.select(pl.col("parent_asin").unique().sort()).with_row_index("product")
    key = pl.col("product").cast(pl.Int64) * weekly.SPAN + weekly.week_of(pl.col("timestamp"))
    weeks = (
        raw.lazy()
        .join(products.lazy(), on="parent_asin")
        .select(key.alias("key"), "rating", "helpful_vote", "verified_purchase")
        .group_by("key")
        .agg(
            pl.len().cast(pl.Int32).alias("reviews"),
            pl.col("helpful_vote").sum().alias("helpful_votes"),
            pl.col("verified_purchase").sum().alias("verified"),
            pl.col("rating").mean().alias("rating_mean"),
        )
        .sort("key")
        .with_columns(
            (pl.col("key") // weekly.SPAN).cast(pl.Int32).alias("product"),
            (pl.col("key") % weekly.SPAN).cast(pl.Int32).alias("week"),
        )
        .collect()
    )
    series = weekly.WeeklySeries(weeks)
    rows = weekly.Windows(series, weeks["product"].to_numpy(), weeks["week"].to_numpy())
    before, after = rows.sum("reviews", 4), rows.next("reviews", 12)
    growth = (after / (before + 1)).astype(np.float32)
    week = rows.week.astype(np.int16)
    hot = splits.is_hot(week, growth, splits.growth_thresholds(week, growth, 0.05))
    weeks.select(
        products["parent_asin"].gather(weeks["product"]).alias("product_id"),
        pl.exclude("key", "product"),
        pl.Series("previous_4w", before),
        pl.Series("next_12w", after),
        pl.Series("growth", growth),
        pl.Series("hot", hot),
    ).write_parquet(out, compression="snappy")  # as the reference writes


@command
def memory() -> dict[str, Any]:
    """Peak memory and seconds of preparing markets of 3 and 30 million reviews; needs 25 GB of disk and half an hour."""
    results = {}
    for number in (3_000_000, 30_000_000):
        results[f"{number:,}"] = prepare_market(number, number // 100)
        print(results, flush=True)
    return results


def prepare_market(num_reviews: int, num_products: int) -> dict[str, float]:
    """Seconds and peak memory of preparing a generated market with text from JSON lines."""
    with tempfile.TemporaryDirectory() as scratch:
        files = called(market, f"{scratch}/raw", num_reviews, num_products)
        words = (f"out={scratch}/prepared", f"source=[{files[0]}]", f"metadata=[{files[1]}]")
        usage = timed(script("prepare_data", *words))
        splits = folders.read_manifest(f"{scratch}/prepared")["splits"]
        bytes_read = sum(Path(file).stat().st_size for file in files)
        rows = sum(facts["rows"] for facts in splits.values())
    return {**usage, "raw_gb": round(bytes_read / 1e9, 2), "rows": rows}


@command
def loader(num_batches: int = 200) -> dict[str, Any]:
    """Rows per CPU second of loading hot_sellers batches, compared with the torch format of `datasets`.

    num_batches : batches of 256 rows in each of five rounds
    """
    enough(num_batches, 1, "num_batches", "a measurement")

    import numpy as np
    from datasets import load_from_disk

    from ensemble.recipes.hot_sellers import training
    from ensemble.recipes.hot_sellers.settings import RecipeConfig

    batch_size = 256
    with tempfile.TemporaryDirectory() as folder:
        data = prepared_market(folder)
        rows = training.make(RecipeConfig(), str(data)).rows("train")
        table = load_from_disk(str(data / "rows" / "train")).with_format("torch")
        order = np.random.default_rng(0).permutation(len(rows))
        batches = list(np.resize(order, (num_batches, batch_size)))
        lists = [batch.tolist() for batch in batches[::20]]  # fewer, since `datasets` is slow

        def rows_per_cpu_s(fetch: Callable[[Any], object], batches: list[Any]) -> float:
            return len(batches) * batch_size / cpu_seconds(lambda: [fetch(batch) for batch in batches])

        gather, datasets = partial(rows_per_cpu_s, rows.gather, batches), partial(rows_per_cpu_s, table.__getitems__, lists)
        speeds = in_turn({"gather": gather, "datasets": datasets}, 5)
    ratios = [ours / theirs for ours, theirs in zip(speeds["gather"], speeds["datasets"], strict=True)]
    medians = {f"{name}_rows_per_cpu_s": round(statistics.median(values)) for name, values in speeds.items()}
    return {**medians, "ratio_median": statistics.median(ratios), "ratio_least": min(ratios)}
