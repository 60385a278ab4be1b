"""A real Slurm of two hosts on one machine, for tests: own controller, own munge, two slurmd in namespaces of their own.

    python tests/slurm/cluster.py FOLDER     # starts it, prints how to reach it, ends it at Ctrl-C

Each host has a network (a veth pair into a bridge), a host name and an /etc/hosts of its own; the file system is shared, as
on a cluster. Needs root and Debian's packages slurmctld, slurmd, slurm-client, munge, iproute2; `missing()` says which is
not there. Outside FOLDER only the namespaces and the bridge are added, which are removed at the end.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

NODES = ("node1", "node2")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "nsenter", "unshare")
CORES_PER_NODE = 8
"""May be more than the machine has, since the tests ask for cores for each rank."""
CREDENTIAL_S = 10
"""Life of a credential, which is also how long a requeued job waits: 120 s by default."""
NODE_TIMEOUT_S = 20
"""After so long without an answer a node is down, and its jobs are requeued: 300 s by default."""


def missing() -> str:
    """What this machine lacks for a cluster, "" for nothing."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # after `su` without a login shell, root lacks them
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    if lacking:
        return f"{', '.join(lacking)} not installed (apt install slurmctld slurmd slurm-client munge iproute2)"
    if os.geteuid() != 0:
        return "only root can make hosts out of namespaces"
    trial = "ip link add name trial0 type veth peer name trial1 && mount --bind /etc/hosts /etc/hosts && hostname trial"
    hosts = ["unshare", "--net", "--mount", "--uts", "sh", "-c", trial]
    done = subprocess.run(hosts, capture_output=True, text=True, timeout=60, check=False)
    return f"hosts cannot be made out of namespaces here ({done.stderr.strip()})" if done.returncode else ""


def run(*command: str | Path, check: bool = True, timeout_s: float = 60, **options: object) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=timeout_s, check=False, **options
    )  # type: ignore[call-overload]
    assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout).strip()


