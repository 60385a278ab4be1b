"""The hardware that a fit trains its network on."""

from typing import Any

import pytest

from ensemble.pipeline import network
from ensemble.pipeline.plan import PlannedMember


@pytest.mark.parametrize(
    ("num_threads", "num_rows", "settings", "num_ranks"),
    [
        (1, 100_000, {}, 1),
        (2, 100_000, {}, 2),
        (3, 100_000, {}, 2),
        (64, 100_000, {}, 4),
        (2, 1_999, {}, 1),
        (2, 2_000, {}, 2),
        (4, 100_000, {"batch_size": 66}, 2),
        (4, 100_000, {"batch_size": 33}, 1),
    ],
)
def test_the_number_of_ranks_on_a_cpu(num_threads: int, num_rows: int, settings: dict[str, Any], num_ranks: int) -> None:
    """Cores would be idle, a batch not be divisible, or a small table wait for the start of processes."""
    member = PlannedMember(name="tabm", kind="neural", settings=settings)
    manifest = {"recipe": "table", "splits": {"train": {"rows": num_rows}}}
    assert network.num_cpu_ranks(member, manifest, num_threads) == num_ranks
