"""The environment of a run: hardware, versions, commit, command, and the environment variables that libraries read."""

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from ensemble import cores, predictions

ROOT = Path(__file__).resolve().parents[2]

PREFIXES = (
    "ACCELERATE_", "CUDA_", "FI_", "GLOO_", "GOMP_", "KMP_", "LOCAL_RANK", "MASTER_", "MKL_", "NCCL_", "NODE_RANK", "OMP_",
    "PYTORCH_", "RANK", "SLURM_CPUS_", "SLURM_JOB_", "SLURM_NNODES", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_PROCID",
    "SLURM_RESTART_COUNT", "TORCH", "UCX_", "WORLD_SIZE",
)  # fmt: skip
"""Prefixes of environment variables that affect a run."""
SECRETS = ("AUTH", "CREDENTIAL", "JWT", "KEY", "PASS", "SECRET", "TOKEN")
"""A variable whose name contains one of these is never written."""


def report() -> dict[str, Any]:
    """The entries of `machine`, threads, GPUs (memory in GB), versions of CUDA, cuDNN, NCCL, and environment variables."""
    import torch

    has_gpu = torch.cuda.is_available()
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    nccl = torch.cuda.nccl.version() if has_gpu and torch.distributed.is_nccl_available() else ()
    return {
        **machine(),
        "threads": torch.get_num_threads(),
        "gpus": [{"name": gpu.name, "memory_gb": round(gpu.total_memory / 1e9, 1)} for gpu in properties],
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, nccl)) or None,
        "environment": {
            name: os.fsencode(value).decode(errors="replace")  # a byte that is not UTF-8 could not be written
            for name, value in sorted(os.environ.items())
            if name.startswith(PREFIXES) and not any(word in name.upper() for word in SECRETS)
        },
    }


def machine() -> dict[str, Any]:
    """Date, commit, command, processor, cores, memory and versions; does not import PyTorch."""
    changes = _git("status", "--porcelain")
    processor = platform.processor() or platform.machine()
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), processor)
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted": None if changes is None else changes.splitlines(),
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "host": platform.node(),
        "platform": platform.platform(),
        "processor": processor,
        "cores": os.cpu_count(),
        "cores_granted": cores.granted(),
        "core_limits": cores.limits(os.environ),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "python": platform.python_version(),
        "versions": predictions.versions()
        | {name: importlib.metadata.version(name) for name in ("evaluate", "safetensors")},
    }


def _git(*words: str) -> str | None:
    """The output of a git command in the project; None if the project is not a checkout but a wheel, or if git fails."""
    if not (ROOT / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(ROOT), *words]
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.rstrip()