class Cluster:
    """A running cluster; with the variables in `environment`, sbatch and the other commands of Slurm find it."""

    def __init__(self, folder: Path):
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.unique = f"{random.randrange(16**4):04x}"
        self.subnet = f"10.77.{random.randrange(1, 255)}"
        self.bridge = f"ens{self.unique}"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self) -> "Cluster":
        try:
            self._make_hosts()
            self._write_configuration()
            self._start("munged", "munged", "--foreground", "--force", "--num-threads=2", *self._munge_files())
            self._wait_for(lambda: (self.folder / "munge.socket").exists(), "munged")
            self._start("slurmctld", "slurmctld", "-D", "-f", self.environment["SLURM_CONF"])
            for node in NODES:
                self.start_node(node)
            self._wait_for(lambda: self.states() == ["idle", "idle"], "the nodes")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.slurm("scancel", "--user=root", "--full", check=False, timeout_s=10)
            self._wait_for(lambda: not self.slurm("squeue", "-h", check=False, timeout_s=10), "jobs to end", 15)
        for name in reversed(list(self.daemons)):
            self._end(name)
        for index in range(len(NODES)):
            for process in self.processes(NODES[index]):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            run("ip", "netns", "del", self._namespace(index), check=False)
        run("ip", "link", "del", self.bridge, check=False)

    # For tests

    def slurm(self, *command: str | Path, check: bool = True, timeout_s: float = 60) -> str:
        """A command of Slurm's, from the login node (this machine)."""
        return run(*command, check=check, timeout_s=timeout_s, env={**os.environ, **self.environment})

    def address(self, node: str) -> str:
        return f"{self.subnet}.{11 + NODES.index(node)}"

    def states(self) -> list[str]:
        return self.slurm("sinfo", "-h", "-N", "-p", "gpu", "-o", "%t", check=False).split()

    def cut(self, node: str) -> None:
        """Take the network from a node."""
        run("ip", "link", "set", self._link(NODES.index(node)), "down")

    def mend(self, node: str) -> None:
        run("ip", "link", "set", self._link(NODES.index(node)), "up")

    def start_node(self, node: str) -> None:
        """A slurmd with a network, a host name and an /etc/hosts of its own."""
        # Not `ip netns exec`, which mounts /sys anew, without the cgroups that slurmd looks for
        hosts = f"mount --bind {self.folder}/hosts-{node} /etc/hosts"
        inside = f"hostname {node} && {hosts} && exec slurmd -D -f $SLURM_CONF -N {node}"
        namespace = f"/run/netns/{self._namespace(NODES.index(node))}"
        self._start(node, "nsenter", f"--net={namespace}", "unshare", "--mount", "--uts", "sh", "-c", inside)

    def processes(self, node: str) -> list[psutil.Process]:
        pids = run("ip", "netns", "pids", self._namespace(NODES.index(node)), check=False).split()
        running = []
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                running.append(psutil.Process(int(pid)))
        return running

    def kill_node(self, node: str) -> None:
        """SIGKILL for slurmd and all that runs on a node, as if its power were cut."""
        for process in self.processes(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.daemons.pop(node).wait()

    def kill_slurmd(self, node: str) -> None:
        """SIGKILL for a node's slurmd alone; what it started runs on."""
        self.daemons[node].kill()
        self.daemons.pop(node).wait()

    # Start and end

    def _namespace(self, index: int) -> str:
        return f"{self.bridge}-{NODES[index]}"

    def _link(self, index: int) -> str:
        return f"{self.bridge}v{index}"

    def _make_hosts(self) -> None:
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "address", "add", f"{self.subnet}.1/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        for index in range(len(NODES)):
            namespace, link = self._namespace(index), self._link(index)
            run("ip", "netns", "add", namespace)
            run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            run("ip", "link", "set", link, "master", self.bridge, "up")
            inside = ("ip", "-netns", namespace)
            run(*inside, "address", "add", f"{self.subnet}.{11 + index}/24", "dev", "eth0")
            run(*inside, "link", "set", "eth0", "up")
            run(*inside, "link", "set", "lo", "up")

    def _write_configuration(self) -> None:
        controller = socket.gethostname().split(".")[0]
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        for node in NODES:
            # As on Debian, a host's own name is a loopback address: Gloo breaks on it unless an interface is named
            others = "".join(f"{self.address(other)} {other}\n" for other in NODES if other != node)
            hosts = f"127.0.0.1 localhost\n127.0.1.1 {node}\n{self.subnet}.1 {controller}\n{others}"
            (self.folder / f"hosts-{node}").write_text(hosts)
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o400)
        for device in ("gpu0", "gpu1"):
            (self.folder / device).touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-1]\n")
        nodes = "".join(
            f"NodeName={node} NodeHostname={node} NodeAddr={self.address(node)} CPUs={CORES_PER_NODE} RealMemory=16000 "
            "Gres=gpu:2 State=UNKNOWN\n"
            for node in NODES
        )
        (self.folder / "slurm.conf").write_text(
            f"""ClusterName=test
SlurmctldHost={controller}({self.subnet}.1)
SlurmctldPort={port}
SlurmdPort=17818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={self.folder}/munge.socket,cred_expire={CREDENTIAL_S}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=30
MinJobAge=3600
SlurmdTimeout={NODE_TIMEOUT_S}
SchedulerParameters=batch_sched_delay=0,sched_interval=3,bf_interval=3
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
GresTypes=gpu
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool-%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd-%n.pid
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd-%n.log
{nodes}PartitionName=gpu Nodes={",".join(NODES)} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=cpu Nodes={",".join(NODES)} MaxTime=INFINITE State=UP OverSubscribe=NO
"""
        )

    def _munge_files(self) -> list[str]:
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        return [f"--{option}={self.folder}/munge.{suffix}" for option, suffix in files.items()]

    def _start(self, name: str, *command: str) -> None:
        with open(self.folder / f"{name}.out", "ab") as out:
            self.daemons[name] = subprocess.Popen(
                command,
                env={**os.environ, **self.environment},
                cwd=self.folder,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _end(self, name: str) -> None:
        daemon = self.daemons.pop(name)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(5)
                return

    def _wait_for(self, holds: object, what: str, timeout_s: float = 30) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():  # type: ignore[operator]
            ended = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
            assert not ended, f"{ended} ended: see {self.folder}\n{(self.folder / f'{ended[0]}.out').read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"{what}: not there after {timeout_s} s: see {self.folder}"
            time.sleep(0.2)


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Cluster]:
    with Cluster(folder) as cluster:
        yield cluster


if __name__ == "__main__":
    with Cluster(Path(sys.argv[1])) as cluster:
        print(" ".join(f"{name}={value}" for name, value in cluster.environment.items()), cluster.states(), flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
