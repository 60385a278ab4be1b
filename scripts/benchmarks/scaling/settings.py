"""Settings of the benchmarks in measure.py. No large library is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaling(Results):
    """One training of hot_sellers on increasing numbers of ranks with the same global batch: speed, hours, cost.

    On a CPU also the share of time spent waiting for data with a thread per core.
    """

    rounds: int = 5
    """Trainings on each number of ranks, alternately; at least 2."""
    ranks: tuple[int, ...] = ()
    """Numbers of ranks, beginning with 1; empty for those of 1, 2, 4, 8 that GPUs or nodes allow, 1 and 2 on a CPU."""
    ranks_per_node: int = 1
    """In a Slurm job the largest number of ranks on a node; as few nodes as possible are used."""
    configuration: str = ""
    """The accelerate YAML; empty for that of the hardware. In a Slurm job, a YAML given here makes srun launch the ranks."""
    training: tuple[str, ...] = ()
    """Settings of scripts/train.py over the demo's short form, as in 'training=[batch_size=4096,max_epochs=2]'."""
    data: str = ""
    """Prepared data; empty generates the demo's short market."""
    folder: str = ""
    """The folder for runs and generated data, shared by the nodes of a job; empty for a temporary one."""
    price_per_gpu_hour: float = 0.0
    """The price of an hour of a GPU, in any currency; 0 for none."""
