"""What only PyTorch can tell, asked in processes of their own: its versions and GPUs, and a 2-second all-reduce.

    python -m ensemble.doctor.ranks about
    RANK=… WORLD_SIZE=… MASTER_ADDR=… MASTER_PORT=… python -m ensemble.doctor.ranks all-reduce gloo|nccl DEVICE

Each prints one line of JSON. So a driver that hangs, a library that crashes or a node that stays silent costs a time limit,
and the doctor goes on.
"""

import concurrent.futures
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

ABOUT_LIMIT_S = 60
"""Python and PyTorch from a slow network file system take half a minute."""
ALL_REDUCE_S = 2.0
ALL_REDUCE_LIMIT_S = 60
TIMED_OUT = "no answer within the time limit"
MESSAGE_MIB = 25
"""DistributedDataParallel's default bucket (bucket_cap_mb): the message that a training sends."""
COMMAND = [sys.executable, "-P", "-m", "ensemble.doctor.ranks"]
"""-P: a folder `data` or a file torch.py where the user stands must not be taken for the library."""


def ask_about() -> dict[str, Any]:
    """What `about` prints, or {"failed": why}."""
    answers, failure = _outcomes([(["about"], None)], ABOUT_LIMIT_S)
    return answers[0] or {"failed": failure}


def ask_all_reduce(
    backend: str, places: Sequence[tuple[int, int]], num_ranks: int, address: str, port: int, environment: Mapping[str, str]
) -> tuple[dict[str, Any] | None, str]:
    """Start this node's ranks, each (rank, index of its GPU); the first one's answer, and why it failed if it did."""
    common = {**environment, "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
    # Several ranks a node would else each start as many threads as there are cores, which spin while they wait
    common |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    ranks = [(["all-reduce", backend, str(device)], {**common, "RANK": str(rank)}) for rank, device in places]
    answers, failure = _outcomes(ranks, ALL_REDUCE_LIMIT_S)
    return (None if failure else answers[0]), failure


_OWN_GROUP: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.PIPE,
    "text": True,
    "start_new_session": True,
}


def _outcomes(
    starts: Sequence[tuple[list[str], dict[str, str] | None]], limit_s: float
) -> tuple[list[dict[str, Any] | None], str]:
    """Start a process for each (words, environment); the line of JSON of each, None where it failed, and the first failure.

    All processes have ended on return, also if this one is interrupted while it starts them.
    """
    deadline = time.monotonic() + limit_s
    processes: list[subprocess.Popen[str]] = []
    with concurrent.futures.ThreadPoolExecutor(len(starts)) as pool:
        try:
            for words, environment in starts:
                processes.append(subprocess.Popen([*COMMAND, *words], env=environment, **_OWN_GROUP))
            outcomes = list(pool.map(lambda process: _outcome(process, deadline), processes))
        except BaseException:  # Ctrl-C, or the job's end: else the pool would wait for them
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            raise
    # What a rank says that lost its peers comes after what the peer says that failed first; time limits come last
    failures = sorted((failed_s, failure) for _, failed_s, failure in outcomes if failure)
    return [answer for answer, _, _ in outcomes], failures[0][1] if failures else ""


def _outcome(process: subprocess.Popen[str], deadline: float) -> tuple[dict[str, Any] | None, float, str]:
    """The answer, the time of its end, and why there is none."""
    try:
        said, complaint = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, time.monotonic(), TIMED_OUT
    answers = [line for line in said.splitlines() if line.startswith("{")]  # NCCL_DEBUG writes here too
    if process.returncode == 0 and answers:
        return json.loads(answers[-1]), time.monotonic(), ""
    last = complaint.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
    return None, time.monotonic(), last[0]


def about() -> dict[str, Any]:
    """CUDA that PyTorch was built for (None: for CPUs), cuDNN, NCCL, the GPUs, and why there are none if CUDA says so."""
    import torch

    error = ""
    if torch.version.cuda:
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as reason:
            error = str(reason).splitlines()[0]
    found = range(0 if error else torch.cuda.device_count())
    gpus = [torch.cuda.get_device_properties(index) for index in found]
    nccl = torch.cuda.nccl.version() if gpus and torch.distributed.is_nccl_available() else ()
    return {
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if gpus else None,
        "nccl": ".".join(map(str, nccl)),
        "gpus": [
            {"name": gpu.name, "memory_gb": round(gpu.total_memory / 1e9), "capability": f"{gpu.major}.{gpu.minor}"}
            for gpu in gpus
        ],
        "error": error,
    }


def all_reduce(backend: str, device_index: int) -> dict[str, Any]:
    """Sum a message over all ranks again and again for two seconds: seconds of one, and GB/s by the bus.

    Bus bandwidth is size ÷ time × 2 (n − 1) ÷ n: what each rank sends and receives in the best case, whatever their number
    n, so that it can be held against the speed of a link (NVIDIA/nccl-tests, doc/PERFORMANCE.md).
    """
    import torch
    from torch import distributed

    device = torch.device("cuda", device_index) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    distributed.init_process_group(backend, timeout=datetime.timedelta(seconds=ALL_REDUCE_LIMIT_S / 2))
    num_ranks, rank = distributed.get_world_size(), distributed.get_rank()
    message = torch.full((MESSAGE_MIB * 2**20 // 4,), float(rank + 1), device=device)
    distributed.all_reduce(message)  # also makes the connections
    assert torch.all(message == num_ranks * (num_ranks + 1) / 2), "the sum over the ranks is wrong"
    message.zero_()

    def seconds_of(repeats: int) -> float:
        """The slowest rank's, so that all go on with the same number."""
        distributed.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            distributed.all_reduce(message)
        if backend == "nccl":
            torch.cuda.synchronize()
        took = torch.tensor([time.perf_counter() - start], dtype=torch.float64, device=device)
        distributed.all_reduce(took, distributed.ReduceOp.MAX)
        return took.item() / repeats

    repeats = max(1, int(ALL_REDUCE_S / seconds_of(2)))
    each_s = seconds_of(repeats)
    bandwidth = message.nbytes / each_s * 2 * (num_ranks - 1) / num_ranks
    return {"num_ranks": num_ranks, "each_s": each_s, "repeats": repeats, "bus_gb_s": bandwidth / 1e9}


if __name__ == "__main__":
    if sys.argv[1] == "about":
        print(json.dumps(about()), flush=True)
    else:
        print(json.dumps(all_reduce(sys.argv[2], int(sys.argv[3]))), flush=True)
        os._exit(0)  # as errors.run does: Gloo's threads can hang the interpreter's end
