"""One training of hot_sellers on increasing numbers of ranks: speed-up, efficiency, hours, cost.

Strong scaling: the global batch is the same on any number of ranks. Each round has a training on each number of ranks. Each
speed is relative to that on one rank in the same round, so that a drift of the machine affects both.
"""

import dataclasses
import itertools
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.commands import command
from benchmarks.data import prepared_market
from benchmarks.runs import enough, in_turn, launcher, num_gpus, quartiles, speed
from benchmarks.timing import ROOT, SCRIPTS, timed
from ensemble import configuration as config
from ensemble import folders
from ensemble.errors import Failure, UserError
from ensemble.neural.settings import config_class

# Settings of the demo's short form, as in the Makefile
MARKET = ("market.num_products=800", "market.num_reviews=40000")
TRAINING = ("max_epochs=1",)

DOUBLINGS = (1, 2, 4, 8)
"""Numbers of ranks on GPUs and under Slurm if none are given."""
ON_CPU = (1, 2)
"""Numbers of ranks on the CPUs of one machine, and with a `configuration` outside a job, if none are given."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """A number of ranks on a number of nodes, and the words before a script that launch them."""

    ranks: int
    nodes: int
    words: list[str | Path]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """The results in the folder of a finished run; `device` is cpu, or the name of the GPU."""

    ranks: int
    device: str
    seconds: float
    samples_per_s: float
    data_wait: float


@command
def scaling(
    rounds: int = 5,
    ranks: tuple[int, ...] = (),
    ranks_per_node: int = 1,
    configuration: str = "",
    training: tuple[str, ...] = (),
    data: str = "",
    folder: str = "",
    price_per_gpu_hour: float = 0.0,
) -> dict[str, Any]:
    """One training of hot_sellers on increasing numbers of ranks with the same global batch: speed, hours, cost.

    Without a `configuration` and without a GPU, two other cases are measured: as many independent trainings at once as the
    largest number of ranks, each with its part of the batch; and one rank with a thread per core, as in the demo.

    Impossible settings raise `UserError` before anything is measured.

    rounds : trainings on each number of ranks; at least 2
    ranks : numbers of ranks, beginning with 1; empty for those of 1, 2, 4, 8 for which the job has nodes or the machine has
        GPUs; for 1 and 2 on CPUs, and with a `configuration` outside a Slurm job
    ranks_per_node : in a Slurm job the largest number of ranks on a node; as few nodes as possible are used
    configuration : the accelerate YAML; empty for that of the hardware. If given in a Slurm job, srun launches the ranks
    training : settings of scripts/train.py over the demo's short form, as in 'training=[batch_size=4096,max_epochs=2]'
    data : prepared data; empty generates the demo's short market
    folder : for runs and generated data, shared by the nodes of a job; empty for a temporary one
    price_per_gpu_hour : the price of an hour of a GPU, in any currency; 0 for none
    """
    enough(rounds, 2)
    if not 0 <= price_per_gpu_hour < math.inf:
        raise UserError(f"price_per_gpu_hour={price_per_gpu_hour} is impossible: it must be 0, for none, or more")
    launches = plan(ranks, ranks_per_node, configuration)
    words = [*TRAINING, *training]
    batch_size = _batch_size(words, [launch.ranks for launch in launches])
    if data:
        folders.read_manifest(data)
    if _in_job(configuration) and not folder:
        raise UserError(
            "folder= is empty, and other nodes do not see this one's temporary folder: name one that all nodes see"
        )
    with _scratch(folder) as scratch:
        if not data:
            data = str(prepared_market(scratch, *MARKET))
        on_cpus = not configuration and not num_gpus()
        runs = in_turn(_trainings(Path(scratch), data, words, launches, batch_size, on_cpus), rounds)
    by_ranks = {launch.ranks: runs[f"ranks {launch.ranks}"] for launch in launches}
    return {
        "scaling": "strong: the global batch is the same on every number of ranks",
        "batch_size": batch_size,
        "rounds": rounds,
        "training": words,
        "configuration": configuration or "by hardware",
        "price_per_gpu_hour": price_per_gpu_hour or None,
        "by_ranks": table(launches, by_ranks, price_per_gpu_hour),
        **(independent(by_ranks[1], runs["alone"], runs["all cores"]) if on_cpus else {}),
    }


def _trainings(
    scratch: Path, data: str, words: Sequence[str], launches: Sequence[Launch], batch_size: int, on_cpus: bool
) -> dict[str, Callable[[], Any]]:
    """Functions that run the trainings of a round, by name: `ranks N`; with `on_cpus` also `alone` and `all cores`."""
    numbers = itertools.count()
    most = launches[-1].ranks

    def train(launch: Sequence[str | Path], *more: str) -> Training:
        out = scratch / str(next(numbers))
        timed([*launch, SCRIPTS / "train.py", f"data={data}", f"out={out}", *words, *more])
        return read(out)

    def on_ranks(launch: Launch) -> Training:
        result = train(launch.words)
        if result.ranks != launch.ranks:
            raise Failure(f"{result.ranks} ranks ran instead of {launch.ranks}, launched by {launch.words}")
        return result

    def alone() -> list[Training]:
        with ThreadPoolExecutor(most) as pool:
            return list(pool.map(lambda _: train(launcher(1), f"batch_size={batch_size // most}"), range(most)))

    trainings: dict[str, Callable[[], Any]] = {f"ranks {launch.ranks}": partial(on_ranks, launch) for launch in launches}
    if on_cpus:
        trainings |= {"alone": alone, "all cores": partial(train, launcher(1, threads=os.cpu_count() or 1))}
    return trainings


def _batch_size(words: Sequence[str], ranks: Sequence[int]) -> int:
    """The global batch of all trainings; `UserError` for unknown settings, and for a batch that `ranks` do not divide."""
    batch_size: int = config.load(config_class("hot_sellers"), None, ["data=…", "out=…", *words]).batch_size
    multiple = math.lcm(*ranks)
    if batch_size % multiple:
        near = max(1, round(batch_size / multiple)) * multiple
        raise UserError(
            f"batch_size={batch_size} cannot be divided by each of ranks={list(ranks)}: the nearest that can is "
            f"training=[batch_size={near}]"
        )
    return batch_size


def plan(ranks: Sequence[int], ranks_per_node: int, configuration: str) -> list[Launch]:
    """How to launch each number of ranks: by srun in a Slurm job with a `configuration`, otherwise on this machine.

    The default of `ranks` is those of `DOUBLINGS` for which the job has enough nodes or, without a `configuration`, the
    machine enough GPUs; it is `ON_CPU` on a machine without a GPU, and with a `configuration` outside a job. Raises
    `UserError` for numbers that are too large, do not increase, or do not begin with 1, with which the others are compared.
    """
    if ranks and (ranks[0] != 1 or any(after <= before for before, after in itertools.pairwise(ranks))):
        raise UserError(f"ranks={list(ranks)} is impossible: the numbers must begin with 1, and rise, as in ranks=[1,2,4]")
    if ranks_per_node < 1:
        raise UserError(f"ranks_per_node={ranks_per_node} is impossible: it must be at least 1")
    if configuration and not Path(configuration).is_file():
        raise UserError(f"configuration={configuration} does not exist: name one of accelerate_configs/")
    in_job, gpus = _in_job(configuration), 0 if configuration else num_gpus()
    if in_job:
        most = int(os.environ["SLURM_JOB_NUM_NODES"])
        place = f"the job has {most} nodes, of ranks_per_node={ranks_per_node} each"
        needed = {count: nodes_for(count, ranks_per_node) for count in ranks or DOUBLINGS}
    else:
        most, place = gpus or sys.maxsize, f"this machine has {gpus} GPUs"
        needed = {count: count for count in ranks or (DOUBLINGS if gpus else ON_CPU)}
    possible = [count for count in needed if needed[count] <= most]
    if too_many := [count for count in ranks if count not in possible]:
        raise UserError(
            f"ranks={list(ranks)} is impossible: {place}, which cannot hold {too_many[0]}: name fewer, or ask for more"
        )
    if in_job:
        return [Launch(ranks=n, nodes=needed[n], words=by_srun(n, needed[n], configuration)) for n in possible]
    return [Launch(ranks=n, nodes=1, words=launcher(n, "gpu" if gpus else "cpu", configuration)) for n in possible]


def _in_job(configuration: str) -> bool:
    """Whether srun launches the ranks; without a configuration, a job measures the node that it runs on."""
    return bool(configuration) and "SLURM_JOB_ID" in os.environ


def nodes_for(ranks: int, ranks_per_node: int) -> int:
    """The smallest number of nodes for `ranks`, with equally many on each."""
    return next(nodes for nodes in range(1, ranks + 1) if ranks % nodes == 0 and ranks // nodes <= ranks_per_node)


def by_srun(ranks: int, nodes: int, configuration: str) -> list[str | Path]:
    """The words before a script that launch it in a Slurm job: slurm/node.sh, once on each node."""
    return [
        "env", f"RANKS_PER_NODE={ranks // nodes}",
        "srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1",
        "bash", ROOT / "slurm" / "node.sh", configuration,
    ]  # fmt: skip


def _scratch(folder: str) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for the runs, in `folder` if it is given."""
    try:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix="scaling-", dir=folder or None)
    except OSError as error:
        raise UserError(f"folder={folder} cannot be written ({error.strerror}): name another") from None


