"""Prepares a panel from raw reviews: a row for each product and calendar week, labelled and split forward in time.

    row        a product at the end of week t, with at least `min_reviews` reviews in its last `base_weeks` weeks
    growth     reviews in (t, t + horizon_weeks] ÷ (reviews in (t − base_weeks, t] + 1)
    hot        whether growth is among the top `top_fraction` of the week's rows; rows that tie at the threshold are not hot
    forecast   the rows of the last complete week, whose labels are unknown

Only weeks whose horizon lies inside the data are labelled. The splits train | validation | blend | test follow each other,
with `horizon_weeks` weeks left out between them, so that no label of one split depends on the next. With `folds`, folds.py
also divides the weeks before test into cross-validation folds.

The prepared folder has Arrow datasets that `datasets.load_from_disk` opens: `products`, `weeks` (the weeks of each product
that have reviews), `reviews` (token ids), and `rows/<split>`, whose rows refer to the other three by index. The raw reviews
are read once and divided among spill files by a hash of the product. All later steps process one spill file at a time.
Memory use grows only by category and price of each product, and by week and growth of each row until each week's threshold
is computed.
"""

import dataclasses
import math
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from tqdm import tqdm

from ensemble import configuration, folders
from ensemble.arrow import TableWriter, join
from ensemble.data import duplicates, octets, reviews
from ensemble.data.census import LAST_WEEK
from ensemble.data.folds import write_folds
from ensemble.data.inputs import FORECAST
from ensemble.data.raw_files import expand_sources
from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import advice, coverage, features, folds, spills, weekly
from ensemble.recipes.hot_sellers.market import GENERATED, MARKET_FILES, write_market
from ensemble.recipes.hot_sellers.settings import NUM_WEEKS, RECORDED_SETTINGS, MarketConfig, PanelConfig, PrepareConfig
from ensemble.recipes.hot_sellers.splits import SPLITS, growth_by_week, growth_of, growth_thresholds, is_hot
from ensemble.task import Task

SHARED = ("products", "weeks", "reviews")
"""The folders that all splits and folds share. Rows of a split refer to rows of these folders by index."""
TASK = Task(kind="binary", target="hot", metric="average_precision", group="week", cluster="product", is_relative=True)
ROWS_PER_BLOCK = 250_000
TARGETS = {
    "hot": "1 if the row is hot, else 0",
    "growth": "reviews in the horizon ÷ (reviews in the base weeks + 1)",
    "rating_next": "mean rating in the horizon, stars; NaN without a review",
    "engagement": "helpful votes, counted at the crawl, per review in the horizon; NaN without a review",
}
INDEX_COLUMNS = {
    "row_id": pa.int64(),
    "product": pa.int32(),
    "week": pa.int32(),
    "weeks_begin": pa.int64(),
    "weeks_end": pa.int64(),
    "reviews_begin": pa.int64(),
    "reviews_end": pa.int64(),
}
"""Columns that are neither targets nor features: number, product and week of a row, its product's rows of the folder `weeks`
in the last `NUM_WEEKS` weeks, [weeks_begin, weeks_end), and of `reviews` up to its week, [reviews_begin, reviews_end)."""


