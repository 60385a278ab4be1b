"""How a process joins the others: what the launcher was asked for is held against what really came up.

`accelerate launch` can start fewer processes than its configuration says without a word (accelerate 1.15: MULTI_CPU with
num_processes: 2 starts one; MULTI_GPU on a machine without GPUs starts two that do not know each other). So the launcher's
own command line, seen as a parent of this process, is read again, and training refuses to start when the numbers differ.

`start` also does what can be done only before PyTorch is loaded or the ranks have met: how threads wait, what memory a
batch leaves, what NCCL writes on a time-out, that a rank ends with its launcher; and what Accelerate leaves out on CPUs.
"""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ensemble.errors import UserError, error_on_all_ranks
from ensemble.neural import heartbeat
from ensemble.neural.settings import TrainConfig

if TYPE_CHECKING:
    from accelerate import Accelerator

NO_LAUNCHER = "no launcher"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""mallopt(3)."""
PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""


def start(settings: TrainConfig | None = None) -> "Accelerator":
    """An `Accelerator` on as many processes as the launcher was asked for; `UserError` if there are fewer or more.

    `settings` say with what precision and how the ranks talk. On a configuration with `use_cpu: true` all ranks run on the
    CPU and talk by Gloo. Should the launcher die, this process gets a SIGTERM.
    """
    assert "torch" not in sys.modules, "OpenMP has read its settings already"
    # Threads that spin while they wait are ten times slower on a busy node
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _keep_freed_memory()
    asked = launcher_request()
    if asked["use_cpu"]:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    if asked["origin"] != NO_LAUNCHER and sys.platform == "linux":
        # A launcher that a signal kills orphans its ranks: SIGUSR1 does, and any that has started a single process
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if settings:
        os.environ |= heartbeat.flight_recorder_environment(settings.out)
    from accelerate import Accelerator
    from accelerate.utils import parse_flag_from_env

    from ensemble.neural import speed

    accelerator = Accelerator(**speed.accelerator_options(settings) if settings else {})
    speed.use_fp16_on_cpu(accelerator)
    if parse_flag_from_env("ACCELERATE_USE_FSDP"):
        from ensemble.neural import sharded

        sharded.use_on_cpu(accelerator)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    for origin, wanted in ((asked["origin"], asked["num_processes"]), ("the environment's WORLD_SIZE", world_size)):
        if wanted is not None and wanted != accelerator.num_processes:
            raise UserError(
                f"{origin} asks for {wanted} processes, but this run has {accelerator.num_processes}: launch with one of "
                "accelerate_configs/ (multi_cpu.yaml for CPU ranks), and not with MULTI_CPU or --cpu, which start one "
                "process however many are asked for"
            )
    return accelerator


def _keep_freed_memory() -> None:
    """Let glibc hold on to the large blocks that a batch frees: else the next one waits while the kernel clears new pages.

    On the demo's training, the share of time that waits for data fell from 3.3 to 1.3 %. Up to 32 MB each, 256 MB in all.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt and not any(name.startswith("MALLOC_") for name in os.environ):
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 256 << 20)


def is_sharded(accelerator: "Accelerator") -> bool:
    """Whether what `prepare` makes lies in pieces on several ranks (sharded.py)."""
    return accelerator.distributed_type == "FSDP"


def from_main_process(accelerator: "Accelerator", value: Any) -> Any:
    """The main process's value, on every rank."""
    values = [value]
    if accelerator.num_processes > 1:
        from torch.distributed import broadcast_object_list

        broadcast_object_list(values)
    return values[0]


@contextmanager
def together(accelerator: "Accelerator") -> Iterator[None]:
    """Raise on all ranks what the user must mend on one: the others would wait for it. Collective, at the block's end."""
    from accelerate.utils import gather_object

    told = ""
    try:
        yield
    except UserError as error:
        told = str(error)
    host = socket.gethostname()
    found = gather_object([(told, host)])
    for rank, (of_rank, of_host) in enumerate(found):
        if of_rank:
            if all(sentence == of_rank for sentence, _ in found):
                raise error_on_all_ranks(of_rank)
            who = f"rank {rank} of {accelerator.num_processes} (host {of_host}): "
            raise UserError(told or f"{who}{of_rank}")


def launcher_request() -> dict[str, Any]:
    """`num_processes` (None if nobody said), `use_cpu`, and in `origin` who asked: read from the launcher's command line."""
    import psutil

    parent = psutil.Process().parent()
    while parent is not None:
        try:
            arguments = _launch_arguments(parent.cmdline())
        except psutil.Error:
            break
        if arguments is not None:
            return _request(arguments)
        parent = parent.parent()
    return {"num_processes": None, "use_cpu": False, "origin": NO_LAUNCHER}


def _launch_arguments(command: list[str]) -> list[str] | None:
    """The words after `accelerate launch`, or None for any other command."""
    for position, word in enumerate(command[:4]):
        if word.endswith(("accelerate", "accelerate.exe")) and command[position + 1 : position + 2] == ["launch"]:
            return command[position + 2 :]
        if word in ("accelerate.commands.launch", "accelerate-launch") or word.endswith("/accelerate-launch"):
            return command[position + 1 :]
    return None


def _request(arguments: list[str]) -> dict[str, Any]:
    from accelerate.commands.config.config_args import default_config_file, load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    args = launch_command_parser().parse_args(arguments)
    file = args.config_file or (default_config_file if os.path.isfile(default_config_file) else None)
    settings = load_config_from_file(file) if file else None
    return {
        "num_processes": args.num_processes or (settings.num_processes if settings else None),
        "use_cpu": bool(args.cpu or (settings and settings.use_cpu)),
        "origin": f"the launcher ({file})" if file and not args.num_processes else "the launcher (--num_processes)",
    }
