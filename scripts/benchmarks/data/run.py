"""The process that `panel` starts: it computes only the basic columns of the panel."""

from benchmarks.data.settings import BasicPanel


def run(settings: BasicPanel) -> None:
    """Compute the reference's columns from a Parquet file in the raw schema, with the recipe's weekly sums and windows.

    There is a row for each active product-week: reviews, helpful votes, verified purchases, mean rating, reviews in the 4
    weeks up to it and in the 12 weeks after it, growth, and whether that is among the top 5 % of the week.
    """
    source, out = settings.source, settings.out
    import numpy as np
    import polars as pl

    from ensemble.recipes.hot_sellers import prepare as panels
    from ensemble.recipes.hot_sellers import weekly

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
    series = weekly.WeeklySeries.from_frame(weeks)
    rows = weekly.Windows(series, weeks["product"].to_numpy(), weeks["week"].to_numpy())
    before, after = rows.sum("reviews", 4), rows.next("reviews", 12)
    growth = (after / (before + 1)).astype(np.float32)
    week = rows.week.astype(np.int16)
    thresholds = panels.growth_thresholds(week, growth, 0.05)
    least = np.array([thresholds.get(number, np.inf) for number in range(week.min(), week.max() + 1)], np.float32)
    weeks.select(
        products["parent_asin"].gather(weeks["product"]).alias("product_id"),
        pl.exclude("key", "product"),
        pl.Series("previous_4w", before),
        pl.Series("next_12w", after),
        pl.Series("growth", growth),
        pl.Series("hot", growth > least[week - week.min()]),
    ).write_parquet(out, compression="snappy")  # as the reference writes
