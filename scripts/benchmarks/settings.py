"""What scripts/benchmark.py can be told: the settings of each benchmark. Nothing heavy is imported here."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """Where the figures go."""

    results: str = "slurm/results"
    """The folder for the JSON file; the same for every benchmark."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HelpTimes(Results):
    """How long each script's --help takes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seeds(Results):
    """The demo on several generated markets; some three minutes each."""

    num_seeds: int = 5
    """Markets, and initial weights, of different seeds."""
    first_seed: int = 0
    """The others follow it. Seeds that nothing was chosen by are an honest test of what was chosen by some."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Real(Results):
    """Real review files, prepare to ensemble."""

    data: str = "../shared/data"
    """The folder that holds amazon/ and movielens/."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel(Results):
    """The panel of a large Parquet file, beside the public project's script if that is at hand."""

    num_reviews: int = 4_000_000
    """Reviews in the file."""
    num_products: int = 400_000
    """Products in the file."""
    reference: str = ""
    """build_weekly_dataset_fast.py of LookJohnny/csci653-as01; empty measures ours alone."""
    reference_python: str = "python3"
    """An interpreter with pandas, pyarrow, tqdm and dask[dataframe]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BasicPanel:
    """One run of the panel's basic columns, which `panel` times; it writes no JSON."""

    source: str = "???"
    """A Parquet file in the raw schema of Amazon Reviews 2023."""
    out: str = "???"
    """The Parquet file to write."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory(Results):
    """Peak memory of preparing a large market; needs some 25 GB of disk and half an hour."""

    num_reviews: int = 30_000_000
    """Reviews of the larger market; the smaller has a tenth."""
    num_products: int = 300_000
    """Products of the larger market."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loader(Results):
    """Rows per CPU second of the recipe's gather, beside the torch format of `datasets`."""

    num_batches: int = 200
    """Batches of 256 rows in each of five rounds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overhead(Results):
    """What a step of the training loop costs, beside a plain PyTorch loop, on one and two ranks; some three minutes."""

    rounds: int = 10
    """Blocks of our loop, each between two of the plain one, for each model and number of ranks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OverheadRank:
    """A rank that `overhead` launches; it writes no JSON of its own."""

    rounds: int = 10
    """As in `overhead`."""
    out: str = "???"
    """A folder for the runs and the figures."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaling(Results):
    """One training of hot_sellers on more and more ranks, the global batch the same: speed-up, efficiency, hours, cost.

    On a CPU also the share of time that it waits for data with a thread per core.
    """

    rounds: int = 5
    """Trainings on each number of ranks, the numbers in turn; at least 2."""
    ranks: tuple[int, ...] = ()
    """Numbers of ranks, 1 first; empty for those of 1, 2, 4, 8 that the GPUs or the job's nodes hold, 1 and 2 on a CPU."""
    ranks_per_node: int = 1
    """In a Slurm job: the most ranks on a node; few ranks take as few nodes as can be."""
    configuration: str = ""
    """The accelerate YAML; empty for single_* and multi_* by the hardware. A Slurm job that names one uses srun."""
    training: tuple[str, ...] = ()
    """Settings of scripts/train.py over the demo's short form, as in 'training=[batch_size=4096,max_epochs=2]'."""
    data: str = ""
    """Prepared data; empty generates the demo's short market."""
    folder: str = ""
    """Where runs and generated data lie until it ends; a job's nodes must share it. Empty: a temporary folder."""
    price_per_gpu_hour: float = 0.0
    """What a GPU costs an hour, in any currency; 0 tells no cost."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Knobs(Results):
    """What each speed knob of train.py is worth on this hardware; some ten minutes."""

    rounds: int = 3
    """Trainings with each knob, each between two without it; at least 2."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoGluon(Results):
    """The ensemble beside AutoGluon and scikit-learn's stacking: the same rows, cores and time; some twenty minutes."""

    python: str = ".venv-autogluon/bin/python"
    """The interpreter that has AutoGluon; `make bench-autogluon` installs it."""
    data: str = "../shared/data"
    """The folder that holds amazon/ and movielens/; what is not there is left out."""
    folder: str = "runs/beside_autogluon"
    """Where everything lies: a benchmark that was cut short goes on from there."""
    sets: tuple[str, ...] = ()
    """Of the generated markets and the real sets, those to measure; empty for all."""
    methods: tuple[str, ...] = ("good_quality", "stacking")
    """AutoGluon's good_quality, good_quality_by_week (its folds are blocks of weeks) or medium_quality; stacking is
    scikit-learn's."""
    least_s: float = 60.0
    """Seconds that AutoGluon gets at least; else as many as ours took in all."""
    market: tuple[str, ...] = ()
    """Settings of prepare_data.py for the generated markets over the demo's, as in 'market=[market.num_products=800]'."""
    training: tuple[str, ...] = ()
    """Settings of train.py over the demo's, as in 'training=[max_epochs=1]'."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Threads(Results):
    """What our OpenMP settings are worth beside a busy neighbour, for each tree library; some five minutes on two cores."""

    rounds: int = 3
    """Trainings with them, each between two with the libraries' defaults; at least 2."""
    num_rows: int = 100_000
    """Generated rows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trees(Results):
    """Memory and CPU seconds of growing trees, and rows predicted a second, beside the bare libraries; some ten minutes."""

    rounds: int = 3
    """Trainings of ours, each between two of the bare library; at least 2."""
    num_rows: int = 1_000_000
    """Generated rows of 50 features; a tenth more for validation."""
    num_trees: int = 20
    """Trees of each training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreesRun:
    """One process that `threads` and `trees` start."""

    data: str = "???"
    """The generated rows."""
    library: Literal["xgboost", "lightgbm"] = "xgboost"
    """Whose trees."""
    work: Literal["ours", "bare", "defaults", "predict"] = "ours"
    """Our training, the library's own with our settings of OpenMP, that with its defaults, or predictions."""
    memory: Literal["in_core", "low"] = "in_core"
    """As in train_trees.py."""
    num_trees: int = 20
    """Trees to grow."""
    out: str = "???"
    """The JSON file to write."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextItem(Results):
    """next_item beside the public references, in CPU seconds of one thread and peak memory; some ten minutes."""

    rounds: int = 10
    """Pieces of work of ours, each between two of the reference; at least 2. A preparation is repeated a fifth as often."""
    sasrec: str = ""
    """The folder of model.py and utils.py in a checkout of pmixer/SASRec.pytorch; empty measures ours alone."""
    tisasrec: str = ""
    """The same of pmixer/TiSASRec.pytorch."""
    parts: tuple[str, ...] = ()
    """Of sasrec_step, tisasrec_step, evaluate and prepare, those to measure; empty for all."""
    num_users: int = 6040
    """Users of the larger generated set, as MovieLens 1M has; all else shrinks with them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextItemGrowth(Results):
    """How the cost of next_item grows with the length of sequences, the items and the users; some five minutes."""

    rounds: int = 5
    """Pieces of work whose median counts, of each kind and size."""
    doublings: int = 4
    """How often each size is doubled."""
    axes: tuple[str, ...] = ()
    """Of length, items and users, those to double; empty for all."""
    length: int = 25
    """The smallest length of sequences."""
    items: int = 4000
    """The smallest number of items."""
    users: int = 4000
    """The smallest number of users."""
    picture: str = "slurm/results/next_item_growth.png"
    """The PNG to draw; empty for none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextItemRun:
    """One process that `next_item` and `next_item_growth` start, in a folder of theirs; it writes no JSON."""

    side: Literal["ours", "reference"] = "ours"
    """Whose work; the reference's modules are found by PYTHONPATH."""
    work: Literal["step", "evaluate", "prepare"] = "step"
    """A training step, ranking items for users, or preparing data."""
    time_aware: bool = False
    """TiSASRec, and its reference; else SASRec."""
    num_streams: int = 0
    """Streams of mHC."""
    max_length: int = 50
    """Items of a sequence at most."""
    num_sequences: int = 128
    """Sequences of a batch, or users to rank items for."""
    loss: Literal["bce", "cross_entropy"] = "bce"
    """Of our training step; the reference's is bce."""


SCHEMAS: dict[str, type] = {
    "help_times": HelpTimes,
    "seeds": Seeds,
    "real": Real,
    "panel": Panel,
    "basic-panel": BasicPanel,
    "memory": Memory,
    "loader": Loader,
    "overhead": Overhead,
    "overhead-rank": OverheadRank,
    "scaling": Scaling,
    "knobs": Knobs,
    "autogluon": AutoGluon,
    "threads": Threads,
    "trees": Trees,
    "trees-run": TreesRun,
    "next_item": NextItem,
    "next_item_growth": NextItemGrowth,
    "next-item-run": NextItemRun,
}
"""Each benchmark's settings, by its name on the command line."""
