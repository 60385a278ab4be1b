"""The measurements behind the README's figures, each a function that returns JSON.

Whole commands are measured as processes, with the operating system's own account of time and peak memory. What is compared
is run in turn, A B A B, and the ratio is taken pair by pair, so that a noisy neighbour hits both.
"""

import multiprocessing
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ensemble.data import manifest
from ensemble.errors import UserError
from ensemble.neural.environment import machine

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"
LAUNCH = ["accelerate", "launch", "--quiet", "--config_file", str(ROOT / "accelerate_configs" / "single_cpu.yaml")]

# Short or sparse data: a shorter horizon, or a larger part of each week called hot
REAL_SETS: dict[str, dict[str, str]] = {
    "Gift_Cards_5": {
        "source": "amazon/Gift_Cards_5.json.gz",
        "metadata": "amazon/meta_Gift_Cards.json.gz",
        "panel.top_fraction": "0.2",
    },
    "AMAZON_FASHION_5": {
        "source": "amazon/AMAZON_FASHION_5.json.gz",
        "panel.top_fraction": "0.5",
        "panel.horizon_weeks": "4",
    },
    "ratings_Beauty": {"source": "amazon/ratings_Beauty.csv.gz"},
    "ml-100k": {"source": "movielens/ml-100k.inter.gz", "panel.horizon_weeks": "3"},
}


def environment() -> dict[str, Any]:
    """Hardware, versions, date and command: what a figure is worthless without."""
    return {**machine(), "command": " ".join(["python", "scripts/benchmark.py", *sys.argv[1:]])}