def prepare(config: PrepareConfig, training: dict[str, Any] | None = None) -> dict[str, Any]:
    """Write the prepared folder and return its manifest.

    With `training`, the manifest of the members' training data, only the forecast rows are written, with the category codes
    of the training data. Raises `UserError` for wrong paths or settings, and for damaged or too few data.
    """
    check(config)
    if training is None and os.path.isdir(config.panel.tokenizer):  # new data are prepared in other current folders
        panel = dataclasses.replace(config.panel, tokenizer=os.path.abspath(config.panel.tokenizer))
        config = dataclasses.replace(config, panel=panel)
    with folders.new_folder(config.out, config.overwrite, folders.PREPARED) as folder:
        spill = folder / "spill"
        census = reviews.Census()
        files, product_files = raw_files(config)
        num_product_spills = spills.num_product_spills(files)
        product_census, categories = spills.spill_products(product_files, spill, config, training, num_product_spills)
        facts = {**spills.spill_reviews(files, spill, census, config), "num_product_spills": num_product_spills}
        if training is None:  # otherwise they are among the manifest's notes
            for warning in facts["warnings"]:
                print(f"warning: {warning}", file=sys.stderr)
        else:
            # A member trained on text needs tokens, even if all are padding
            facts["has_text"] = training["has_text"]
            facts["unused"] = coverage.unstated(training)
        builder = _Builder(folder, spill, files, config.panel, facts, categories)
        builder.sum_weeks(census)
        shares = coverage.check(config, builder.text, builder.metadata if product_files else None, spill, training)
        if training is None:
            builder.split()
        builder.write_pieces()
        builder.write_rows(folder / "rows")
        defaults = PrepareConfig()
        values_of = {"category": {"values": ["unknown", *categories[1:]]}}  # the values of other features are numbers
        manifest = {
            **folders.first_entries("hot_sellers", 2, TASK),
            "sources": folders.sources((*files, *product_files)),
            "config": configuration.to_dict(config.panel),
            "census": census.to_dict(),
            "product_census": product_census.to_dict(),
            "first_week": str(weekly.monday(facts["first_week"])),
            "last_week": str(weekly.monday(facts["last_week"])),
            "splits": builder.describe_splits(builder.weeks_of),
            "products": builder.num_products,
            "categories": categories,
            "channels": list(weekly.CHANNELS),
            "features": [
                {"name": f.name, "unit": f.unit, "meaning": f.meaning, "source": f.source, **values_of.get(f.name, {})}
                for f in builder.features
            ],
            "has_text": facts["has_text"],
            **coverage.entry("lacking", shares),
            **coverage.entry("unstated", [*facts["stated"], builder.with_category, builder.with_price]),
            **{name: value for name in RECORDED_SETTINGS if (value := getattr(config, name)) != getattr(defaults, name)},
        }
        if training is not None:
            if fractions := coverage.too_few(manifest, training):
                missing = {quantity: round(1 - fraction, 6) for quantity, fraction in fractions.items()}
                manifest["lacking"] = manifest.get("lacking", {}) | missing
            manifest["notes"] = [*facts["warnings"], *coverage.notes(manifest, training)]
        splits_of_folds = [builder.describe_splits(weeks_of, f"fold {k}'s ") for k, weeks_of in enumerate(builder.folds)]
        checksums: dict[tuple[int, int], str] = {}
        manifest["folds"] = write_folds(folder, manifest, splits_of_folds, SHARED, builder.write_rows, checksums)
        shutil.rmtree(spill)
        tables = [census.table(), *([product_census.table()] if product_files else [])]
        print("\n".join([*tables, *map(str, shares)]))
        return folders.write_manifest(folder, manifest, checksums, leave_out="folds")


def check(config: PrepareConfig) -> None:
    """Raise `UserError` for settings outside their ranges."""
    panel = config.panel
    positive_shares = len(panel.shares) == len(SPLITS) and all(0 < share < math.inf for share in panel.shares)
    configuration.check(config, fractions="max_bad_fraction min_matched")
    configuration.check(
        panel,
        "panel.",
        at_least_1="min_reviews",
        horizon_weeks=(1 <= panel.horizon_weeks <= 520, "between 1 and 520 weeks"),
        base_weeks=(1 <= panel.base_weeks <= 52, "between 1 and 52 weeks"),
        top_fraction=(0 < panel.top_fraction < 1, "more than 0 and below 1"),
        shares=(positive_shares, "four positive numbers"),
        num_tokens=(0 <= panel.num_tokens <= 4096, "between 0 and 4096"),
        folds=(0 <= panel.folds <= 52, "between 0 and 52"),
        vocabulary_size=(2 <= panel.vocabulary_size <= 65536, "between 2 and 65536"),
    )


