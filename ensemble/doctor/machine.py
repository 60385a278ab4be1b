"""What one machine or node can tell of itself: software, GPUs, cores, limits, folders. Each check returns its findings.

Nothing here imports a library: the doctor must run where one is missing. What is not known (no /proc, no Slurm) is left out.
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
"""Loader workers hand each tensor over as an open file: 1024, the usual default, was too few for some (pytorch#165532)."""
MIN_SHARED_MEMORY_GB = 1
"""Workers put their batches there. Docker gives 64 MB (docs.docker.com, --shm-size); PyTorch's README asks for more."""
BF16_CAPABILITY = 8.0
"""Tensor cores know bf16 from compute capability 8.0 on (CUDA C++ Programming Guide, arithmetic instructions)."""
NETWORK_FILE_SYSTEMS = (
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gpfs", "lustre", "nfs",
    "nfs4", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
)  # fmt: skip


# ------------------------------------------------------------------------------------------------ software


def python() -> Iterator[Finding]:
    yield ok("python", f"{platform.python_version()} ({sys.executable})", same_everywhere=True)


def libraries(pyproject: Path = ROOT / "pyproject.toml") -> Iterator[Finding]:
    """Installed versions against the smallest that the project asks for."""
    found, wanting = {}, []
    for requirement in tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"]:
        parts = re.fullmatch(r"([\w.-]+) *>= *([\w.]+)", requirement)
        assert parts, requirement
        name, minimum = parts.groups()
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            wanting.append((requirement, f"{name} is missing"))
            continue
        if release(found[name]) < release(minimum):
            wanting.append((requirement, f"{name} {found[name]} is older than {minimum}"))
    if wanting:
        command = " ".join(f"'{requirement}'" for requirement, _ in wanting)
        yield problem("libraries", "; ".join(fault for _, fault in wanting), f"{sys.executable} -m pip install {command}")
    else:
        yield ok("libraries", f"{len(found)} are as new as pyproject.toml asks")
    for name in ("torch", "accelerate"):
        if name in found:
            yield ok(name, found[name], same_everywhere=True)


def release(version: str) -> tuple[int, ...]:
    """The numbers that versions are ordered by: those of 2.13.0+cpu are 2, 13; zeros at the end do not count."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    assert numbers, version
    return tuple(int(number) for number in re.sub(r"(\.0+)+$", "", numbers[0]).split("."))


def code(root: Path = ROOT) -> Iterator[Finding]:
    """A fingerprint of the project's Python files: two nodes that differ in it run different programs."""
    digest = hashlib.sha256()
    for file in sorted(path for folder in ("ensemble", "scripts") for path in (root / folder).rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    yield ok("project", f"{root}, code {digest.hexdigest()[:12]}", same_everywhere=True)


# ------------------------------------------------------------------------------------------------ GPUs


def nvidia_driver() -> str:
    """The version of the NVIDIA driver of this machine, empty where there is none."""
    file = Path("/proc/driver/nvidia/version")
    if not file.exists():
        return ""
    found = re.search(r"\s(\d+\.\d+[.\d]*)\s", file.read_text())
    return found[1] if found else "of unknown version"


def gpus(about: Mapping[str, Any], environment: Mapping[str, str], driver: str) -> Iterator[Finding]:
    """What PyTorch sees (`ranks.about`) against what the driver, Slurm and CUDA_VISIBLE_DEVICES say."""
    if "failed" in about:
        mend = f"{sys.executable} -m pip install --force-reinstall torch"
        if about["failed"] == TIMED_OUT:
            mend = "try python -c 'import torch; torch.cuda.init()': a driver or the file system of Python hangs"
        yield problem("PyTorch", f"cannot be loaded: {about['failed']}", mend)
        return
    seen, build, hidden_to = about["gpus"], about["cuda"], environment.get("CUDA_VISIBLE_DEVICES")
    granted = environment.get("SLURM_GPUS_ON_NODE", "")
    if seen:
        kinds = collections.Counter(f"{gpu['name']} ({gpu['memory_gb']} GB)" for gpu in seen)
        yield ok("GPUs", ", ".join(f"{number} × {kind}" for kind, number in kinds.items()))
        versions = f"CUDA {build}, cuDNN {about['cudnn']}, NCCL {about['nccl'] or 'none'}, driver {driver or 'unknown'}"
        yield ok("CUDA", versions, same_everywhere=True)
        if any(float(gpu["capability"]) < BF16_CAPABILITY for gpu in seen):
            least = min(float(gpu["capability"]) for gpu in seen)
            mend = "write mixed_precision: fp16 into the GPU files of accelerate_configs/"
            yield problem("bf16", f"needs compute capability {BF16_CAPABILITY}, the GPU has {least}", mend)
    elif driver and not build:
        mend = "install the build for CUDA that https://pytorch.org/get-started names for this driver"
        yield problem("GPUs", f"none for PyTorch, which is built for CPUs; the NVIDIA driver {driver} is here", mend)
    elif driver and hidden_to in ("", "-1", "NoDevFiles"):
        yield note("GPUs", f"CUDA_VISIBLE_DEVICES={hidden_to} hides them", "unset CUDA_VISIBLE_DEVICES to use them")
    elif driver and "SLURM_JOB_ID" in environment and granted in ("", "0"):
        yield note("GPUs", "this job was granted none", "ask for them: sbatch --gpus-per-node=2")
    elif driver:
        mend = "see nvidia-smi: have a driver that is too old updated; after its update the machine must start again"
        found = f"none for PyTorch (CUDA {build}), driver {driver}: {about['error'] or 'no reason given'}"
        yield problem("GPUs", found, mend)
    else:
        yield ok("GPUs", "none here, and no NVIDIA driver" if build else "none, and PyTorch is built for CPUs")
    # A task that asked for its own GPUs is shown those only
    if granted.isdigit() and int(granted) > len(seen) and "SLURM_GPUS_PER_TASK" not in environment:
        mend = "start one task a node with srun --ntasks-per-node=1, and let no script set CUDA_VISIBLE_DEVICES"
        yield problem("GPUs granted", f"Slurm granted {granted} on this node, PyTorch sees {len(seen)}", mend)


# ------------------------------------------------------------------------------------------------ cores and limits


def check_cores(environment: Mapping[str, str], limits: Mapping[str, int], num_seen: int) -> Iterator[Finding]:
    """Cores granted (`cores.limits`) against cores seen, and the threads that will share them."""
    granted = min(limits.values())
    by = ", ".join(f"{name} {number}" for name, number in limits.items())
    yield ok("cores", f"{granted} granted of {num_seen} seen ({by})")
    if min(limits.get("SLURM_CPUS_PER_TASK", 0), num_seen) > limits["affinity"]:
        # Slurm's release notes, 22.05
        mend = "give srun --cpus-per-task=$SLURM_CPUS_PER_TASK too: since Slurm 22.05 it does not take sbatch's"
        found = f"Slurm says {limits['SLURM_CPUS_PER_TASK']} a task, the process may use {limits['affinity']}"
        yield problem("cores of srun", found, mend)
    threads = environment.get("OMP_NUM_THREADS", "")
    if not threads.isdigit() or threads == "0":
        if granted < num_seen:
            mend = f"export OMP_NUM_THREADS={granted} ÷ ranks of a node: accelerate launch counts all cores of the machine"
            yield note("threads", "OMP_NUM_THREADS is not set", mend)
        else:
            yield ok("threads", "OMP_NUM_THREADS is not set: each process has as many as cores")
    elif int(threads) > granted:
        mend = f"export OMP_NUM_THREADS={granted} or less: threads that wait for a core make a run ten times slower"
        yield problem("threads", f"OMP_NUM_THREADS={threads}, but {granted} granted", mend)
    elif threads == "1" and granted > 1:
        mend = "unset OMP_NUM_THREADS before train_trees.py: XGBoost takes it for its limit, whatever threads= says"
        yield note("threads", f"OMP_NUM_THREADS=1 of {granted} cores", mend)
    else:
        yield ok("threads", f"OMP_NUM_THREADS={threads}")
    # Measured with torch 2.13: `import torch` binds the process to one core, and its workers after it (pytorch#49971)
    pinned = [name for name in ("GOMP_CPU_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND") if environment.get(name)]
    if pinned and environment.get("OMP_PROC_BIND", "true").lower() != "false":
        mend = f"unset {' '.join(pinned)}: the main threads of a node's ranks and their loader workers would share one core"
        yield note("pinned threads", ", ".join(f"{name}={environment[name]}" for name in pinned), mend)


def open_files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft if soft != resource.RLIM_INFINITY else 'unlimited'} at once (ulimit -n)"
    mend = f"ulimit -n {ENOUGH_OPEN_FILES} before the launch: every loader worker and every rank opens many"
    if 0 <= hard < ENOUGH_OPEN_FILES:
        mend = f"have the hard limit of {hard} raised to {ENOUGH_OPEN_FILES} (limits.conf, or LimitNOFILE of slurmd)"
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_OPEN_FILES:
        yield ok("open files", found)
    else:
        yield (note if soft >= MIN_OPEN_FILES else problem)("open files", found, mend)


def locked_memory(devices: Path = Path("/dev/infiniband")) -> Iterator[Finding]:
    """RDMA pins its buffers (Red Hat, Configuring InfiniBand and RDMA networks, chapter 5); only where there is RDMA."""
    if devices.exists():
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        mend = "have memlock set to unlimited (limits.conf, and LimitMEMLOCK=infinity of slurmd): NCCL pins its buffers"
        if soft != resource.RLIM_INFINITY:
            yield problem("locked memory", f"{soft} bytes (ulimit -l); InfiniBand is here", mend)


def shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[Finding]:
    if folder.exists():
        usage = shutil.disk_usage(folder)
        found = f"{folder} of {size(usage.total)}, {size(usage.free)} free"
        mend = "docker run --ipc=host or --shm-size=8g; elsewhere, remove old files from it; or train with num_workers=0"
        enough = usage.free >= MIN_SHARED_MEMORY_GB * 1e9
        yield ok("shared memory", found) if enough else problem("shared memory", found, mend)


# ------------------------------------------------------------------------------------------------ folders


def scratch(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """The folder for data of one node: there, writable, roomy, and on a disk of the node's own."""
    names = ("SCRATCH_FOLDER", "SLURM_TMPDIR", "SCRATCH", "TMPDIR")
    origin = next((name for name in names if environment.get(name)), "")
    folder = Path(environment[origin] if origin else tempfile.gettempdir())
    found = f"{origin}={folder}" if origin else str(folder)
    mend = "name another folder as SCRATCH_FOLDER in slurm/site.sh, or make room in it"
    try:
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(2**21))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        yield problem("scratch", f"{found} cannot be written: {error.strerror}", mend)
        return
    free = shutil.disk_usage(folder).free
    kind = file_system(folder)
    found = f"{found}, {size(free)} free" + (f", {kind}" if kind else "")
    if kind in NETWORK_FILE_SYSTEMS:
        yield note("scratch", found, "a network file system: copying data there gains nothing over reading it where it lies")
    else:
        yield ok("scratch", found)


def file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The kind of file system that a path is on, empty where nobody says."""
    if not mounts.exists():
        return ""
    lines = (line.split() for line in mounts.read_text(encoding="utf-8").splitlines())
    # The last of several mounts on a folder is on top
    kinds = {Path(folder): kind for _, folder, kind, *_ in lines if path.resolve().is_relative_to(folder)}
    return kinds[max(kinds, key=lambda folder: len(folder.parts))] if kinds else ""


def size(num_bytes: float) -> str:
    """With one digit that counts, so that nodes with much the same say the same."""
    return f"{float(f'{num_bytes / 1e9:.1g}'):g} GB"