def timed(command: Sequence[str | Path], quiet: bool = True) -> dict[str, float]:
    """Run a command: wall and CPU seconds, and the peak memory in MB of its largest process. `UserError` when it fails."""
    output = subprocess.DEVNULL if quiet else None
    began = time.perf_counter()
    process = subprocess.Popen(
        [str(word) for word in command], stdout=output, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stderr is not None
    with process.stderr as stream:
        try:
            errors = stream.read().decode(errors="replace")
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:  # Ctrl-C and SIGTERM reach this process only
            os.killpg(process.pid, signal.SIGTERM)
            stream.read()  # until the last of its processes is gone
            raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        said = re.findall(r"^(?:error|failed): (.+)$", errors, flags=re.MULTILINE)  # a launcher's traceback may follow
        reason = said[-1] if said else errors.strip()[-500:]
        raise UserError(f"{' '.join(map(str, command))} ended with {process.returncode}: {reason}")
    return {
        "wall_s": round(time.perf_counter() - began, 3),
        "cpu_s": round(used.ru_utime + used.ru_stime, 3),
        "peak_mb": round(used.ru_maxrss / 1e3, 1),
    }


def help_times(runs: int = 5) -> dict[str, Any]:
    """Seconds of each script's --help, best and median."""
    found = {}
    for script in sorted(SCRIPTS.glob("*.py")):
        seconds = [timed([sys.executable, script, "--help"])["wall_s"] for _ in range(runs)]
        found[script.name] = {"best_s": min(seconds), "median_s": statistics.median(seconds)}
    return found


def pipeline(folder: Path, prepare: Sequence[str], train: Sequence[str] = ()) -> dict[str, Any]:
    """Prepare, train the three members, predict, fit: each stage's seconds, and the scores on test."""
    python, data = sys.executable, folder / "prepared"
    launch = [str(Path(python).with_name(LAUNCH[0])), *LAUNCH[1:]]
    stages: dict[str, list[Any]] = {
        "prepare": [python, SCRIPTS / "prepare_data.py", f"out={data}", f"raw={folder / 'raw'}", *prepare],
        "transformer": [*launch, SCRIPTS / "train.py", f"data={data}", f"out={folder / 'members/transformer'}", *train],
        "xgboost": [python, SCRIPTS / "train_trees.py", f"data={data}", f"out={folder / 'members/xgboost'}"],
        "lightgbm": [
            python, SCRIPTS / "train_trees.py", "library=lightgbm", f"data={data}", f"out={folder / 'members/lightgbm'}"
        ],
    }  # fmt: skip
    for member in ("transformer", "xgboost", "lightgbm", "momentum"):
        source = member if member == "momentum" else folder / "members" / member
        stages[f"predict {member}"] = [
            python, SCRIPTS / "predict.py", f"member={source}", f"data={data}", f"out={folder / 'predictions'}"
        ]  # fmt: skip
    stages["ensemble"] = [
        python, SCRIPTS / "ensemble_predictor.py", "fit",
        f"predictions={folder / 'predictions'}", f"data={data}", f"out={folder / 'ensemble'}",
    ]  # fmt: skip
    seconds = {}
    for stage, command in stages.items():
        seconds[stage] = timed(command)["wall_s"]
        print(f"  {stage}: {seconds[stage]:.1f} s", flush=True)
    scores = manifest.read_json(folder / "ensemble" / "scores.json")
    about = manifest.read_manifest(data)
    return {
        "seconds": seconds,
        "rows": {split: facts["rows"] for split, facts in about["splits"].items()},
        "base_rate": scores["base_rate"],
        "weights": scores["weights"],
        "average_precision": {name: of["average_precision"] for name, of in scores["scores"].items()},
        "log_loss": {name: of["log_loss"] for name, of in scores["scores"].items()},
        "lift_at_5pct": {name: of["lift_at_5pct"] for name, of in scores["scores"].items()},
        "gain_over_best_member": scores["gain_over_best_member"]["average_precision"],
    }


def seeds(num_seeds: int = 5) -> dict[str, Any]:
    """The demo on `num_seeds` generated markets: every member's average precision by the base rate, and the ensemble's."""
    runs = []
    for seed in range(num_seeds):
        with tempfile.TemporaryDirectory() as folder:
            print(f"seed {seed}", flush=True)
            runs.append(pipeline(Path(folder), [f"market.seed={seed}"], [f"seed={seed}"]))
    names = [name for name in runs[0]["average_precision"] if name != "base rate"]
    lifts = {name: [run["average_precision"][name]["value"] / run["base_rate"] for run in runs] for name in names}
    summary = {
        name: {
            "mean": round(statistics.mean(values), 3),
            "deviation": round(statistics.stdev(values), 3),
            "least": min(values),
        }
        for name, values in lifts.items()
    }
    members = [name for name in names if name in runs[0]["weights"]]
    gains = [
        run["average_precision"]["ensemble"]["value"] - max(run["average_precision"][m]["value"] for m in members)
        for run in runs
    ]
    return {
        "average_precision_by_base_rate": summary,
        "gain_over_best_member": {"mean": statistics.mean(gains), "deviation": statistics.stdev(gains), "each": gains},
        "runs": runs,
    }


def real(data: str) -> dict[str, Any]:
    """Real review files, where they are at hand: prepare, members, ensemble, scores beside the baselines."""
    found = {}
    for name, settings in REAL_SETS.items():
        files = {key: Path(data) / value for key, value in settings.items() if key in ("source", "metadata")}
        missing = [str(file) for file in files.values() if not file.exists()]
        if missing:
            print(f"{name}: left out, {', '.join(missing)} is not there")
            continue
        print(name, flush=True)
        words = [f"{key}=[{file}]" for key, file in files.items()]
        words += [f"{key}={value}" for key, value in settings.items() if key not in files]
        with tempfile.TemporaryDirectory() as folder:
            small = ["max_epochs=10", "batch_size=256", "evaluations_per_epoch=1"]
            found[name] = {"settings": settings, **pipeline(Path(folder), words, small)}
    return found


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


def basic_panel(source: str, out: str) -> None:
    """The reference's columns from a Parquet file in the raw schema, by the panel's own weekly sums, windows and borders.

    One row per active product-week: reviews, helpful votes, verified purchases, mean rating, reviews in the 4 weeks up to it
    and in the 12 after it, growth, and whether that is among the week's top 5 %.
    """
    import numpy as np
    import polars as pl

    from ensemble.data import panel as panels
    from ensemble.data import weekly

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
    border = panels.borders(week, growth, 0.05)
    least = np.array([border.get(number, np.inf) for number in range(week.min(), week.max() + 1)], np.float32)
    weeks.select(
        products["parent_asin"].gather(weeks["product"]).alias("product_id"),
        pl.exclude("key", "product"),
        pl.Series("previous_4w", before),
        pl.Series("next_12w", after),
        pl.Series("growth", growth),
        pl.Series("hot", growth > least[week - week.min()]),
    ).write_parquet(out, compression="snappy")  # as the reference writes


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own: what `timed` starts later begins with this process's peak memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def _market(folder: Path, num_reviews: int, num_products: int, with_text: bool) -> tuple[Path, Path]:
    """The files of a generated market."""
    from ensemble.data.config import MarketConfig
    from ensemble.data.market import write_market

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
            about = manifest.read_manifest(f"{scratch}/prepared")
            bytes_read = sum(file.stat().st_size for file in files)
            rows = sum(facts["rows"] for facts in about["splits"].values())
        found[f"{number:,}"] = {**run, "raw_gb": round(bytes_read / 1e9, 2), "rows": rows}
        print(found, flush=True)
    return found


def loader(num_batches: int = 200, batch_size: int = 256) -> dict[str, Any]:
    """Rows per CPU second of a shuffled pass: the recipe's gather beside the stock torch format of `datasets`, in turn."""
    import numpy as np
    from datasets import load_from_disk

    from ensemble.neural.config import HotSellersConfig
    from ensemble.neural.recipes import hot_sellers

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "prepared"
        timed([sys.executable, SCRIPTS / "prepare_data.py", f"out={data}"])
        rows = hot_sellers.make(HotSellersConfig(), str(data)).rows("train")
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
