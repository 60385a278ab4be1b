"""Each YAML file with the real launcher, those for GPUs on CPUs: its number of ranks start and form a group."""

import json
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from launcher import ACCELERATE, ROOT, TIMEOUT_S, started

AS_IN_THE_README = [Path(sys.executable).with_name("accelerate"), "launch"]
WORKER = Path(__file__).with_name("ranks_worker.py")
EXPECTED: dict[str, tuple[int, str]] = {
    "single_cpu": (1, "no"),
    "multi_cpu": (2, "no"),
    "multi_cpu_sharded": (2, "no"),
    "multi_node_cpu": (4, "no"),
    "single_gpu": (1, "bf16"),
    "multi_gpu": (2, "bf16"),
    "multi_gpu_sharded": (2, "bf16"),
    "multi_node": (4, "bf16"),
}
"""Number of ranks and precision."""
TRAINED_ELSEWHERE = ("single_cpu", "multi_cpu", "multi_cpu_sharded", "multi_node_cpu")
"""The files with which other tests of `make test` train, those of several nodes on Slurm."""


def test_every_yaml_is_tested() -> None:
    """A new file could start another number of processes than it says."""
    assert {file.stem for file in (ROOT / "accelerate_configs").glob("*.yaml")} == set(EXPECTED)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.torture] * (name in TRAINED_ELSEWHERE)) for name in EXPECTED]
)
def test_its_ranks_start(name: str, tmp_path: Path) -> None:
    """One launcher for each machine in the YAML, all on this machine."""
    file = ROOT / "accelerate_configs" / f"{name}.yaml"
    settings = yaml.safe_load(file.read_text())
    on_cpu = {} if settings["use_cpu"] else {"ACCELERATE_USE_CPU": "true"}
    cpu = ["--cpu"] if on_cpu and settings["num_processes"] == 1 else []  # the launcher of one process sets the variable
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ExitStack() as stack:
        launchers = []
        for machine in range(settings["num_machines"]):
            place = [
                "--machine_rank",
                machine,
                "--main_process_ip",
                "127.0.0.1",
                "--main_process_port",
                port,
                "--same_network",
            ]
            command = AS_IN_THE_README if name == "multi_cpu" else ACCELERATE
            words = [*command, "--config_file", file, *cpu, *(place if settings["num_machines"] > 1 else [])]
            launchers.append(stack.enter_context(started([*words, WORKER, tmp_path], tmp_path, **on_cpu)))
        for launcher in launchers:
            _, errors = launcher.communicate(timeout=TIMEOUT_S)
            assert launcher.returncode == 0, errors
    ranks, precision = EXPECTED[name]
    descriptions = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("*.json"))]
    assert descriptions == [{"ranks": ranks, "summed": ranks, "device": "cpu", "precision": precision}] * ranks
