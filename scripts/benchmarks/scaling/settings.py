"""Settings of the benchmarks in measure.py. Nothing heavy is imported here."""

import dataclasses

from benchmarks.results import Results


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


SCHEMAS: dict[str, type] = {
    "scaling": Scaling,
}
