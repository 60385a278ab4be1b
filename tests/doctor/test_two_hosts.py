"""scripts/doctor.py between two hosts, which root can make of network namespaces."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from doctor_process import DOCTOR, line_of
from launcher import TIMEOUT_S, started

ADDRESS = "192.168.78.{}"
"""Higher than 127.0.0.1: in Gloo, the rank with the higher address connects to the other."""


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
    """The exit code, which must be equal on both hosts, and the page."""
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
    """Gloo would try to reach itself for half a minute and fail. Here the error is found first, and the fix is tested."""
    (tmp_path / "hosts0").write_text(f"127.0.0.1 localhost doctor0\n{ADDRESS.format(11)} doctor1\n")
    (tmp_path / "hosts1").write_text(f"127.0.0.1 localhost doctor0\n{ADDRESS.format(11)} doctor1\n")
    code, page = diagnose(two_hosts, tmp_path, MASTER_ADDR=ADDRESS.format(10))
    assert code == 1
    line = line_of(page, "problem", "own name")
    assert "doctor0 the host's own name resolves to 127.0.0.1 on this host" in line
    assert line.endswith("→ write GLOO_SOCKET_IFNAME=doctor0 into slurm/site.sh")
    names = line_of(page, "problem", "names")
    assert "doctor1 doctor0 resolves to 127.0.0.1 here, and not to that node" in names
    assert "measured with GLOO_SOCKET_IFNAME=doctor0" in line_of(page, "note", "all-reduce")
    assert "GB/s" in line_of(page, "ok", "all-reduce")
