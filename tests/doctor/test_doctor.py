"""scripts/doctor.py finds real defects, which are made here; several nodes are processes, and hosts of their own where root
can make them from network namespaces. What needs a GPU is tested by its pure part."""

import contextlib
import dataclasses
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ensemble.doctor import examine, findings, machine, meeting, network, ranks
from ensemble.doctor.findings import Finding, ok, problem
from ensemble.doctor.network import Interface, Node
from ensemble.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
DOCTOR = [sys.executable, str(ROOT / "scripts/doctor.py")]
TIMEOUT_S = 180


def clean_environment(**changes: str) -> dict[str, str]:
    kept = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    return {**environment, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **changes}


@contextlib.contextmanager
def started(command: list[str], folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, cwd=folder, env=clean_environment(**environment), text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(command: list[str], folder: Path, **environment: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    with started(command, folder, **environment) as process:
        page, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, page, errors


def line_of(page: str, level: str, check: str) -> str:
    """The line of a page with the lines that go on with it."""
    lines = page.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith(f"{level:<8} {check:<14} ")), None)
    assert start is not None, f"no {level} on {check}:\n{page}"
    end = next(number for number in range(start + 1, len(lines)) if not lines[number].startswith(" " * 20))
    return " ".join(" ".join(lines[start:end]).split())


def found(told: Iterator[Finding], level: str) -> Finding:
    """The only finding of that level."""
    (finding,) = [finding for finding in told if finding.level == level]
    return finding


# ------------------------------------------------------------------------------------------------ one machine


def test_a_broken_machine_is_told_what_to_mend(tmp_path: Path) -> None:
    """The checks would work one by one, and not be asked by the script; or its exit code say that all is well."""
    core = min(os.sched_getaffinity(0))
    code, page, errors = run(
        ["bash", "-c", f'ulimit -n 256 && exec taskset -c {core} "$@"', "bash", *DOCTOR], tmp_path,
        OMP_NUM_THREADS="2", OMP_PROC_BIND="true", SLURM_CPUS_PER_TASK="8", GLOO_SOCKET_IFNAME="nosuch0",
        NCCL_SOCKET_IFNAME="=nosuch1", SCRATCH_FOLDER=str(tmp_path / "nowhere"), MASTER_PORT="99999",
    )  # fmt: skip
    assert (code, errors) == (1, "")
    expected = {
        "open files": "256 at once",
        "threads": "OMP_NUM_THREADS=2, but 1 granted",
        "cores of srun": "Slurm says 8 a task, the process may use 1",
        "interfaces": "GLOO_SOCKET_IFNAME=nosuch0: nosuch0 does not exist here",
        "scratch": "nowhere cannot be written: No such file or directory",
        "port": "MASTER_PORT=99999 cannot be used",
    }
    for check, value in expected.items():
        line = line_of(page, "problem", check)
        assert value in line
        assert "→" in line, "a problem without its mend"
    assert "NCCL_SOCKET_IFNAME==nosuch1: no interface here matches it" in page
    assert "OMP_PROC_BIND=true" in line_of(page, "note", "pinned threads")
    assert "1 granted of" in line_of(page, "ok", "cores")
    # Measured all the same, with what the mends say
    assert "GB/s by the bus: 2 CPU ranks by Gloo, 25 MiB in" in line_of(page, "ok", "all-reduce")
    assert page.count("\nproblem ") == 7
    assert page.splitlines()[-1].startswith("7 problems, ")
    assert list(tmp_path.iterdir()) == [], "something was left behind"


def test_a_library_that_cannot_be_loaded_does_not_stop_the_doctor(tmp_path: Path) -> None:
    """A broken PyTorch, the most usual trouble of all, would be a traceback and no page; an old package go unseen."""
    package = tmp_path / "path/torch/__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    old = tmp_path / "path/psutil-0.1.dist-info/METADATA"
    old.parent.mkdir()
    old.write_text("Metadata-Version: 2.1\nName: psutil\nVersion: 0.1\n")
    code, page, _ = run(DOCTOR, tmp_path, PYTHONPATH=f"{tmp_path / 'path'}{os.pathsep}{ROOT}")
    assert code == 1
    assert "cannot be loaded: ImportError: libcudart.so.12" in line_of(page, "problem", "PyTorch")
    assert "psutil 0.1 is older than" in line_of(page, "problem", "libraries")
    assert "pip install 'psutil>=" in line_of(page, "problem", "libraries")
    assert "not tried" in line_of(page, "note", "all-reduce")