def raw_files(config: PrepareConfig) -> tuple[list[Path], list[Path]]:
    """Return the review files and the metadata files, which are first generated or downloaded if the settings require it."""
    raw = Path(config.raw or f"{config.out.rstrip('/')}-raw")
    if not config.source:
        if config.metadata:
            raise UserError(
                "metadata is given without source: name the review files too, or leave both out to generate a market"
            )
        octets.refuse_inside(config.out, [raw])
        folders.refuse_inside(raw / GENERATED)
        sizes = {name: (raw / name).stat().st_size for name in MARKET_FILES if (raw / name).exists()}
        if sizes and not config.overwrite:
            raise UserError(f"{raw} already holds raw files: name them as source, or add overwrite=true to generate others")
        generated = folders.read_json(raw / GENERATED) if (raw / GENERATED).exists() else {}
        if not sizes.items() <= generated.items():  # after a kill only one of the files may be there
            raise UserError(f"{raw} holds raw files that were not generated here: choose another raw=FOLDER")
        review_file, product_file = write_market(raw, config.market, progress=True)
        return [review_file], [product_file]
    defaults = dataclasses.asdict(MarketConfig())
    changed = {name: value for name, value in dataclasses.asdict(config.market).items() if value != defaults[name]}
    if changed:
        name, value = next(iter(changed.items()))
        raise UserError(
            f"market.{name}={value} applies only to a generated market, but source names your own files: "
            f"leave {'it' if len(changed) == 1 else 'market.*'} out, or leave source out"
        )
    files = expand_sources(config.source, raw)
    products = expand_sources(config.metadata, raw, "products") if config.metadata else []
    octets.refuse_inside(config.out, [*files, *products])
    return files, products


