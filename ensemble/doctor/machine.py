"""Checks of one machine: software, GPUs, cores, limits, folders. Each check yields its findings.

This module needs only the standard library, so that the doctor runs even if a library is missing. A check yields nothing
if its information is not available, for example where there is no /proc or no Slurm.
"""

import collections
import hashlib
import importlib.metadata
import os
import platform
import re
import resource
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ensemble.doctor.findings import Finding, note, ok, problem
from ensemble.doctor.ranks import TIMED_OUT

ROOT = Path(__file__).resolve().parents[2]

MIN_OPEN_FILES, ENOUGH_OPEN_FILES = 1024, 4096
"""Loader workers pass each tensor as an open file: 1024, the usual default, was too few for some users (pytorch#165532)."""
MIN_SHARED_MEMORY_GB = 1
"""Loader workers store their batches in shared memory. Docker's default is 64 MB (docs.docker.com, --shm-size), which is
not enough according to PyTorch's README."""
BF16_CAPABILITY = 8.0
"""Tensor cores support bf16 from compute capability 8.0 on (CUDA C++ Programming Guide, arithmetic instructions)."""
NETWORK_FILE_SYSTEMS = (
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gpfs", "lustre", "nfs",
    "nfs4", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
)  # fmt: skip


# ------------------------------------------------------------------------------------------------ software


def python() -> Iterator[Finding]:
    yield ok("python", f"{platform.python_version()} ({sys.executable})", same_everywhere=True)


def libraries(pyproject: Path = ROOT / "pyproject.toml") -> Iterator[Finding]:
    """Whether each required library is installed in the minimum version or a newer one."""
    installed, unmet = {}, []
    for requirement in tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"]:
        parts = re.fullmatch(r"([\w.-]+) *>= *([\w.]+)", requirement)
        assert parts, requirement
        name, minimum = parts.groups()
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            unmet.append((requirement, f"{name} is missing"))
            continue
        if release(installed[name]) < release(minimum):
            unmet.append((requirement, f"{name} {installed[name]} is older than {minimum}"))
    if unmet:
        command = " ".join(f"'{requirement}'" for requirement, _ in unmet)
        yield problem("libraries", "; ".join(fault for _, fault in unmet), f"{sys.executable} -m pip install {command}")
    else:
        yield ok("libraries", f"{len(installed)} are as new as pyproject.toml requires")
    for name in ("torch", "accelerate"):
        if name in installed:
            yield ok(name, installed[name], same_everywhere=True)


