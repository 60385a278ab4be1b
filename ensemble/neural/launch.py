"""Create the `Accelerator` of a process, and check that the launcher started the requested number of processes.

`accelerate launch` can silently start fewer processes than its configuration requests (accelerate 1.15: MULTI_CPU with
num_processes: 2 starts one; MULTI_GPU on a machine without GPUs starts two independent ones). `start` therefore reads the
command line of the launcher, an ancestor of this process, and raises an error if the numbers differ.

`start` also applies settings that must be made before PyTorch is imported or the process group exists: OpenMP's wait policy,
memory allocation, NCCL's flight recorder, a signal to the ranks if the launcher dies. And it enables fp16 and FSDP on CPUs.
"""

import ctypes
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ensemble import folders, signals
from ensemble.errors import UserError, error_on_all_ranks
from ensemble.neural.accelerator import Accelerator
from ensemble.neural.settings import TrainConfig

NO_GPU = "PyTorch finds no GPU on this machine, see scripts/doctor.py"
NO_LAUNCHER = "the variable LOCAL_WORLD_SIZE"
"""The origin of the number of processes without `accelerate launch`, as with torchrun."""
ON_CPU = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
"""Environment variables of ranks on a CPU, to be set before PyTorch is imported. Accelerate's barrier uses the GPU with the
number of the rank if PyTorch sees any GPU, and fails if that GPU does not exist (accelerate 1.15)."""
SIZES_OF_MPI = ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE")
"""Variables with the number of processes that mpirun started. In a Slurm job, srun may set the last one, also for
independent runs."""
NUMBERS = ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", *SIZES_OF_MPI)
"""Variables that are read as numbers where they are set."""
UNSUPPORTED = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "parallelism other than data parallelism",
}
"""Environment variables that request what the loop does not support: name of the variable -> name of the feature."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""The numbers of two options of mallopt(3)."""