def read(run: Path) -> Training:
    """The results in the folder of a finished run."""
    summary, environment = (folders.read_json(run / name) for name in ("summary.json", "environment.json"))
    samples_per_s, data_wait = speed(run)
    return Training(
        ranks=summary["ranks"],
        device=environment["gpus"][0]["name"] if summary["device"].startswith("cuda") else "cpu",
        seconds=summary["seconds"],
        samples_per_s=samples_per_s,
        data_wait=data_wait,
    )


def table(
    launches: Sequence[Launch], runs: dict[int, list[Training]], price_per_gpu_hour: float = 0.0
) -> list[dict[str, Any]]:
    """A row for each number of ranks, from the trainings of all rounds; ratios are computed for each round.

    Hours are the duration of a training times the number of ranks: `gpu_hours` on GPUs, `rank_hours` on CPUs, which have no
    cost. The cost of a million samples is in the currency of the price, and None without a price.
    """
    rows = []
    for launch in launches:
        trainings = runs[launch.ranks]
        speed_ups = [run.samples_per_s / reference.samples_per_s for run, reference in zip(trainings, runs[1], strict=True)]
        on_gpus = trainings[0].device != "cpu"
        speeds = quartiles([run.samples_per_s for run in trainings])
        cost = price_per_gpu_hour * launch.ranks * 1e6 / (3600 * speeds["median"])
        hours = statistics.median(launch.ranks * run.seconds / 3600 for run in trainings)
        rows.append(
            {
                "ranks": launch.ranks,
                "nodes": launch.nodes,
                "device": trainings[0].device,
                "samples_per_s": speeds,
                "speed_up": quartiles(speed_ups),
                "efficiency": quartiles([speed_up / launch.ranks for speed_up in speed_ups]),
                "gpu_hours" if on_gpus else "rank_hours": round(hours, 6),
                "cost_per_million_samples": float(f"{cost:.4g}") if price_per_gpu_hour and on_gpus else None,
                "data_wait": quartiles([run.data_wait for run in trainings]),
                "rounds": [round(run.samples_per_s, 1) for run in trainings],
            }
        )
    return rows


def independent(
    one: Sequence[Training], alone: Sequence[Sequence[Training]], all_cores: Sequence[Training]
) -> dict[str, Any]:
    """The speed of independent trainings, relative to one rank in the same round, and the speed of one rank on all cores."""
    speeds = [sum(training.samples_per_s for training in together) for together in alone]
    efficiencies = [speed / (len(alone[0]) * single.samples_per_s) for speed, single in zip(speeds, one, strict=True)]
    return {
        "trainings_alone": {
            "trainings": len(alone[0]),
            "samples_per_s": quartiles(speeds),
            "efficiency": quartiles(efficiencies),
        },
        "all_cores": {
            "threads": os.cpu_count(),
            "samples_per_s": quartiles([run.samples_per_s for run in all_cores]),
            "data_wait": quartiles([run.data_wait for run in all_cores]),
        },
    }