def release(version: str) -> tuple[int, ...]:
    """The release of a version as numbers, without zeros at the end: (2, 13) for 2.13.0+cpu."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    assert numbers, version
    return tuple(int(number) for number in re.sub(r"(\.0+)+$", "", numbers[0]).split("."))


def code(root: Path = ROOT) -> Iterator[Finding]:
    """A hash of the project's Python files. Nodes with different hashes run different programs."""
    digest = hashlib.sha256()
    for file in sorted(path for folder in ("ensemble", "scripts") for path in (root / folder).rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    yield ok("project", f"{root}, code {digest.hexdigest()[:12]}", same_everywhere=True)


# ------------------------------------------------------------------------------------------------ GPUs


def nvidia_driver() -> str:
    """The version of the NVIDIA driver of this machine; empty without a driver."""
    file = Path("/proc/driver/nvidia/version")
    if not file.exists():
        return ""
    version = re.search(r"\s(\d+\.\d+[.\d]*)\s", file.read_text())
    return version[1] if version else "of unknown version"


def gpus(torch_info: Mapping[str, Any], environment: Mapping[str, str], driver: str) -> Iterator[Finding]:
    """Compare the GPUs that PyTorch sees (`ranks.torch_info`) with the driver, Slurm and CUDA_VISIBLE_DEVICES."""
    if "failed" in torch_info:
        fix = f"{sys.executable} -m pip install --force-reinstall torch"
        if torch_info["failed"] == TIMED_OUT:
            fix = "try python -c 'import torch; torch.cuda.init()': a driver or the file system of Python hangs"
        yield problem("PyTorch", f"cannot be loaded: {torch_info['failed']}", fix)
        return
    seen, build, visible_devices = torch_info["gpus"], torch_info["cuda"], environment.get("CUDA_VISIBLE_DEVICES")
    granted = environment.get("SLURM_GPUS_ON_NODE", "")
    if seen:
        kinds = collections.Counter(f"{gpu['name']} ({gpu['memory_gb']} GB)" for gpu in seen)
        yield ok("GPUs", ", ".join(f"{number} × {kind}" for kind, number in kinds.items()))
        versions = (
            f"CUDA {build}, cuDNN {torch_info['cudnn']}, NCCL {torch_info['nccl'] or 'none'}, driver {driver or 'unknown'}"
        )
        yield ok("CUDA", versions, same_everywhere=True)
        if any(float(gpu["capability"]) < BF16_CAPABILITY for gpu in seen):
            least = min(float(gpu["capability"]) for gpu in seen)
            fix = "write mixed_precision: fp16 into the GPU files of accelerate_configs/"
            yield problem("bf16", f"needs compute capability {BF16_CAPABILITY}, the GPU has {least}", fix)
    elif driver and not build:
        fix = "install the build for CUDA that https://pytorch.org/get-started names for this driver"
        yield problem("GPUs", f"none for PyTorch, which is built for CPUs, but there is an NVIDIA driver ({driver})", fix)
    elif driver and visible_devices in ("", "-1", "NoDevFiles"):
        yield note("GPUs", f"CUDA_VISIBLE_DEVICES={visible_devices} hides them", "unset CUDA_VISIBLE_DEVICES to use them")
    elif driver and "SLURM_JOB_ID" in environment and granted in ("", "0"):
        yield note("GPUs", "this job was granted none", "request them: sbatch --gpus-per-node=2")
    elif driver:
        fix = "see nvidia-smi: an old driver must be updated, and after an update the machine must be restarted"
        value = f"none for PyTorch (CUDA {build}), driver {driver}: {torch_info['error'] or 'no reason given'}"
        yield problem("GPUs", value, fix)
    else:
        yield ok("GPUs", "none here, and no NVIDIA driver" if build else "none, and PyTorch is built for CPUs")
    # With --gpus-per-task, a task sees only its own GPUs
    if granted.isdigit() and int(granted) > len(seen) and "SLURM_GPUS_PER_TASK" not in environment and (build or not driver):
        fix = "install PyTorch's build for CUDA: this one is for CPUs"
        if build:
            fix = "start one task a node with srun --ntasks-per-node=1, and let no script set CUDA_VISIBLE_DEVICES"
        yield problem("GPUs granted", f"Slurm granted {granted} on this node, PyTorch sees {len(seen)}", fix)


# ------------------------------------------------------------------------------------------------ cores and limits


def check_cores(environment: Mapping[str, str], limits: Mapping[str, int], num_seen: int) -> Iterator[Finding]:
    """Compare granted cores (`cores.limits`) with the cores of the machine, and threads with granted cores."""
    granted = min(limits.values())
    limits_text = ", ".join(f"{name} {number}" for name, number in limits.items())
    yield ok("cores", f"{granted} granted of {num_seen} seen ({limits_text})")
    if min(limits.get("SLURM_CPUS_PER_TASK", 0), num_seen) > limits["affinity"]:
        # Slurm's release notes, 22.05
        fix = "give srun --cpus-per-task=$SLURM_CPUS_PER_TASK too: since Slurm 22.05 srun does not inherit that of sbatch"
        value = f"SLURM_CPUS_PER_TASK={limits['SLURM_CPUS_PER_TASK']}, but the process may use {limits['affinity']}"
        yield problem("cores of srun", value, fix)
    threads = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # of the outermost of nested parallel regions
    if not threads.isdigit() or threads == "0":
        if granted < num_seen:
            fix = f"export OMP_NUM_THREADS={granted} ÷ ranks per node: accelerate launch counts all cores of the machine"
            yield note("threads", "OMP_NUM_THREADS is not set", fix)
        else:
            yield ok("threads", "OMP_NUM_THREADS is not set: each process has as many threads as cores")
    elif int(threads) > granted:
        fix = f"export OMP_NUM_THREADS={granted} or less: threads that wait for a core make a run ten times slower"
        yield problem("threads", f"OMP_NUM_THREADS={threads}, but {granted} granted", fix)
    elif threads == "1" and granted > 1:
        fix = f"unset it before train_trees.py or write threads={granted}: outside of Slurm jobs, trees would use one core"
        yield note("threads", f"OMP_NUM_THREADS=1 of {granted} cores", fix)
    else:
        yield ok("threads", f"OMP_NUM_THREADS={threads}")
    # Measured with torch 2.13: `import torch` binds the process to one core, which its workers inherit (pytorch#49971)
    pinned = [name for name in ("GOMP_CPU_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND") if environment.get(name)]
    if pinned and environment.get("OMP_PROC_BIND", "true").lower() != "false":
        fix = f"unset {' '.join(pinned)}: the main threads of a node's ranks and their loader workers would share one core"
        yield note("pinned threads", ", ".join(f"{name}={environment[name]}" for name in pinned), fix)


def open_files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    value = f"{soft if soft != resource.RLIM_INFINITY else 'unlimited'} at once (ulimit -n)"
    fix = f"ulimit -n {ENOUGH_OPEN_FILES} before the launch: every loader worker and every rank opens many"
    if 0 <= hard < ENOUGH_OPEN_FILES:
        fix = f"have the hard limit of {hard} raised to {ENOUGH_OPEN_FILES} (limits.conf, or LimitNOFILE of slurmd)"
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_OPEN_FILES:
        yield ok("open files", value)
    else:
        yield (note if soft >= MIN_OPEN_FILES else problem)("open files", value, fix)


def locked_memory(devices: Path = Path("/dev/infiniband")) -> Iterator[Finding]:
    """A problem if locked memory is limited and there is InfiniBand: RDMA locks its buffers in memory (Red Hat, Configuring
    InfiniBand and RDMA networks, chapter 5)."""
    if devices.exists():
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        fix = "have memlock set to unlimited (limits.conf, and LimitMEMLOCK=infinity of slurmd): NCCL pins its buffers"
        if soft != resource.RLIM_INFINITY:
            yield problem("locked memory", f"{soft} bytes (ulimit -l), and this machine has InfiniBand", fix)


def shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[Finding]:
    if folder.exists():
        usage = shutil.disk_usage(folder)
        value = f"{folder} of {size(usage.total)}, {size(usage.free)} free"
        fix = "docker run --ipc=host or --shm-size=8g; elsewhere, remove old files from it; or train with num_workers=0"
        enough = usage.free >= MIN_SHARED_MEMORY_GB * 1e9
        yield ok("shared memory", value) if enough else problem("shared memory", value, fix)
    elif sys.platform == "linux":  # macOS has shared memory without such a folder
        fix = "mount a tmpfs there, or train with num_workers=0"
        yield problem("shared memory", f"there is no {folder}, so loader workers cannot start", fix)


# ------------------------------------------------------------------------------------------------ folders


def scratch(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Whether the node's folder for copies of data can be written, its free space, and whether its disk is local."""
    names = ("SCRATCH_FOLDER", "SLURM_TMPDIR", "SCRATCH", "TMPDIR")
    origin = next((name for name in names if environment.get(name)), "")
    folder = Path(environment[origin] if origin else tempfile.gettempdir())
    value = f"{origin}={folder}" if origin else str(folder)
    fix = "name another folder as SCRATCH_FOLDER in slurm/site.sh, or make room in it"
    try:
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(2**21))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        yield problem("scratch", f"{value} cannot be written: {error.strerror}", fix)
        return
    free = shutil.disk_usage(folder).free
    kind = file_system(folder)
    value = f"{value}, {size(free)} free" + (f", {kind}" if kind else "")
    if kind in NETWORK_FILE_SYSTEMS:
        yield note("scratch", value, "name a local disk: copying data to a network file system gains nothing")
    else:
        yield ok("scratch", value)


def file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The type of the file system of a path; empty if it is unknown."""
    if not mounts.exists():
        return ""
    lines = (line.split() for line in mounts.read_text(encoding="utf-8").splitlines())
    # A blank is written as \040
    mounted = ((re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), folder), kind) for _, folder, kind, *_ in lines)
    # Of several mounts on one folder the last one is visible; a dict keeps the last
    kinds = {Path(folder): kind for folder, kind in mounted if path.resolve().is_relative_to(folder)}
    return kinds[max(kinds, key=lambda folder: len(folder.parts))] if kinds else ""


def size(num_bytes: float) -> str:
    """A size in GB with one significant digit, so that nodes with similar sizes have equal findings."""
    return f"{float(f'{num_bytes / 1e9:.1g}'):g} GB"