def start(settings: TrainConfig | None = None) -> Accelerator:
    """Create the `Accelerator`; `UserError` if the number of processes is not the one requested from the launcher.

    `settings` give the precision, the time-out of communication, and whether kernels are deterministic. With `use_cpu: true`
    in the YAML, all ranks run on the CPU and communicate through Gloo. If the launcher dies, this process receives SIGTERM.
    """
    # PyTorch loads OpenMP, which reads its environment variables only once
    assert "torch" not in sys.modules or "OMP_WAIT_POLICY" in os.environ, "PyTorch is imported already"
    # With the default policy threads spin while they wait, which is ten times slower on a busy node
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _keep_freed_memory()
    for name in NUMBERS:
        text = os.environ.get(name, "0")
        if not text.removeprefix("-").isdecimal():
            fix = "start ranks by accelerate launch, or unset the variable to use one process"
            raise UserError(f"{name}='{text}' is not a whole number, which a launcher would set: {fix}")
    request = launcher_request()
    if request["use_cpu"]:
        os.environ |= ON_CPU
    if request["origin"] != NO_LAUNCHER:
        # A launcher that is killed by a signal leaves its ranks running. SIGUSR1 kills any launcher; that of one process is
        # killed by every signal
        signals.end_with_parent()
    if settings:
        os.environ |= flight_recorder_environment(settings.out)
        if settings.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, cuBLAS has no deterministic kernels
    import torch
    from accelerate import Accelerator
    from accelerate.utils import parse_flag_from_env

    from ensemble.neural import speed

    is_sharded_by_yaml = parse_flag_from_env("ACCELERATE_USE_FSDP")
    if is_sharded_by_yaml:
        if os.environ.get("FSDP_VERSION", "1") == "1":  # its parameters are not DTensors
            raise UserError("fsdp_version: 1, the default in the accelerate YAML, is not supported: set it to 2")
        if parse_flag_from_env("FSDP_ACTIVATION_CHECKPOINTING"):
            raise UserError(
                "fsdp_activation_checkpointing: true in the accelerate YAML is not supported, since Accelerate 1.15 would "
                "draw other dropout masks in the backward pass: set it to false, and use torch.utils.checkpoint in the "
                "model of the recipe"
            )
        if parse_flag_from_env("FSDP_OFFLOAD_PARAMS") and parse_flag_from_env("ACCELERATE_USE_CPU"):
            raise UserError(
                "fsdp_offload_params: true in the accelerate YAML needs GPUs, and use_cpu is true: set it to false"
            )
        # Every rank has the same weights from the seed. Accelerate 1.15 would broadcast them, and fail at buffers
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    _refuse_unsupported()
    _refuse_too_few_gpus(request["origin"])
    options = speed.accelerator_options(settings) if settings else {}
    try:  # not on the GPU of a Mac: MPS has no float64, in which losses and scores are summed
        accelerator = Accelerator(cpu=torch.backends.mps.is_available(), **options)
    except (torch.distributed.DistNetworkError, torch.distributed.DistStoreError) as error:
        rank, num_ranks, address, port = map(os.environ.get, ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
        raise UserError(
            f"rank {rank} of {num_ranks} cannot connect to the others at MASTER_ADDR={address}, MASTER_PORT={port} "
            f"({str(error).splitlines()[0].rstrip('.')}): check that all ranks run and that the port is free, raise "
            "timeout_s, or unset WORLD_SIZE to train in one process"
        ) from None
    except RuntimeError as error:
        if "Unable to find address for" not in str(error):
            raise
        raise UserError(
            f"GLOO_SOCKET_IFNAME={os.environ.get('GLOO_SOCKET_IFNAME')} is no network interface with an address on this "
            "machine: name one that scripts/doctor.py lists, or unset the variable"
        ) from None
    except ValueError as error:
        if "env:// rendezvous" not in str(error):
            raise
        missing, rank = str(error).rpartition(": ")[2], os.environ.get("LOCAL_RANK")
        fix = "start ranks by accelerate launch, or unset LOCAL_RANK to use one process"
        raise UserError(f"LOCAL_RANK={rank} is that of one of several ranks, but {missing}: {fix}") from None
    speed.use_fp16_on_cpu(accelerator)
    if settings and settings.deterministic:
        speed.use_deterministic_kernels(accelerator.device)
    if is_sharded_by_yaml:
        from ensemble.neural import sharded

        sharded.use(accelerator)
    is_on_cpu = accelerator.device.type == "cpu" and not parse_flag_from_env("ACCELERATE_USE_CPU")
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    advice = NO_GPU if is_on_cpu else "MULTI_CPU and --cpu always start one process"
    requests = [(request["origin"], request["num_processes"], advice), ("the variable WORLD_SIZE", world_size, advice)]
    if accelerator.num_processes == 1:
        names = SIZES_OF_MPI[:-1] if "SLURM_PROCID" in os.environ else SIZES_OF_MPI
        alone = "without a launcher, each process would train alone"
        requests += [(f"mpirun ({name})", int(os.environ.get(name, "1")), alone) for name in names]
    for origin, requested, fix in requests:
        if requested is not None and requested != accelerator.num_processes:
            raise UserError(
                f"{origin} asks for {requested} processes, but this run has {accelerator.num_processes}: launch with a file "
                f"of accelerate_configs/ (multi_cpu.yaml for CPU ranks); {fix}"
            )
    if request["needs_gpu"] and is_on_cpu:
        raise UserError(
            f"{request['origin']} asks for a GPU (use_cpu: false): {NO_GPU}; launch with accelerate_configs/single_cpu.yaml "
            "to train on the CPU"
        )
    return accelerator


def _refuse_unsupported() -> None:
    """Raise `UserError` for features of Accelerate that this loop does not support."""
    from accelerate.utils import parse_flag_from_env

    for variable, feature in UNSUPPORTED.items():
        if parse_flag_from_env(variable):
            raise UserError(
                f"{variable}={os.environ[variable]} asks for {feature}, which is not supported: launch with a file of "
                "accelerate_configs/ (multi_gpu_sharded.yaml shards the weights), or unset the variable"
            )
    if (number := os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS") or "1") != "1":
        raise UserError(
            f"ACCELERATE_GRADIENT_ACCUMULATION_STEPS={number} has no effect: set micro_batch_size, from which "
            "the number of accumulation steps follows, and unset the variable"
        )
    if (backend := os.environ.get("ACCELERATE_DYNAMO_BACKEND") or "no").upper() != "NO":
        # It compiles the whole model, for each size of a batch, and no checkpoint records it
        raise UserError(
            f"ACCELERATE_DYNAMO_BACKEND={backend}, dynamo_config in the accelerate YAML, is not supported: leave it "
            "out, and set compile=true"
        )


def _refuse_too_few_gpus(origin: str) -> None:
    """Raise `UserError` if this machine has GPUs, but not one for each of its ranks."""
    import torch
    from accelerate.utils import parse_flag_from_env

    num_ranks, num_gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if 0 < num_gpus < num_ranks and not parse_flag_from_env("ACCELERATE_USE_CPU"):
        num_machines = int(os.environ["WORLD_SIZE"]) // num_ranks
        raise UserError(
            f"{origin} asks for {num_ranks} processes on this machine, each with a GPU of its own, but PyTorch finds "
            f"{num_gpus}: launch with accelerate launch --num_processes {num_gpus * num_machines}"
        )


def to_predict(runs: Sequence[Path]) -> Accelerator:
    """`start` for predictions by networks in the folders of their runs; `UserError` for a training that is not complete.

    If one of the networks was trained in float32, all predict in float32, whatever the YAML of a launcher requests.
    """
    for run in runs:
        status = folders.read_json(run / "summary.json").get("status", "done")
        if status != "done":
            raise UserError(f"the training of {run} is not complete, its status is {status}: continue it with --resume last")
        weights = folders.weights_of(run)
        if weights and folders.read_json(weights[0] / "state.json")["config"]["precision"] == "no":
            os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
    return start()


def _keep_freed_memory() -> None:
    """Let glibc reuse freed blocks of up to 32 MB, 256 MB in total, instead of returning them to the kernel.

    Otherwise each batch waits while the kernel clears new pages. In the demo's training the share of time spent waiting for
    data fell from 3.3 to 1.3 %.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
    if mallopt and not any(name.startswith("MALLOC_") for name in os.environ):
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 256 << 20)


def flight_recorder_environment(folder: str | Path) -> dict[str, str]:
    """Environment variables that make NCCL's watchdog write the last 2000 collectives of each rank on a time-out.

    They must be set before the process group exists. The watchdog's files are `<folder>/flight_recorder.rank<rank>`, and
    `python -m torch.distributed.flight_recorder.fr_trace -p flight_recorder.rank <folder>` reads them. The variables are
    those of torch 2.13 (FlightRecorder.hpp, ProcessGroupNCCL.hpp). Gloo records collectives too, but does not write them:
    `Heartbeat` writes them to `<folder>/collectives.rank<rank>.json`.
    """
    return {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": f"{Path(folder).resolve()}/flight_recorder.rank",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_ENABLE_MONITORING": "1",  # required for the dump
    }


def is_sharded(accelerator: Accelerator) -> bool:
    """Whether `accelerator.prepare` shards the weights over ranks (sharded.py)."""
    return accelerator.distributed_type == "FSDP"


def from_main_process(value: Any) -> Any:
    """The value of the main process, on every rank; collective."""
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]


@contextmanager
def together(accelerator: Accelerator) -> Iterator[None]:
    """A `UserError` in this block on one rank is raised on all ranks, which would otherwise wait for that rank.

    Collective at the end of the block. A rank without an error of its own raises that of the first rank that has one.
    """
    from accelerate.utils import gather_object

    own_message = ""
    try:
        yield
    except UserError as error:
        own_message = str(error)
    messages = gather_object([(own_message, socket.gethostname())])
    for rank, (message, host) in enumerate(messages):
        if message:
            if all(other == message for other, _ in messages):
                raise error_on_all_ranks(message)
            raise UserError(own_message or f"rank {rank} of {accelerator.num_processes} (host {host}): {message}")


def launcher_request() -> dict[str, Any]:
    """The launcher's arguments: `num_processes` (None if no number is given), `use_cpu`, whether its file `needs_gpu`, and
    `origin`, a name for their source."""
    import psutil

    with suppress(psutil.Error):
        for parent in psutil.Process().parents():
            if str(parent.pid) == os.environ.get(signals.STARTED_BY):
                break
            if (arguments := launch_arguments(parent.cmdline())) is not None:
                return requested_processes(arguments)
    return {"num_processes": None, "use_cpu": False, "needs_gpu": False, "origin": NO_LAUNCHER}


def launch_arguments(command: list[str]) -> list[str] | None:
    """The arguments of `accelerate launch`, or None for any other command."""
    words = list(command)
    if words and "python" in os.path.basename(words[0]).lower():
        del words[0]
        while words and words[0].startswith("-"):  # an option of Python, such as -m
            del words[: 2 if words[0] in ("-W", "-X") else 1]
    word, *arguments = words or [""]
    if word.endswith(("accelerate", "accelerate.exe", "accelerate.commands.accelerate_cli")):
        return arguments[1:] if arguments[:1] == ["launch"] else None
    modules = ("accelerate.commands.launch", "accelerate-launch", "ensemble.neural.launcher")
    return arguments if word in modules or word.endswith("/accelerate-launch") else None


def requested_processes(arguments: list[str]) -> dict[str, Any]:
    """The values that `launcher_request` returns, from the arguments of `accelerate launch`.

    A file needs a GPU if the arguments name it and it has the line `use_cpu: false`. Without that line it may be for any
    machine.
    """
    import yaml
    from accelerate.commands.config.config_args import default_config_file, load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    args = launch_command_parser().parse_args(arguments)
    has_default = os.path.isfile(default_config_file) and not args.cpu  # with --cpu the launcher ignores this file
    file = args.config_file or (default_config_file if has_default else None)
    settings = load_config_from_file(file) if file else None
    named_file = yaml.safe_load(Path(args.config_file).read_text(encoding="utf-8")) if args.config_file else {}
    # For GPUs Accelerate accepts a number in quotes, and the words of torchrun, such as auto
    requested = str(args.num_processes or (settings and settings.num_processes))
    return {
        "num_processes": int(requested) if requested.isdecimal() else None,
        "use_cpu": bool(args.cpu or (settings and settings.use_cpu)),
        "needs_gpu": bool(named_file) and not args.cpu and named_file.get("use_cpu") is False,
        "origin": f"the launcher ({file})" if file and not args.num_processes else "the launcher (--num_processes)",
    }
