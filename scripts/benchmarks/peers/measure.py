"""This project compared with other public libraries that do the same work.

    pip install --no-deps --target ../peers lightning-fabric lightning-utilities torchdata grain etils array-record \
        recbole texttable tabulate colorama thop rectools pytorch-lightning torchmetrics implicit fastrlock typeguard \
        importlib_resources zipp portpicker 'pandas<3' pytz
    python scripts/benchmark.py peers_loop packages=../peers       # then peers_ranks, peers_loader and peers_next_item
    python scripts/benchmark.py peers_panel                        # and peers_job, which need no other packages

The two sides of each comparison work alternately. Usually each side has a process of its own with one thread, and its CPU
time is measured, which other load on the machine changes less than wall time (turns.py). peers_ranks measures wall time, and
both sides alternate in the same processes; peers_job runs whole commands on all cores. Packages are installed without
dependencies, since RecTools requires numpy<2; RecTools fails with pandas 3. The folder of packages is not on the path of our
side, except in peers_ranks, where it is the last entry.
"""

import importlib.metadata
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.commands import command
from benchmarks.data import market, market_parquet
from benchmarks.next_item.measure import generate
from benchmarks.peers.run import BATCH, NUM_ROWS, work_of
from benchmarks.runs import enough, in_turn, launcher, on_rank, shown
from benchmarks.timing import ALL_CORES, SCRIPTS, called, script, timed
from benchmarks.turns import compared, worker
from ensemble import folders
from ensemble.errors import UserError

LOOPS = ("plain", "fabric", "accelerate")
LOADERS = ("torch", "torch_whole_batches", "datasets", "datasets_whole_batches", "torchdata", "grain")
PLAIN_JOB = SCRIPTS / "benchmarks" / "peers" / "plain_job.py"


@command
def peers_loop(rounds: int = 5, packages: str = "") -> dict[str, Any]:
    """CPU time of a training step: our loop, Lightning Fabric, Accelerate as in its examples, and plain PyTorch.

    Each training is on one rank. Its start and its first steps do not count.

    rounds : measurements of this project, each between two of the other library
    packages : a folder with the other libraries: see benchmarks/peers/measure.py
    """
    others = {f"{model}_{loop}": f"{model}_ours" for model in ("mlp", "transformer") for loop in LOOPS}
    with tempfile.TemporaryDirectory() as scratch:
        return _compare("loop", others, rounds, packages, ("lightning-fabric", "accelerate", "torch"), Path(scratch))


@command
def peers_ranks(rounds: int = 5, packages: str = "") -> dict[str, Any]:
    """Milliseconds of a training step on two ranks: our loop, Lightning Fabric, Accelerate as in its examples, plain DDP.

    The loops alternate in the same processes, each of which has one thread.

    rounds, packages : as in `peers_loop`
    """
    enough(rounds, 3)
    versions = _versions(packages, ("lightning-fabric", "accelerate", "torch"))
    figures = called(on_rank, "benchmarks.peers.run", rounds, str(Path(packages).resolve()), start=launcher(2))
    return {"ranks": 2, "threads_per_rank": 1, "peers": versions, "comparisons": figures}


@command
def peers_loader(rounds: int = 5, packages: str = "") -> dict[str, Any]:
    """CPU time of an epoch of shuffled batches: our data loader compared with PyTorch, `datasets`, torchdata and grain.

    rounds, packages : as in `peers_loop`
    """
    others = dict.fromkeys(LOADERS, "ours")
    names = ("torch", "datasets", "torchdata", "grain")
    with tempfile.TemporaryDirectory() as scratch:
        results = _compare("loader", others, rounds, packages, names, Path(scratch))
    return {"rows": NUM_ROWS, "batch_size": BATCH, **results}


@command
def peers_next_item(rounds: int = 5, packages: str = "") -> dict[str, Any]:
    """CPU time and memory of a training step and of ranking all items: next_item compared with RecBole and RecTools.

    SASRec: a step on 128 sequences of up to 200 items, and ranking all items for 512 users.

    rounds, packages : as in `peers_loop`
    """
    others = {f"{work}_{side}": f"{work}_ours" for work in ("step", "rank") for side in ("recbole", "rectools")}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "movielens"
        size = generate(folder, 1.0)
        results = _compare("next_item", others, rounds, packages, ("recbole", "rectools", "torch"), folder)
    return {**size, **results}