class _Builder:
    """Writes the four tables from the spilled reviews, one spill file at a time."""

    def __init__(
        self, folder: Path, spill: Path, files: list[Path], panel: PanelConfig, facts: dict[str, Any], categories: list[str]
    ):
        self.folder, self.spill, self.files, self.panel = folder, spill, files, panel
        self.first_week, self.last_week, self.has_text = facts["first_week"], facts["last_week"], facts["has_text"]
        self.categories, self.time_units, self.unused = categories, facts["time_units"], facts.get("unused", [])
        self.num_product_spills = facts["num_product_spills"]
        self.metadata, self.text = coverage.Metadata(), coverage.Share("reviews", "text")
        self.with_category, self.with_price = (
            coverage.Share("products with metadata", name) for name in (coverage.CATEGORY, coverage.PRICE)
        )
        self.features = features.selection(panel.as_of_crawl)
        num_weeks = self.last_week - self.first_week + 1
        self.reviews_by_category = np.zeros((len(categories) + 1, num_weeks + 1), np.int64)
        self.parts: list[dict[str, Any]] = []
        self.num_products = 0
        self.weeks_of: dict[str, folds.Weeks] = {FORECAST: (self.last_week, self.last_week)}
        self.folds: list[dict[str, folds.Weeks]] = []
        self.thresholds: dict[int, float] = {}
        self.counts: dict[folds.Weeks, np.ndarray] = {}
        """The numbers of rows and of hot rows in each piece. A piece is a range of weeks that no split divides."""

    def sum_weeks(self, census: reviews.Census) -> None:
        """Sort each spill file, remove duplicates, and sum by week; write `products`, `weeks` and `reviews`."""
        category_code = {name: code for code, name in enumerate(self.categories)}
        channels = {"week": pa.int32(), **dict.fromkeys(weekly.CHANNELS, pa.int32())}
        token_type = pa.int32() if self.panel.tokenizer else pa.uint16()
        review_schema = pa.schema(
            {"week": pa.int32(), "rating": pa.float32(), "tokens": pa.list_(token_type, max(1, self.panel.num_tokens))}
        )
        product_schema = pa.schema(
            {"product_id": pa.large_string(), "title": pa.large_string(), "store": pa.large_string(), "category": pa.int32(),
             "price": pa.float64()}
        )  # fmt: skip
        with (
            TableWriter(self.folder / "products", product_schema) as product_writer,
            TableWriter(self.folder / "weeks", pa.schema(channels)) as week_writer,
            TableWriter(self.folder / "reviews", review_schema) as review_writer,
        ):
            for path in tqdm(sorted(self.spill.glob("reviews-*.arrow")), desc="weeks", unit=" files"):
                frame, products = self._sorted(path, category_code, census)
                weeks = weekly.sum_by_week(frame)
                context = features.PanelContext(
                    first_week=self.first_week,
                    category=products["category"].to_numpy(),
                    price=products["price"].to_numpy(),
                    reviews_by_category=self.reviews_by_category,
                )
                self.parts.append(
                    {
                        "path": path.with_name(path.name.replace("reviews", "weeks")),
                        "context": context,
                        "first_product": product_writer.num_rows,
                        "first_active_week": week_writer.num_rows,
                        "first_review": review_writer.num_rows,
                    }
                )
                weeks.write_ipc(self.parts[-1]["path"], compression="uncompressed")
                category_of_week = context.category[weeks["product"].to_numpy()]
                column = weeks["week"].to_numpy() - self.first_week + 1
                np.add.at(self.reviews_by_category, (category_of_week, column), weeks["reviews"].to_numpy())
                product_writer.write(products.to_arrow(compat_level=pl.CompatLevel.oldest()))
                week_writer.write(weeks.select(*channels).to_arrow())
                if self.has_text:
                    review_writer.write(frame.select("week", "rating", "tokens").to_arrow())
                path.unlink()
            self.num_products = product_writer.num_rows
        self.reviews_by_category[-1] = self.reviews_by_category.sum(axis=0)
        np.cumsum(self.reviews_by_category, axis=1, out=self.reviews_by_category)

    def split(self) -> None:
        """Compute the weeks of the splits and of each fold's splits, and the growth above which a row of a week is hot."""
        week, growth = growth_by_week(self._series(), self.panel, self.last_week)
        try:
            weeks_of, weeks_of_folds = folds.all_weeks(self.first_week, self.last_week, week, self.panel)
        except UserError as error:
            raise UserError(f"{error}{self._advice()}") from None
        self.folds = [{**weeks_of_fold, **self.weeks_of} for weeks_of_fold in weeks_of_folds]
        self.weeks_of = {**weeks_of, **self.weeks_of}
        self.thresholds = growth_thresholds(week, growth, self.panel.top_fraction)

    def write_pieces(self) -> None:
        """Compute the features of all rows, and write and count the rows of each piece."""
        pieces = folds.pieces(weeks for weeks_of in (self.weeks_of, *self.folds) for weeks in weeks_of.values())
        self.counts = {piece: np.zeros(2, np.int64) for piece in pieces}
        schema = pa.schema(INDEX_COLUMNS | dict.fromkeys([*TARGETS, *(f.name for f in self.features)], pa.float32()))
        next_id = 0
        with ExitStack() as open_writers:
            writers = {piece: open_writers.enter_context(TableWriter(self._folder_of(piece), schema)) for piece in pieces}
            for part, series in zip(tqdm(self.parts, desc="rows", unit=" files"), self._series(), strict=True):
                product, week = weekly.rows_with_recent_reviews(series, self.panel.base_weeks, self.last_week)
                for piece, writer in writers.items():
                    in_piece = (week >= piece[0]) & (week <= piece[1])
                    for rows in self._blocks(series, product[in_piece], week[in_piece], part["context"]):
                        table = self._table(rows, part, next_id)
                        writer.write(table)
                        next_id += table.num_rows
                        self.counts[piece] += table.num_rows, int(np.nansum(table["hot"].to_numpy()))

    def write_rows(self, folder: Path, fold: int | None = None) -> None:
        """Write folder/SPLIT for the splits of all data, or with `fold` for those of a fold, by concatenating pieces."""
        for split, weeks in (self.weeks_of if fold is None else self.folds[fold]).items():
            join(folder / split, [self._folder_of(piece) for piece in self._pieces_of(weeks)])

    def describe_splits(self, weeks_of: dict[str, folds.Weeks], prefix: str = "the ") -> dict[str, dict[str, Any]]:
        """The numbers of rows and hot rows and the dates of each split, for the manifest. Raises `UserError` for a split
        without rows or, if it has labels, without hot rows.

        prefix : text before the name of a split in the error
        """
        described = {}
        for split, (begin, end) in weeks_of.items():
            rows, hot = np.sum([self.counts[piece] for piece in self._pieces_of((begin, end))], axis=0).tolist()
            self._refuse_empty(split, rows, hot, prefix)
            dates = {"first_week": str(weekly.monday(begin)), "last_week": str(weekly.monday(end))}
            described[split] = {**dates, "rows": rows, "hot": hot}
        return described

    def _folder_of(self, piece: folds.Weeks) -> Path:
        return self.spill / f"rows-{piece[0]}"

    def _pieces_of(self, weeks: folds.Weeks) -> list[folds.Weeks]:
        return [piece for piece in self.counts if weeks[0] <= piece[0] and piece[1] <= weeks[1]]

    def _sorted(
        self, path: Path, category_code: dict[str, int], census: reviews.Census
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The distinct reviews of a spill file to the end of the last complete week, sorted by product and time, with
        product numbers; and the metadata of their products."""
        frame = pl.read_ipc_stream(path).with_columns(weekly.week_of(pl.col("time_ms")).alias("week"))
        complete = self._kept(frame, frame["week"] <= self.last_week, LAST_WEEK, census)
        products = self._metadata(complete.select(pl.col("product_id").unique().sort()), category_code)
        numbers = products.select("product_id", pl.int_range(pl.len(), dtype=pl.Int32).alias("product"))
        ordered = complete.join(numbers, on="product_id", how="left").sort(
            "product", "time_ms", "source_file", "source_line"
        )
        is_kept = pl.Series(duplicates.are_kept(ordered, self.time_units))
        distinct = self._kept(ordered, is_kept, "duplicate: the same product, user and time", census)
        if self.panel.num_tokens:
            self.text.add(len(distinct), int((distinct["words"] > 0).sum()))
        # A column that is empty in all training reviews was 0 in training, so it is 0 in new reviews too
        unused = [*self.unused, *(() if self.has_text else ("words", "sentiment"))]
        distinct = distinct.with_columns(pl.lit(0).cast(distinct.schema[name]).alias(name) for name in unused)
        return distinct, products

    def _kept(self, frame: pl.DataFrame, is_kept: pl.Series, kind: str, census: reviews.Census) -> pl.DataFrame:
        """The rows for which `is_kept` is true; the census counts the others."""
        dropped = frame.filter(~is_kept)
        first = dropped.select("source_file", "source_line", "product_id").head(reviews.NUM_EXAMPLES).iter_rows()
        examples = [reviews.Example(self.files[file].name, line, product) for file, line, product in first]
        census.drop(kind, len(dropped), examples)
        return frame.filter(is_kept)

    def _metadata(self, products: pl.DataFrame, category_code: dict[str, int]) -> pl.DataFrame:
        """Id, title, store, category code and price of each product. Unknown values are null, an unknown category is 0."""
        part = (pl.col("product_id").hash(0) % self.num_product_spills).cast(pl.Int32)
        matches = [
            pl.read_ipc_stream(path).join(products, on="product_id", how="semi")
            for number in products.select(part.unique().sort()).to_series()
            if (path := self.spill / f"products-{number}.arrow").exists()
        ]
        known = pl.concat([pl.DataFrame(schema=reviews.PRODUCT_SCHEMA), *matches]).unique("product_id", keep="first")
        self.metadata.add(products, known)
        self.with_category.add(len(known), int((known["category"].fill_null("") != "").sum()))
        if self.panel.as_of_crawl:
            self.with_price.add(len(known), known["price"].count())
        joined = products.join(known, on="product_id", how="left", maintain_order="left").select(*reviews.PRODUCT_SCHEMA)
        code = pl.col("category").fill_null("").replace_strict(category_code, default=0, return_dtype=pl.Int32)
        return joined.with_columns(code)

    def _blocks(
        self, series: weekly.WeeklySeries, product: np.ndarray, week: np.ndarray, context: features.PanelContext
    ) -> Iterator[features.PanelBlock]:
        """Rows with at least `min_reviews` reviews in the base weeks, from `ROWS_PER_BLOCK` product-weeks at a time."""
        for begin in range(0, len(product), ROWS_PER_BLOCK):
            block = slice(begin, begin + ROWS_PER_BLOCK)
            rows = features.PanelBlock(series, product[block], week[block], context)
            kept = rows.sum("reviews", self.panel.base_weeks) >= self.panel.min_reviews
            if not kept.all():
                rows = features.PanelBlock(series, product[block][kept], week[block][kept], context)
            if len(rows.week):
                yield rows

    def _table(self, rows: features.PanelBlock, part: dict[str, Any], next_id: int) -> pa.Table:
        """The table of a block of rows. The writer converts the types; the targets of forecast rows are NaN."""
        num_rows = len(rows.week)
        totals = rows.series.totals("reviews")
        columns: dict[str, np.ndarray] = {
            "row_id": np.arange(next_id, next_id + num_rows),
            "product": rows.product + part["first_product"],
            "week": rows.week,
            "weeks_begin": rows.position(NUM_WEEKS) + part["first_active_week"],
            "weeks_end": rows.position(0) + part["first_active_week"],
            "reviews_begin": totals[rows.position(weekly.SPAN)] + part["first_review"],
            "reviews_end": totals[rows.position(0)] + part["first_review"],
        }
        if rows.week[0] == self.last_week:
            columns |= {name: np.full(num_rows, np.nan) for name in TARGETS}
        else:
            growth = growth_of(rows, self.panel)
            ahead = rows.next("reviews", self.panel.horizon_weeks)
            columns |= {
                "hot": is_hot(rows.week, growth, self.thresholds),
                "growth": growth,
                "rating_next": features.ratio(rows.next("rating", self.panel.horizon_weeks), ahead) / 10,
                "engagement": features.ratio(rows.next("helpful_votes", self.panel.horizon_weeks), ahead),
            }
        return pa.table(columns | features.compute(rows, self.features))

    def _series(self) -> Iterator[weekly.WeeklySeries]:
        return (weekly.WeeklySeries(pl.scan_ipc(part["path"], glob=False).collect()) for part in self.parts)

    def _advice(self) -> str:
        return advice.settings_that_work(self._series, self.panel, self.first_week, self.last_week)

    def _refuse_empty(self, split: str, rows: int, hot: int, prefix: str) -> None:
        fewer_folds = ", or choose fewer panel.folds" if prefix.startswith("fold") else ""
        if not rows and split == FORECAST:
            raise UserError(
                f"no product has at least panel.min_reviews={self.panel.min_reviews} reviews in the last "
                f"{self.panel.base_weeks} weeks of the data, so there is nothing to forecast: "
                f"{advice.earlier_end(self._series, self.panel, self.last_week)}"
            )
        if not rows:
            raise UserError(
                f"{prefix}{split} split has no rows: lower panel.min_reviews, or give more data{fewer_folds}{self._advice()}"
            )
        if split != FORECAST and not hot:
            found = self._advice()
            fix = "give more data" if found.endswith(advice.NOTHING_WORKS) else "raise panel.top_fraction"
            lower = ", or lower panel.min_reviews" if self.panel.min_reviews > 1 else ""
            raise UserError(
                f"{prefix}{split} split has {rows} rows but no hot product, since its weeks have too few rows "
                f"or too many ties for panel.top_fraction={self.panel.top_fraction}: {fix}{lower}{fewer_folds}{found}"
            )