def test_the_doctor_runs_without_any_library(tmp_path: Path) -> None:
    """On a bare Python, where help is needed most, it could not even begin."""
    bare = tmp_path / "path/sitecustomize.py"
    bare.parent.mkdir()
    bare.write_text(
        "import sys\n"
        "for name in ('accelerate', 'numpy', 'omegaconf', 'packaging', 'psutil', 'torch', 'yaml'):\n"
        "    sys.modules[name] = None\n"
    )
    code, page, errors = run(DOCTOR, tmp_path, PYTHONPATH=f"{bare.parent}{os.pathsep}{ROOT}")
    assert (code, errors) == (1, "")
    assert "cannot be loaded: ModuleNotFoundError: import of torch halted" in line_of(page, "problem", "PyTorch")
    assert page.splitlines()[-1].startswith("1 problem, ")


def test_missing_and_old_libraries_are_named_with_the_command(tmp_path: Path) -> None:
    """A user would learn from an ImportError in the middle of a run."""
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text('[project]\ndependencies = ["torch>=99.1", "no-such-library>=1", "numpy>=1"]\n')
    finding = found(machine.libraries(pyproject), "problem")
    assert "is older than 99.1; no-such-library is missing" in finding.found
    assert finding.mend.endswith("-m pip install 'torch>=99.1' 'no-such-library>=1'")
    assert [one.level for one in machine.libraries()] == ["ok", "ok", "ok"]


@pytest.mark.parametrize(
    ("older", "newer"), [("2.9", "2.10"), ("2.13", "2.13.1"), ("3", "4.0.0"), ("1.0", "1.0.0.1"), ("2.9.9+cpu", "2.13.0rc1")]
)
def test_versions_are_ordered_by_their_numbers(older: str, newer: str) -> None:
    """2.10 would be older than 2.9."""
    assert machine.release(older) < machine.release(newer)
    assert machine.release("2.0.0") == machine.release("2")