@command
def peers_panel(rounds: int = 5) -> dict[str, Any]:
    """CPU time and memory of computing basic weekly columns, from Parquet to Parquet: this project compared with pandas.

    rounds : measurements of this project, each between two of pandas
    """
    num_reviews, num_products = 1_000_000, 100_000
    with tempfile.TemporaryDirectory() as scratch:
        called(market_parquet, scratch, num_reviews, num_products)
        results = _compare("panel", {"pandas": "ours"}, rounds, "", ("pandas", "polars"), Path(scratch))
    return {"reviews": num_reviews, "products": num_products, **results}


def _compare(
    area: str, others: Mapping[str, str], rounds: int, packages: str, distributions: tuple[str, ...], folder: Path
) -> dict[str, Any]:
    """Compare our side with each of the others by `turns.compared`. Returns the results and the versions of the packages.

    others : for the name of each other side, the name of our side
    """
    enough(rounds, 2)
    versions, modules = _versions(packages, distributions), str(Path(packages).resolve()) if packages else ""
    results: dict[str, Any] = {}
    for other, ours in others.items():
        with (
            worker(work_of, area, other, str(folder), folder=folder, modules=modules) as reference,
            worker(work_of, area, ours, str(folder), folder=folder) as our_work,
        ):
            results[other] = shown(other, compared(reference, our_work, rounds, warm_up=True))
    return {"threads": 1, "peers": versions, "comparisons": results}


def _versions(packages: str, distributions: tuple[str, ...]) -> dict[str, str]:
    """The versions of installed distributions and of those in the folder `packages`; `UserError` if one is missing."""
    paths = [str(Path(packages).resolve())] if packages else []
    versions = {item.name.lower(): item.version for item in importlib.metadata.distributions(path=[*sys.path, *paths])}
    if missing := [name for name in distributions if name not in versions]:
        raise UserError(
            f"packages={packages} has no {', '.join(missing)}: install them as described in benchmarks/peers/measure.py"
        )
    return {name: versions[name] for name in distributions}


@command
def peers_job(rounds: int = 2, num_reviews: int = 200_000, num_products: int = 3000) -> dict[str, Any]:
    """The job of `make demo` by scripts/fit.py and by a plain script, on all cores: seconds, code lines, average precision.

    The plain script gets the dates of our splits, so that both commands score the same rows.

    rounds : runs of each, alternately
    num_reviews, num_products : of the generated market
    """
    enough(rounds, 1, purpose="a measurement")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        reviews, products = called(market, f"{scratch}/raw", num_reviews, num_products)
        fit = ("--recipe", "hot_sellers", f"source=[{reviews}]", f"metadata=[{products}]", "time_limit=0", "overwrite=true")

        def plain() -> dict[str, float]:
            splits = folders.read_manifest(folder / "ours" / "prepared")["splits"]
            dates = [splits[name]["first_week"] for name in ("validation", "blend", "test")]
            return timed([*ALL_CORES, sys.executable, PLAIN_JOB, reviews, products, folder / "plain", *dates])

        def ours() -> dict[str, float]:
            return timed([*ALL_CORES, *script("fit", *fit, f"out={folder / 'ours'}")])

        runs = in_turn({"ours": ours, "plain": plain}, rounds)
        scores = {"plain": folders.read_json(folder / "plain" / "scores.json"), "ours": _our_scores(folder / "ours")}
    lines = len(PLAIN_JOB.read_text(encoding="utf-8").splitlines())
    return {
        "reviews": num_reviews, "products": num_products, "lines_of_plain_script": lines, "runs": runs,
        "test": scores,
    }  # fmt: skip


def _our_scores(out: Path) -> dict[str, Any]:
    """The number of test rows, how many are hot, and the average precision of the ensemble, each member and each
    baseline except the base rate."""
    test = folders.read_manifest(out / "prepared")["splits"]["test"]
    scores = folders.read_json(out / "ensemble" / "scores.json")["scores"]
    precisions = {name: scores[name]["average_precision"]["value"] for name in scores if name != "base rate"}
    return {"rows": test["rows"], "hot": test["hot"], "average_precision": precisions}
