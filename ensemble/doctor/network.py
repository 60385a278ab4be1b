"""The network as one node sees it: interfaces, its own name, a free port, and whether it reaches the others."""

import concurrent.futures
import contextlib
import dataclasses
import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ensemble.doctor.findings import Finding, note, ok, problem, shorten

PUBLIC_ADDRESS = "192.0.2.1"
"""Kept for documentation (RFC 5737): the route to it is the one that leads out of this machine."""
CONNECT_S = 3
"""To connect to a port within a cluster takes milliseconds; a firewall that drops packets answers never."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interface:
    """A network interface of this machine."""

    name: str
    addresses: tuple[str, ...]
    """IPv4 and IPv6, without those that hold on one cable only."""
    up: bool

    @property
    def usable(self) -> bool:
        return self.up and bool(self.addresses) and not all(is_loopback(address) for address in self.addresses)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    """What the others must know of a node."""

    name: str
    machine: str
    """Equal for two processes with the same network."""
    address: str
    """Through which it talks to the head node."""
    port: int
    """Where it listens for the others' test."""


def interfaces() -> list[Interface]:
    """All of them; none where psutil is missing, which another check names."""
    try:
        import psutil
    except ImportError:
        return []
    addresses, states = psutil.net_if_addrs(), psutil.net_if_stats()
    return [
        Interface(
            name=name,
            addresses=tuple(
                entry.address
                for entry in addresses[name]
                if entry.family in (socket.AF_INET, socket.AF_INET6) and not entry.address.startswith("fe80")
            ),
            up=states[name].isup,
        )
        for name in sorted(addresses.keys() & states.keys())
    ]


def machine() -> str:
    """Which machine, container or network namespace this process is in."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")
    if boot.exists() and namespace.is_symlink():
        return f"{boot.read_text().strip()} {namespace.readlink()}"
    return socket.gethostname()


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def addresses_of(name: str) -> list[str]:
    """What a name resolves to, empty if to nothing."""
    try:
        return list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)))
    except (OSError, UnicodeError):
        return []


def interface_towards(address: str, known: Sequence[Interface]) -> str:
    """The name of the interface by which an address is reached, empty if there is none; nothing is sent.

    For an address of this machine itself, the interface that leads out of it, or else the first that could.
    """
    if is_loopback(address):
        address = PUBLIC_ADDRESS
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as stream:
        with contextlib.suppress(OSError):
            stream.connect((address, 9))
        own = stream.getsockname()[0]
    leading = [interface for interface in known if own in interface.addresses]
    return next((interface.name for interface in [*leading, *known] if interface.usable), "")


# ------------------------------------------------------------------------------------------------ checks of one node


def matches_nccl(pattern: str, name: str) -> bool:
    """Whether NCCL_SOCKET_IFNAME lets NCCL use an interface: prefixes by commas, `=` for whole names, `^` for all others.

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    others = pattern.startswith("^")
    pattern = pattern.removeprefix("^")
    whole = pattern.startswith("=")
    words = [word for word in pattern.removeprefix("=").split(",") if word]
    return any(name == word if whole else name.startswith(word) for word in words) != others