def test_a_changed_file_changes_the_fingerprint(tmp_path: Path) -> None:
    """Nodes that run different programs would look alike."""
    for folder in ("ensemble/a", "scripts"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ensemble/a/b.py").write_text("1")
    before = list(machine.code(tmp_path))
    assert before == list(machine.code(tmp_path))
    (tmp_path / "ensemble/a/b.py").write_text("2")
    assert before != list(machine.code(tmp_path))


H200 = {"name": "H200", "memory_gb": 141, "capability": "9.0"}
T4 = {"name": "T4", "memory_gb": 16, "capability": "7.5"}


@pytest.mark.parametrize(
    ("gpus", "changes", "environment", "driver", "level", "expected"),
    [
        ([H200] * 2, {}, {"SLURM_GPUS_ON_NODE": "2"}, "550.54", "ok", "2 × H200 (141 GB)"),
        ([H200], {}, {"SLURM_GPUS_ON_NODE": "4"}, "550.54", "problem", "granted 4 on this node, PyTorch sees 1"),
        ([T4], {}, {}, "550.54", "problem", "needs compute capability 8.0, the GPU has 7.5"),
        ([], {"cuda": None}, {}, "550.54", "problem", "built for CPUs"),
        ([], {"cuda": None}, {}, "", "ok", "none, and PyTorch is built for CPUs"),
        ([], {"error": "too old"}, {}, "450.1", "problem", "(CUDA 12.8), driver 450.1: too old"),
        ([], {}, {"CUDA_VISIBLE_DEVICES": ""}, "550.54", "note", "CUDA_VISIBLE_DEVICES= hides them"),
        ([], {}, {"CUDA_VISIBLE_DEVICES": "-1"}, "550.54", "note", "CUDA_VISIBLE_DEVICES=-1 hides them"),
        ([], {}, {"SLURM_JOB_ID": "7"}, "550.54", "note", "this job was granted none"),
        ([], {}, {}, "", "ok", "none here, and no NVIDIA driver"),
        ([], {"failed": "ImportError"}, {}, "", "problem", "cannot be loaded: ImportError"),
        ([], {"failed": ranks.TIMED_OUT}, {}, "550.54", "problem", "cannot be loaded: no answer"),
    ],
)
def test_why_there_is_no_gpu(
    gpus: list[Any], changes: dict[str, Any], environment: dict[str, str], driver: str, level: str, expected: str
) -> None:
    """A CPU build, an old driver and a hidden GPU have different mends, and a user would try the wrong one."""
    about = {"cuda": "12.8", "cudnn": 91002, "nccl": "2.27.3", "gpus": gpus, "error": "", **changes}
    told = list(machine.gpus(about, environment, driver))
    assert expected in next(finding for finding in told if finding.level == level).found
    assert {finding.level for finding in told} <= {"ok", level}


@pytest.mark.parametrize(
    ("environment", "limits", "level", "expected"),
    [
        ({}, {"affinity": 8}, "ok", "not set"),
        ({}, {"affinity": 4}, "note", "not set"),
        ({"OMP_NUM_THREADS": "1"}, {"affinity": 4}, "note", "OMP_NUM_THREADS=1 of 4 cores"),
        ({"OMP_NUM_THREADS": "4"}, {"affinity": 4}, "ok", "OMP_NUM_THREADS=4"),
        ({"OMP_NUM_THREADS": "5"}, {"affinity": 8, "cgroup": 4}, "problem", "OMP_NUM_THREADS=5, but 4 granted"),
    ],
)
def test_threads_against_cores(environment: dict[str, str], limits: dict[str, int], level: str, expected: str) -> None:
    """Threads that wait for cores which were never granted would make every run ten times slower."""
    told = machine.check_cores(environment, limits, 8)
    (threads,) = [finding for finding in told if finding.check == "threads"]
    assert (threads.level, expected in threads.found) == (level, True)


@contextlib.contextmanager
def soft_limit(kind: int, value: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def test_limits_of_the_process(tmp_path: Path) -> None:
    """Workers would end with «Too many open files», and NCCL without InfiniBand."""
    with soft_limit(resource.RLIMIT_NOFILE, 512):
        assert "512" in found(machine.open_files(), "problem").found
    with soft_limit(resource.RLIMIT_NOFILE, 2048):
        assert "ulimit -n 4096" in found(machine.open_files(), "note").mend
    with soft_limit(resource.RLIMIT_MEMLOCK, 65536):
        assert "65536 bytes" in found(machine.locked_memory(tmp_path), "problem").found
        assert list(machine.locked_memory(tmp_path / "none")) == [], "only where there is InfiniBand"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tiny disk needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_or_read_only_disk_is_named(tiny_disk: Path) -> None:
    """A job would stage its data for an hour and then fail; workers would end by a bus error."""
    environment = {"SCRATCH_FOLDER": str(tiny_disk)}
    assert "No space left" in found(machine.scratch(environment), "problem").found
    assert "of 0.001 GB" in found(machine.shared_memory(tiny_disk), "problem").found
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    assert "Read-only" in found(machine.scratch(environment), "problem").found


def test_a_sound_folder_is_left_as_it_was(tmp_path: Path) -> None:
    """The doctor would find fault with every folder, or leave its litter."""
    assert [finding.level for finding in machine.scratch({"TMPDIR": str(tmp_path)})] != ["problem"]
    assert list(tmp_path.iterdir()) == []


def test_a_network_file_system_is_known_by_the_deepest_mount(tmp_path: Path) -> None:
    """Staging from one network folder to another would pass for faster."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/a / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n"
        f"node {tmp_path}/scratch xfs rw 0 0\nlast / overlay rw 0 0\n"
    )
    assert machine.file_system(Path("/usr"), mounts) == "overlay"
    assert machine.file_system(tmp_path / "data", mounts) in machine.NETWORK_FILE_SYSTEMS
    assert machine.file_system(tmp_path / "scratch/x", mounts) == "xfs"
    assert machine.file_system(Path("/proc")) == "proc"


# ------------------------------------------------------------------------------------------------ the page


def test_equal_findings_come_once_and_different_versions_are_a_problem() -> None:
    """A page of 64 nodes would have 64 × 20 lines; nodes that run different code would pass."""
    same, one = ok("cores", "2"), problem("disk", "full", "make room")
    told = {f"n{i}": [ok("torch", "2.13" if i else "2.9", same_everywhere=True), same] for i in range(6)}
    told["n3"].append(one)
    merged = findings.merge(told)
    assert merged[1:] == [(same, list(told)), (one, ["n3"])]
    assert merged[0][0].level == "problem"
    assert merged[0][0].found == "differs: 2.9 on n0; 2.13 on n1, n2, n3, n4 and 1 more"
    text, num_problems = findings.page(told)
    assert num_problems == 2
    assert [line.split()[:3] for line in text.splitlines()[:1]] == [["problem", "torch", "all"]]
    assert "all 6 nodes  2\n" in text
    assert "n3           full\n" in text
    assert text.endswith("\n\n2 problems, no notes")
    assert findings.page({"n": [same]}) == (f"ok       {'cores':<14} 2\n\nno problems, no notes", 0)


def test_a_check_that_hangs_or_fails_does_not_stop_the_others() -> None:
    """One dead network folder, and nobody would learn anything."""

    def fails() -> Iterator[Finding]:
        raise RuntimeError("why")
        yield

    told = findings.run(
        {"hangs": lambda: time.sleep(TIMEOUT_S) or [], "fails": fails, "works": lambda: [ok("works", "1")]}, limit_s=0.2
    )
    assert [(finding.check, finding.level) for finding in told] == [
        ("hangs", "problem"),
        ("fails", "note"),
        ("works", "ok"),
    ]
    assert told[1].found == "could not be checked: RuntimeError: why"


# ------------------------------------------------------------------------------------------------ interfaces


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("eth", "eth1", True), ("eth", "ib0", False), ("eth,ib", "ib0", True), ("=eth0", "eth0", True),
        ("=eth", "eth0", False), ("=eth0,ib0", "ib0", True), ("^docker,lo", "docker0", False), ("^docker,lo", "lo", False),
        ("^docker", "eth0", True), ("^=docker0", "docker01", True), ("^=docker0", "docker0", False),
    ],
)  # fmt: skip
def test_nccl_patterns(pattern: str, name: str, matches: bool) -> None:
    """A sound setting would be called wrong, and a wrong one sound."""
    assert network.matches_nccl(pattern, name) is matches


KNOWN = [
    Interface(name="lo", addresses=("127.0.0.1",), up=True),
    Interface(name="eth0", addresses=("10.0.0.1",), up=True),
    Interface(name="eth1", addresses=("10.0.0.2",), up=False),
    Interface(name="ib0", addresses=(), up=True),
]


@pytest.mark.parametrize(
    ("variable", "value", "fault"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", ""),
        ("GLOO_SOCKET_IFNAME", "eth", "eth does not exist here"),
        ("GLOO_SOCKET_IFNAME", "eth0,eth1", "eth1 is down or has no address"),
        ("GLOO_SOCKET_IFNAME", "ib0", "ib0 is down or has no address"),
        ("GLOO_SOCKET_IFNAME", "", ""),
        ("NCCL_SOCKET_IFNAME", "eth", ""),
        ("NCCL_SOCKET_IFNAME", "^eth0,lo", "eth1, ib0 is down or has no address"),
        ("NCCL_SOCKET_IFNAME", "=ib0", "ib0 is down or has no address"),
        ("NCCL_SOCKET_IFNAME", "enp", "no interface here matches it"),
    ],
)
def test_variables_that_name_interfaces(variable: str, value: str, fault: str) -> None:
    """A run would hang, or stop with a line of C++."""
    assert [what for _, what in network.wrong_variables(KNOWN, {variable: value})] == ([fault] if fault else [])
    told = list(network.check_interfaces(KNOWN, {variable: value}, "eth0"))
    assert [finding.mend for finding in told[1:]] == ([f"write {variable}=eth0 into slurm/site.sh"] if fault else [])
    assert told[0].found == "eth0 10.0.0.1"


# ------------------------------------------------------------------------------------------------ several nodes


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, "")),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "5", "SLURM_PROCID": "0"}, (1, 2, "a")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1, "")),  # the batch script itself
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n7"}, (1, 2, "n7")),
    ],
)
def test_where_a_process_is(environment: dict[str, str], expected: tuple[int, int, str]) -> None:
    """Under srun, every node would think that it is alone; in a batch script, the doctor wait for nobody."""
    place = meeting.place(environment)
    assert (place.rank, place.num_nodes, place.head) == expected


def test_two_job_steps_meet_on_different_ports() -> None:
    """Two jobs on one node would collide; two nodes of one never find each other."""
    slurm = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n", "SLURM_JOB_ID": "7"}
    one, other = (meeting.place({**slurm, "SLURM_STEP_ID": step, "SLURM_PROCID": rank}) for step, rank in ("00", "01"))
    next_step = meeting.place({**slurm, "SLURM_STEP_ID": "1"})
    assert one.port == other.port != next_step.port
    assert 20000 <= one.port < 30000


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK=one is impossible"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "it must be less than WORLD_SIZE=2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "nothing says where to meet: export MASTER_ADDR"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "65536"}, "MASTER_PORT=65536 is impossible"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "without one, and on several nodes by srun"),
    ],
)
def test_a_wrong_place_is_one_sentence(environment: dict[str, str], sentence: str) -> None:
    """A traceback, or a wait for nothing."""
    with pytest.raises(UserError, match=sentence):
        meeting.place(environment)


def rank_environment(rank: int, port: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def test_two_ranks_meet_in_spite_of_a_stranger(tmp_path: Path) -> None:
    """A scan of ports would take the place of a node; a second page be printed; the exit codes differ."""
    port = network.free_port()
    with started(DOCTOR, tmp_path, **rank_environment(0, port)) as head:
        deadline = time.monotonic() + TIMEOUT_S
        while not network.connects("127.0.0.1", port):  # connects, says nothing and leaves
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with started(DOCTOR, tmp_path, **rank_environment(1, port), OMP_PROC_BIND="true") as other:
                page, errors = head.communicate(timeout=TIMEOUT_S)
                silence = other.communicate(timeout=TIMEOUT_S)
    assert (errors, silence) == ("", ("", ""))
    assert head.returncode == other.returncode == (0 if "\nno problems" in page else 1)
    assert "all 2 nodes" in line_of(page, "ok", "torch")
    assert "all 2 nodes" in line_of(page, "ok", "all-reduce")
    assert "(rank 1) OMP_PROC_BIND=true" in line_of(page, "note", "pinned threads")


def test_a_node_that_never_comes_is_named(tmp_path: Path) -> None:
    """The doctor would hang as the run that it was asked about."""
    (tmp_path / "torch.py").write_text("raise ImportError")  # which is not what this is about, and takes its time
    environment = {**rank_environment(0, network.free_port()), "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    code, page, errors = run([*DOCTOR, "wait_s=1"], tmp_path, **environment)
    assert code == 1
    sentence = "did not come within 1 s: rank 1"
    assert errors == f"problem: {sentence}\n", "not told at once"
    assert sentence in line_of(page, "problem", "nodes")
    assert "all-reduce" in page, "the others that came are checked all the same"


@pytest.mark.parametrize(
    ("head", "sentence", "mend"),
    [
        ("192.0.2.1", "the head node, 192.0.2.1 (192.0.2.1), port {port}, does not answer", "see that the head node runs"),
        ("127.0.0.1", "does not answer: Connection refused", "have 127.0.0.1 lead to the head node"),
        ("nowhere.invalid", "the head node, nowhere.invalid (an unknown name)", "export MASTER_ADDR as its address"),
    ],
)
def test_a_head_node_that_does_not_answer_is_named(
    head: str, sentence: str, mend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that leads nowhere, or to the node itself, would be taken for a head node that is late."""
    monkeypatch.setattr(meeting, "HANDSHAKE_S", 0.1)
    port = network.free_port()
    here = meeting.Place(rank=1, num_nodes=2, name="n1", head=head, port=port)
    (finding,) = meeting.meet(here, 0.4).findings
    assert sentence.format(port=port) in finding.found
    assert mend in finding.mend


def test_a_node_that_is_lost_later_is_named(tmp_path: Path) -> None:
    """The head node would wait for it, or take its silence for health."""
    port = network.free_port()
    places = [
        meeting.Place(rank=rank, num_nodes=3, name=f"n{rank}", head="127.0.0.1", port=port, names=("n0", "n1", "n2"))
        for rank in range(3)
    ]
    meetings: dict[int, meeting.Meeting] = {}
    guests = [
        threading.Thread(target=lambda place=place: meetings.update({place.rank: meeting.meet(place, 30)}))
        for place in places[1:]
    ]
    for guest in guests:
        guest.start()
    head = meeting.meet(places[0], 30)
    for guest in guests:
        guest.join()
    assert head.findings == []
    every = [head, *meetings.values()]
    meetings[1].streams[0].connection.shutdown(socket.SHUT_RDWR)
    answers: dict[int, Any] = {}
    guest = threading.Thread(target=lambda: answers.update(meetings[2].exchange("from 2", 30)))
    guest.start()
    assert head.exchange("from 0", 30) == {0: "from 0", 2: "from 2"}
    guest.join()
    assert answers == {0: "from 0", 2: "from 2"}
    assert [finding.found for finding in head.findings] == ["n1 was lost on the way"]
    # And the others go on alone when the head node is lost
    head.streams[2].connection.shutdown(socket.SHUT_RDWR)
    assert meetings[2].exchange("alone", 30) == {2: "alone"}
    assert "the head node, 127.0.0.1, was lost" in meetings[2].findings[0].found
    for one in every:
        one.close()


def test_an_all_reduce_without_its_peer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective that hangs would hold the doctor, or outlive it."""
    monkeypatch.setattr(ranks, "ALL_REDUCE_LIMIT_S", 2)
    answer, failure = ranks.ask_all_reduce("gloo", [(0, 0)], 2, "127.0.0.1", network.free_port(), clean_environment())
    assert (answer, failure) == (None, "no answer within the time limit")
    assert not [child for child in psutil.Process().children() if "all-reduce" in child.cmdline()]


def test_a_doctor_that_is_sent_away_leaves_nothing(tmp_path: Path) -> None:
    """Processes of a cancelled check would go on in the node, or hold the job's end for a minute."""
    with started(DOCTOR, tmp_path) as process:
        family: list[psutil.Process] = []
        deadline = time.monotonic() + TIMEOUT_S
        while sum("all-reduce" in child.cmdline() for child in family) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            family = psutil.Process(process.pid).children()
        for child in family:
            child.suspend()  # as a rank that hangs in a collective
        process.terminate()
        assert process.wait(ranks.ALL_REDUCE_LIMIT_S / 2) == 143
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


def test_which_ranks_the_all_reduce_has() -> None:
    """GPUs would be left out, or be taken by two ranks."""

    def reports(*nodes: tuple[str, int]) -> dict[int, Any]:
        return {rank: {"node": {"machine": where}, "num_gpus": num_gpus} for rank, (where, num_gpus) in enumerate(nodes)}

    assert examine.plan(reports(("a", 0))) == ("gloo", [(0, 0), (0, 0)])
    assert examine.plan(reports(("a", 1))) == ("gloo", [(0, 0), (0, 0)])
    assert examine.plan(reports(("a", 2))) == ("nccl", [(0, 0), (0, 1)])
    assert examine.plan(reports(("a", 2), ("b", 1))) == ("nccl", [(0, 0), (0, 1), (1, 0)])
    assert examine.plan(reports(("a", 2), ("b", 0))) == ("gloo", [(0, 0), (1, 0)])
    assert examine.plan(reports(("a", 2), ("a", 2))) == ("gloo", [(0, 0), (1, 0)])


def test_names_and_ports_of_peers() -> None:
    """A run would fail on the first name that leads nowhere, or hang on the first port that is closed."""
    own = Node(name="own", machine="a", address="127.0.0.1", port=1)
    peer = Node(name="nowhere.invalid", machine="b", address="127.0.0.1", port=network.free_port())
    told = list(network.check_peers(own, [own, peer]))
    assert [(finding.level, finding.check) for finding in told] == [("problem", "names"), ("problem", "ports")]
    with network.listen(0) as stream:
        peer = Node(name="localhost", machine="b", address="127.0.0.1", port=network.port_of(stream))
        told = list(network.check_peers(own, [own, peer]))
    assert [(finding.level, finding.check) for finding in told] == [("problem", "names"), ("ok", "ports")]
    assert "leads to" in told[0].found
    assert list(network.check_peers(own, [own, dataclasses.replace(own, name="second task")])) == []


def test_a_second_task_on_the_head_node_is_not_looked_for() -> None:
    """It has met the head node by 127.0.0.1, which from elsewhere is a closed port."""
    own = Node(name="own", machine="a", address="127.0.0.1", port=1)
    with network.listen(0) as stream:
        head = Node(name="localhost", machine="b", address="127.0.0.1", port=network.port_of(stream))
        second = dataclasses.replace(head, port=network.free_port())
        told = list(network.check_peers(own, [head, second, own]))
    assert [(finding.level, finding.check) for finding in told] == [("problem", "names"), ("ok", "ports")]


# ------------------------------------------------------------------------------------------------ two hosts

ADDRESS = "192.168.78.{}"
"""Above 127: of two ranks, Gloo has the one with the higher address connect to the other."""


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[list[list[str]]]:
    """Two network namespaces and a cable: for each, the words before a command. hosts0 and hosts1 are their /etc/hosts."""
    names = [f"doctor{rank}-{os.getpid()}" for rank in range(2)]
    cable = [f"doctor{rank}" for rank in range(2)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    if os.geteuid() or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("two hosts from network namespaces need root, ip and unshare")
    try:
        try:
            for name in names:
                ip("netns", "add", name)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
        ip("link", "add", cable[0], "netns", names[0], "type", "veth", "peer", "name", cable[1], "netns", names[1])
        commands = []
        for rank, name in enumerate(names):
            ip("-n", name, "addr", "add", f"{ADDRESS.format(10 + rank)}/24", "dev", cable[rank])
            ip("-n", name, "link", "set", cable[rank], "up")
            ip("-n", name, "link", "set", "lo", "up")
            hosts = tmp_path / f"hosts{rank}"
            hosts.write_text("".join(f"{ADDRESS.format(10 + other)} doctor{other}\n" for other in range(2)))
            script = f'hostname doctor{rank} && mount --bind {hosts} /etc/hosts && exec "$@"'
            commands.append(["ip", "netns", "exec", name, "unshare", "--uts", "--mount", "sh", "-c", script, "sh"])
        yield commands
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def diagnose(two_hosts: list[list[str]], folder: Path, **environment: str) -> tuple[int, str]:
    """The exit code, which must be the same on both, and the page."""
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "doctor0", "MASTER_PORT": "29617", **environment}
    with (
        started([*two_hosts[1], *DOCTOR], folder, **common, RANK="1") as other,
        started([*two_hosts[0], *DOCTOR], folder, **common, RANK="0") as head,
    ):
        page, errors = head.communicate(timeout=TIMEOUT_S)
        assert (errors, other.communicate(timeout=TIMEOUT_S)) == ("", ("", ""))
    assert head.returncode == other.returncode
    return head.returncode, page


def test_two_sound_hosts(two_hosts: list[list[str]], tmp_path: Path) -> None:
    """Nodes that work would be called broken."""
    _, page = diagnose(two_hosts, tmp_path)
    assert page.startswith("doctor0, doctor1, from ")
    for check in ("own name", "names", "ports", "all-reduce"):
        assert "all 2 nodes" in line_of(page, "ok", check)
        assert f"problem  {check}" not in page
    assert f"doctor0 doctor0 {ADDRESS.format(10)}" in line_of(page, "ok", "interfaces")


def test_a_host_that_takes_its_own_name_for_127_0_0_1(two_hosts: list[list[str]], tmp_path: Path) -> None:
    """Gloo would try to reach itself for half a minute and fail; here it is known before, and measured with the mend."""
    (tmp_path / "hosts0").write_text(f"127.0.0.1 localhost doctor0\n{ADDRESS.format(11)} doctor1\n")
    (tmp_path / "hosts1").write_text(f"127.0.0.1 localhost doctor0\n{ADDRESS.format(11)} doctor1\n")
    code, page = diagnose(two_hosts, tmp_path, MASTER_ADDR=ADDRESS.format(10))
    assert code == 1
    line = line_of(page, "problem", "own name")
    assert "doctor0 the host's own name is 127.0.0.1 to itself" in line
    assert line.endswith("→ write GLOO_SOCKET_IFNAME=doctor0 into slurm/site.sh")
    names = line_of(page, "problem", "names")
    assert "doctor1 doctor0 leads to 127.0.0.1 here, and not to that node" in names
    assert "measured with GLOO_SOCKET_IFNAME=doctor0" in line_of(page, "note", "all-reduce")
    assert "GB/s" in line_of(page, "ok", "all-reduce")
