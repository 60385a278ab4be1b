"""Checks of PyTorch in separate processes: its CUDA libraries and GPUs, and an all-reduce that is repeated for 2 seconds.

    python -m ensemble.doctor.ranks torch-info
    RANK=… WORLD_SIZE=… MASTER_ADDR=… MASTER_PORT=… python -m ensemble.doctor.ranks all-reduce gloo|nccl DEVICE

Each command prints one line of JSON. If a driver hangs, a library crashes or a node does not answer, the check ends, at the
latest at its time limit, and the doctor continues.
"""

import concurrent.futures
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ensemble.errors import Failure, how_ended

TORCH_INFO_LIMIT_S = 60
"""The import of PyTorch from a slow network file system takes half a minute."""
ALL_REDUCE_S = 2.0
ALL_REDUCE_LIMIT_S = 60
TIMED_OUT = "no answer within the time limit"
MESSAGE_MIB = 25
"""DistributedDataParallel's default bucket (bucket_cap_mb): the message size in training."""
COMMAND = [sys.executable, "-P", "-m", "ensemble.doctor.ranks"]
"""With -P a file such as torch.py in the current folder does not replace the library of this name."""


def run_torch_info() -> dict[str, Any]:
    """The result of `torch_info` in another process, or {"failed": reason}."""
    results, failure = _run_all([(["torch-info"], None)], TORCH_INFO_LIMIT_S)
    return results[0] or {"failed": failure}


def run_all_reduce(
    backend: str, places: Sequence[tuple[int, int]], num_ranks: int, address: str, port: int, environment: Mapping[str, str]
) -> tuple[dict[str, Any] | None, str]:
    """Run this node's ranks of an all-reduce; returns the result of the first one (None after a failure) and the reason for
    the failure.

    places : (rank, GPU index) of each rank. address, port : of the head node.
    """
    common = {**environment, "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
    # By default each of several ranks on a node starts one thread per core, and these threads spin while they wait
    common |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    ranks = [(["all-reduce", backend, str(device)], {**common, "RANK": str(rank)}) for rank, device in places]
    results, failure = _run_all(ranks, ALL_REDUCE_LIMIT_S)
    return (None if failure else results[0]), failure


def _run_all(
    starts: Sequence[tuple[list[str], dict[str, str] | None]], limit_s: float
) -> tuple[list[dict[str, Any] | None], str]:
    """Run a process for each (arguments, environment). Returns their results, None for a failed one, and the first failure.

    On return, also by an exception after an interruption, each process has ended or was sent SIGKILL.
    """
    deadline = time.monotonic() + limit_s
    processes: list[subprocess.Popen[str]] = []
    interrupted = threading.Event()

    def run(arguments: list[str], environment: dict[str, str] | None) -> tuple[dict[str, Any] | None, float, str]:
        # In the main thread, a signal could raise an exception when the process has begun and is not yet in the list
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [*COMMAND, *arguments]
        process = subprocess.Popen(command, env=environment, text=True, errors="replace", start_new_session=True, **pipes)
        processes.append(process)
        if interrupted.is_set():
            _kill(process)
        return _result(process, deadline)

    with concurrent.futures.ThreadPoolExecutor(len(starts)) as pool:
        try:
            outcomes = list(pool.map(run, *zip(*starts, strict=True)))
        except BaseException:  # Ctrl-C or SIGTERM; otherwise the pool would wait for the processes
            interrupted.set()
            for process in list(processes):
                _kill(process)
            raise
    # The earliest failure is the cause: ranks whose peers failed end later, and time limits come last
    failures = sorted((failed_s, failure) for _, failed_s, failure in outcomes if failure)
    return [result for result, _, _ in outcomes], failures[0][1] if failures else ""


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.killpg(process.pid, signal.SIGKILL)


def _result(process: subprocess.Popen[str], deadline: float) -> tuple[dict[str, Any] | None, float, str]:
    """The result of a process (None if it failed), the time of its end, and the reason for its failure."""
    try:
        output, errors = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        _kill(process)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that waits for a driver is not ended by SIGKILL
            process.communicate(timeout=5)
        return None, time.monotonic(), TIMED_OUT
    results = [line for line in output.splitlines() if line.startswith("{")]  # NCCL_DEBUG writes to stdout too
    if process.returncode == 0 and results:
        return json.loads(results[-1]), time.monotonic(), ""
    last_line = errors.strip().splitlines()[-1:]
    if process.returncode < 0 or not last_line:  # after a signal, the last line may have nothing to do with it
        last_line = [f"the process {how_ended(process.returncode)}", *(f"its last line: {line}" for line in last_line)]
    return None, time.monotonic(), "; ".join(last_line)


def torch_info() -> dict[str, Any]:
    """Versions of CUDA (None if PyTorch is built for CPUs), cuDNN and NCCL; the GPUs; and the error if CUDA fails."""
    import torch

    error = ""
    if torch.version.cuda:
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as reason:
            error = str(reason).splitlines()[0]
    gpus = [torch.cuda.get_device_properties(index) for index in range(0 if error else torch.cuda.device_count())]
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
    """Repeat an all-reduce for two seconds; returns the seconds of one, the number of repeats and the bus bandwidth.

    Bus bandwidth is size ÷ time × 2 (n − 1) ÷ n for n ranks. The factor makes it independent of n, so it can be compared
    with the speed of a link (NVIDIA/nccl-tests, doc/PERFORMANCE.md).
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
    distributed.all_reduce(message)  # the first one also makes the connections
    if not torch.all(message == num_ranks * (num_ranks + 1) / 2):  # no assertion, which python -O leaves out
        raise Failure("the sum over the ranks is wrong")
    message.zero_()

    def seconds_of(repeats: int) -> float:
        """Seconds of one all-reduce on the slowest rank, which is the same number on all ranks."""
        distributed.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            distributed.all_reduce(message)
        if backend == "nccl":
            torch.cuda.synchronize()
        elapsed = torch.tensor([time.perf_counter() - start], dtype=torch.float64, device=device)
        distributed.all_reduce(elapsed, distributed.ReduceOp.MAX)
        return elapsed.item() / repeats

    repeats = max(1, int(ALL_REDUCE_S / seconds_of(2)))
    each_s = seconds_of(repeats)
    bandwidth = message.nbytes / each_s * 2 * (num_ranks - 1) / num_ranks
    return {"each_s": each_s, "repeats": repeats, "bus_gb_s": bandwidth / 1e9}


if __name__ == "__main__":
    if sys.argv[1] == "torch-info":
        print(json.dumps(torch_info()), flush=True)
    else:
        print(json.dumps(all_reduce(sys.argv[2], int(sys.argv[3]))), flush=True)
        os._exit(0)  # as errors.run does: Gloo's threads can keep the interpreter from ending
