"""The cost of data: the panel of millions of reviews, the memory of preparing them, and batches gathered from them.

python scripts/benchmark.py panel | memory | loader
"""

import multiprocessing
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.runs import spread
from benchmarks.timing import cpu_seconds, script, timed
from ensemble import folders


def panel(num_reviews: int, num_products: int, reference: str, reference_python: str, rounds: int = 3) -> dict[str, Any]:
    """Seconds and memory of the panel of one Parquet file: all features, the basic columns, and the script of the reference.

    `reference` is build_weekly_dataset_fast.py of LookJohnny/csci653-as01, run by `reference_python`, which has Dask.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file = in_own_process(market_parquet, Path(scratch), num_reviews, num_products)
        all_features = (f"source=[{file}]", f"out={scratch}/prepared", "panel.num_tokens=0", "overwrite=true")
        commands: dict[str, list[Any]] = {
            "all features": script("prepare_data", *all_features),
            "basic columns": script("benchmark", "basic-panel", f"source={file}", f"out={scratch}/basic.parquet"),
        }
        if reference:
            commands["reference"] = [reference_python, reference, "--input", file, "--out", f"{scratch}/reference.parquet"]
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
        for number in range(rounds):
            for name, command in commands.items():
                measured[name].append(timed(command))
                print(f"round {number + 1}: {name} {measured[name][-1]}", flush=True)
    result: dict[str, Any] = {"reviews": num_reviews, "products": num_products, "runs": measured}
    for figure in ("wall_s", "cpu_s", "peak_mb"):
        result[f"median_{figure}"] = {
            name: statistics.median(run[figure] for run in runs) for name, runs in measured.items()
        }
    if reference:
        pairs = list(zip(measured["reference"], measured["basic columns"], strict=True))
        result["times_faster_than_reference"] = spread([reference["wall_s"] / ours["wall_s"] for reference, ours in pairs])
    return result


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own: processes that `timed` starts inherit the peak memory of this one."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def market(folder: Path, num_reviews: int, num_products: int, with_text: bool) -> tuple[Path, Path]:
    """The files of a generated market."""
    from ensemble.recipes.hot_sellers.market import write_market
    from ensemble.recipes.hot_sellers.settings import MarketConfig

    config = MarketConfig(num_reviews=num_reviews, num_products=num_products, with_text=with_text)
    return write_market(folder, config, progress=True)


def market_parquet(folder: Path, num_reviews: int, num_products: int) -> Path:
    """A generated market without text as one Parquet file in the raw schema of 2023."""
    import polars as pl

    lines, _ = market(folder / "raw", num_reviews, num_products, False)
    file = folder / "reviews.parquet"
    pl.scan_ndjson(lines).sink_parquet(file)
    lines.unlink()
    return file


def memory(num_reviews: int, num_products: int) -> dict[str, Any]:
    """Peak memory and seconds of preparing a large generated market with text, and one of a tenth, from JSON lines."""
    results = {}
    for number in (num_reviews // 10, num_reviews):
        results[f"{number:,}"] = prepare_market(number, num_products * number // num_reviews)
        print(results, flush=True)
    return results


def prepare_market(num_reviews: int, num_products: int) -> dict[str, float]:
    """The costs of preparing a generated market with text from JSON lines."""
    with tempfile.TemporaryDirectory() as scratch:
        files = in_own_process(market, Path(scratch) / "raw", num_reviews, num_products, True)
        words = (f"out={scratch}/prepared", f"source=[{files[0]}]", f"metadata=[{files[1]}]")
        usage = timed(script("prepare_data", *words))
        splits = folders.read_manifest(f"{scratch}/prepared")["splits"]
        bytes_read = sum(file.stat().st_size for file in files)
        rows = sum(facts["rows"] for facts in splits.values())
    return {**usage, "raw_gb": round(bytes_read / 1e9, 2), "rows": rows}


def loader(num_batches: int = 200, batch_size: int = 256) -> dict[str, Any]:
    """Rows per CPU second of a shuffled pass, alternately: the recipe's gather, and the torch format of `datasets`."""
    import numpy as np
    from datasets import load_from_disk

    from ensemble.recipes.hot_sellers import training
    from ensemble.recipes.hot_sellers.settings import RecipeConfig

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "prepared"
        timed(script("prepare_data", f"out={data}"))
        rows = training.make(RecipeConfig(), str(data)).rows("train")
        stock = load_from_disk(str(data / "rows" / "train")).with_format("torch")
        order = np.random.default_rng(0).permutation(len(rows))
        batches = [order[begin : begin + batch_size] for begin in range(0, num_batches * batch_size, batch_size)]
        speeds: dict[str, list[float]] = {"gather": [], "datasets": []}
        lists = [batch.tolist() for batch in batches[: num_batches // 20]]  # it is slow
        for _ in range(5):
            for name, fetch, some in (("gather", rows.gather, batches), ("datasets", stock.__getitems__, lists)):
                seconds = cpu_seconds(partial(_fetch_all, fetch, some))
                speeds[name].append(len(some) * batch_size / seconds)
    ratios = [ours / theirs for ours, theirs in zip(speeds["gather"], speeds["datasets"], strict=True)]
    medians = {f"{name}_rows_per_cpu_s": round(statistics.median(values)) for name, values in speeds.items()}
    return {**medians, "ratio_median": statistics.median(ratios), "ratio_least": min(ratios)}


def _fetch_all(fetch: Callable[[Any], object], batches: list[Any]) -> None:
    for batch in batches:
        fetch(batch)
