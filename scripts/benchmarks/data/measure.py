"""What data cost: the panel of millions of reviews, the memory of preparing them, and batches gathered from them."""

import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.timing import SCRIPTS, timed
from ensemble import folders


def panel(num_reviews: int, num_products: int, reference: str, reference_python: str, rounds: int = 3) -> dict[str, Any]:
    """Seconds and memory of the panel on one Parquet file: all features, the basic columns, and the reference's script.

    `reference` is build_weekly_dataset_fast.py of LookJohnny/csci653-as01, run by `reference_python`, which has Dask.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file = _apart(_market_parquet, Path(scratch), num_reviews, num_products)
        commands: dict[str, list[Any]] = {
            "all features": [
                sys.executable, SCRIPTS / "prepare_data.py", f"source=[{file}]", f"out={scratch}/prepared",
                "panel.num_tokens=0", "overwrite=true",
            ],
            "basic columns": [
                sys.executable, SCRIPTS / "benchmark.py", "basic-panel", f"source={file}", f"out={scratch}/basic.parquet"
            ],
        }  # fmt: skip
        if reference:
            commands["reference"] = [reference_python, reference, "--input", file, "--out", f"{scratch}/reference.parquet"]
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
        for number in range(rounds):
            for name, command in commands.items():
                measured[name].append(timed(command))
                print(f"round {number + 1}: {name} {measured[name][-1]}", flush=True)
    result: dict[str, Any] = {"reviews": num_reviews, "products": num_products, "runs": measured}
    for figure in ("wall_s", "cpu_s", "peak_mb"):
        result[f"median_{figure}"] = {name: statistics.median(run[figure] for run in of) for name, of in measured.items()}
    if reference:
        pairs = list(zip(measured["reference"], measured["basic columns"], strict=True))
        ratios = [theirs["wall_s"] / ours["wall_s"] for theirs, ours in pairs]
        result["times_faster_than_reference"] = {
            "median": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
        }
    return result


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own: what `timed` starts later begins with this process's peak memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def _market(folder: Path, num_reviews: int, num_products: int, with_text: bool) -> tuple[Path, Path]:
    """The files of a generated market."""
    from ensemble.recipes.hot_sellers.market import write_market
    from ensemble.recipes.hot_sellers.settings import MarketConfig

    config = MarketConfig(num_reviews=num_reviews, num_products=num_products, with_text=with_text)
    return write_market(folder, config, progress=True)


def _market_parquet(folder: Path, num_reviews: int, num_products: int) -> Path:
    """A generated market without text as one Parquet file in the raw schema of 2023."""
    import polars as pl

    lines, _ = _market(folder / "raw", num_reviews, num_products, False)
    file = folder / "reviews.parquet"
    pl.scan_ndjson(lines).sink_parquet(file)
    lines.unlink()
    return file


def memory(num_reviews: int, num_products: int) -> dict[str, Any]:
    """Peak memory and seconds of preparing a large generated market with text, from JSON lines, beside one of a tenth."""
    found = {}
    for number in (num_reviews // 10, num_reviews):
        products = num_products * number // num_reviews
        with tempfile.TemporaryDirectory() as scratch:
            files = _apart(_market, Path(scratch) / "raw", number, products, True)
            command: list[Any] = [sys.executable, SCRIPTS / "prepare_data.py", f"out={scratch}/prepared"]
            run = timed([*command, f"source=[{files[0]}]", f"metadata=[{files[1]}]"])
            about = folders.read_manifest(f"{scratch}/prepared")
            bytes_read = sum(file.stat().st_size for file in files)
            rows = sum(facts["rows"] for facts in about["splits"].values())
        found[f"{number:,}"] = {**run, "raw_gb": round(bytes_read / 1e9, 2), "rows": rows}
        print(found, flush=True)
    return found


def loader(num_batches: int = 200, batch_size: int = 256) -> dict[str, Any]:
    """Rows per CPU second of a shuffled pass: the recipe's gather beside the stock torch format of `datasets`, in turn."""
    import numpy as np
    from datasets import load_from_disk

    from ensemble.recipes.hot_sellers import training
    from ensemble.recipes.hot_sellers.settings import RecipeConfig

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "prepared"
        timed([sys.executable, SCRIPTS / "prepare_data.py", f"out={data}"])
        rows = training.make(RecipeConfig(), str(data)).rows("train")
        stock = load_from_disk(str(data / "rows" / "train")).with_format("torch")
        order = np.random.default_rng(0).permutation(len(rows))
        batches = [order[begin : begin + batch_size] for begin in range(0, num_batches * batch_size, batch_size)]
        speeds: dict[str, list[float]] = {"gather": [], "datasets": []}
        for _ in range(5):
            for name, fetch, share in (("gather", rows.gather, 1), ("datasets", stock.__getitems__, 20)):
                few = [batch.tolist() if name == "datasets" else batch for batch in batches[: num_batches // share]]
                began = time.process_time()
                for batch in few:
                    fetch(batch)
                speeds[name].append(len(few) * batch_size / (time.process_time() - began))
    ratios = [ours / theirs for ours, theirs in zip(speeds["gather"], speeds["datasets"], strict=True)]
    medians = {f"{name}_rows_per_cpu_s": round(statistics.median(values)) for name, values in speeds.items()}
    return {**medians, "ratio_median": statistics.median(ratios), "ratio_least": min(ratios)}