def wrong_variables(known: Sequence[Interface], environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The variables that name interfaces by which nobody can talk, each with what is wrong.

    Gloo takes whole names by commas and stops at one that has no address; NCCL takes patterns, of which one must match.
    """
    by_name = {interface.name: interface for interface in known}
    for name in [word for word in environment.get("GLOO_SOCKET_IFNAME", "").split(",") if word]:
        if name not in by_name:
            yield "GLOO_SOCKET_IFNAME", f"{name} does not exist here"
        elif not (by_name[name].up and by_name[name].addresses):
            yield "GLOO_SOCKET_IFNAME", f"{name} is down or has no address"
    pattern = environment.get("NCCL_SOCKET_IFNAME", "")
    matching = [interface for interface in known if matches_nccl(pattern, interface.name)]
    if pattern and not any(interface.up and interface.addresses for interface in matching):
        names = shorten([interface.name for interface in matching])
        yield "NCCL_SOCKET_IFNAME", f"{names} is down or has no address" if names else "no interface here matches it"


def check_interfaces(known: Sequence[Interface], environment: Mapping[str, str], best: str) -> Iterator[Finding]:
    """`best` is the interface that leads to the other nodes, or out of this machine."""
    usable = [interface for interface in known if interface.usable]
    if usable:
        yield ok("interfaces", ", ".join(f"{interface.name} {' '.join(interface.addresses)}" for interface in usable))
    elif known:  # psutil may be what is missing
        yield note("interfaces", "none but the loopback is up with an address: this machine can only talk to itself")
    for variable, fault in wrong_variables(known, environment) if known else ():
        mend = f"write {variable}={best} into slurm/site.sh" if best else f"unset {variable}"
        yield problem("interfaces", f"{variable}={environment[variable]}: {fault}", mend)


def own_name_misleads(known: Sequence[Interface], environment: Mapping[str, str]) -> str:
    """Why Gloo would give the other nodes an address that leads them nowhere, empty if it would not.

    Unless GLOO_SOCKET_IFNAME is set, each rank listens on the first address of its own host's name that it has, or else on
    the loopback. Of two ranks the one with the higher address connects to the other: if that listens on 127.0.0.1, to
    itself: «connectFullMesh failed … Connection refused» (measured, torch 2.13; one such node among 10.x.x.x may go well).
    """
    if environment.get("GLOO_SOCKET_IFNAME") or not known:
        return ""
    found = addresses_of(socket.gethostname())
    own = [address for interface in known for address in interface.addresses]
    taken = next((address for address in found if is_loopback(address) or address in own), "")
    if taken and not is_loopback(taken):
        return ""
    return f"the host's own name is {taken or ' '.join(found) or 'unknown'} to itself"


def check_own_name(
    known: Sequence[Interface], environment: Mapping[str, str], best: str, several: bool
) -> Iterator[Finding]:
    """`several` machines are there, or are expected."""
    fault = own_name_misleads(known, environment)
    setting = f"write GLOO_SOCKET_IFNAME={best or '…'} into slurm/site.sh"
    if fault and several:
        yield problem("own name", f"{fault}: Gloo's ranks on other nodes would not find this one", setting)
    elif fault:
        yield note("own name", f"{fault}: no harm on one machine", f"for several nodes, {setting}")
    elif known:
        yield ok("own name", "Gloo has an address that leads other nodes here")


def check_port(environment: Mapping[str, str]) -> Iterator[Finding]:
    """MASTER_PORT if it is set, else any."""
    port = environment.get("MASTER_PORT") or "0"
    try:
        with listen(int(port)):
            yield ok("port", f"MASTER_PORT={port} is free" if port != "0" else "free ones are there")
    except (OSError, ValueError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        yield problem("port", f"MASTER_PORT={port} cannot be used: {reason}", "unset MASTER_PORT, or take another, as 29501")


def listen(port: int) -> socket.socket:
    """A socket that takes connections by IPv4, and by IPv6 where there is any."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def free_port() -> int:
    with listen(0) as stream:
        return port_of(stream)


def port_of(stream: socket.socket) -> int:
    return int(stream.getsockname()[1])


# ------------------------------------------------------------------------------------------------ checks of several nodes


def check_peers(own: Node, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Whether each other node's name leads to it, and whether a port that it listens on can be reached."""
    # The first task of each other machine: a second one on the head node's knows no address but 127.0.0.1
    peers = list({node.machine: node for node in reversed(nodes) if node.machine != own.machine}.values())[::-1]
    if not peers:
        return
    with concurrent.futures.ThreadPoolExecutor(min(32, len(peers))) as pool:
        resolved = dict(zip(peers, pool.map(lambda peer: addresses_of(peer.name), peers), strict=True))
        reached = dict(zip(peers, pool.map(lambda peer: connects(peer.address, peer.port), peers), strict=True))
    if astray := [peer for peer in peers if all(is_loopback(address) for address in resolved[peer])]:
        where = shorten([f"{peer.name} leads to {' '.join(resolved[peer]) or 'nothing'}" for peer in astray])
        mend = "mend DNS, or /etc/hosts of every node; until then, name the head node by its address"
        yield problem("names", f"{where} here, and not to that node", mend)
    else:
        yield ok("names", "every other node's name leads to it")
    if closed := [peer for peer in peers if not reached[peer]]:
        where = shorten([f"{peer.name} ({peer.address}:{peer.port})" for peer in closed])
        mend = "ask for all ports between compute nodes to be open: ranks listen on ports that the system gives them"
        yield problem("ports", f"{where}: no connection", mend)
    else:
        yield ok("ports", "every other node can be connected to, on any port")


def connects(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=CONNECT_S):
        return True
    return False


def ranks_environment(known: Sequence[Interface], best: str, several: bool) -> dict[str, str]:
    """The environment for an all-reduce: with what the mends of this module say, so that it can be measured at all."""
    environment = dict(os.environ)
    mended = {variable for variable, _ in wrong_variables(known, environment)}
    if several and own_name_misleads(known, environment):
        mended.add("GLOO_SOCKET_IFNAME")
    for variable in mended:
        environment.pop(variable, None)
        if best:
            environment[variable] = best
    return environment
