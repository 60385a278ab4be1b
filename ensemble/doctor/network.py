"""Checks of a node's network: interfaces, its own name, a free port, and connections to the other nodes."""

import contextlib
import dataclasses
import ipaddress
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ensemble.doctor.findings import Finding, note, ok, problem
from ensemble.errors import listed

PUBLIC_ADDRESS = "192.0.2.1"
"""An address that is reserved for documentation (RFC 5737), so its route is the default route."""
CONNECT_S = 3
"""The timeout of a test connection, which takes milliseconds in a cluster; a firewall that drops packets never answers."""
MOST_THREADS = 32
"""The number of nodes whose names are resolved and whose ports are tried at once."""
MOST_WAITING = 4096
"""The number of connections that may wait to be accepted; the test port of a node accepts none. It is Linux's own limit."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interface:
    """A network interface of this machine."""

    name: str
    addresses: tuple[str, ...]
    """IPv4 and IPv6 addresses, without IPv6 link-local addresses."""
    up: bool

    @property
    def usable(self) -> bool:
        return self.up and not all(is_loopback(address) for address in self.addresses)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    """A node as the other nodes see it."""

    name: str
    machine: str
    """The result of `machine`: equal for two processes of one network namespace."""
    address: str
    """The address of its connection to the head node."""
    port: int
    """The port at which the node accepts test connections of other nodes."""


def read_interfaces() -> list[Interface]:
    """All network interfaces; none if psutil is missing, which another check reports."""
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
    """An identifier of the machine, container or network namespace of this process."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")
    if boot.exists() and namespace.is_symlink():
        return f"{boot.read_text().strip()} {namespace.readlink()}"
    return socket.gethostname()


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def addresses_of(name: str) -> list[str]:
    """The addresses to which a name resolves; empty for an unknown name."""
    try:
        return list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)))
    except (OSError, UnicodeError):
        return []


def interface_towards(address: str, interfaces: Sequence[Interface]) -> str:
    """The name of the interface by which an address is reached; empty if no interface is usable. Nothing is sent.

    For a loopback address the result is the interface of the default route. If the interface of the route is not usable, the
    result is the first usable one.
    """
    if is_loopback(address):
        address = PUBLIC_ADDRESS
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as datagram_socket:
        with contextlib.suppress(OSError):
            datagram_socket.connect((address, 9))
        own_address = datagram_socket.getsockname()[0]
    preferred = [interface for interface in interfaces if own_address in interface.addresses]
    return next((interface.name for interface in [*preferred, *interfaces] if interface.usable), "")


# ------------------------------------------------------------------------------------------------ checks of one node


def matches_nccl(pattern: str, name: str) -> bool:
    """Whether a value of NCCL_SOCKET_IFNAME allows an interface.

    The value is a comma-separated list of prefixes. A leading `=` makes them whole names; a leading `^` excludes matches.

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    excludes = pattern.startswith("^")
    pattern = pattern.removeprefix("^")
    whole = pattern.startswith("=")
    parts = [part for part in pattern.removeprefix("=").split(",") if part]
    return any(name == part if whole else name.startswith(part) for part in parts) != excludes


def wrong_variables(interfaces: Sequence[Interface], environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The environment variables that name unusable interfaces, each with the reason.

    Gloo accepts a comma-separated list of whole names, and fails if one of them has no address. NCCL accepts the patterns of
    `matches_nccl`, and needs one interface with an address that matches. Without `interfaces`, as without psutil, no
    variable is checked.
    """
    if not interfaces:
        return
    by_name = {interface.name: interface for interface in interfaces}
    for name in [word for word in environment.get("GLOO_SOCKET_IFNAME", "").split(",") if word]:
        if name not in by_name:
            yield "GLOO_SOCKET_IFNAME", f"{name} does not exist here"
        elif not (by_name[name].up and by_name[name].addresses):
            yield "GLOO_SOCKET_IFNAME", f"{name} is down or has no address"
    pattern = environment.get("NCCL_SOCKET_IFNAME", "")
    matching = [interface for interface in interfaces if matches_nccl(pattern, interface.name)]
    if pattern and not any(interface.up and interface.addresses for interface in matching):
        matching_names = listed([interface.name for interface in matching], 4)
        fault = f"{matching_names} is down or has no address" if matching_names else "no interface here matches it"
        yield "NCCL_SOCKET_IFNAME", fault


def check_interfaces(interfaces: Sequence[Interface], environment: Mapping[str, str], best: str) -> Iterator[Finding]:
    """The usable interfaces, and the environment variables that name unusable ones.

    best : the interface that leads to the other nodes, or that of the default route
    """
    usable = [interface for interface in interfaces if interface.usable]
    if usable:
        yield ok("interfaces", ", ".join(f"{interface.name} {' '.join(interface.addresses)}" for interface in usable))
    elif interfaces:  # without psutil, the list is empty
        yield note("interfaces", "only the loopback is up with an address: this machine has no connection to other machines")
    for variable, fault in wrong_variables(interfaces, environment):
        fix = f"write {variable}={best} into slurm/site.sh" if best else f"unset {variable}"
        yield problem("interfaces", f"{variable}={environment[variable]}: {fault}", fix)


def own_name_misleads(interfaces: Sequence[Interface], environment: Mapping[str, str]) -> str:
    """Why Gloo would give the other nodes an address at which they cannot reach this one; empty if it would not.

    Unless GLOO_SOCKET_IFNAME is set, each rank resolves the name of its host. It listens at the first resulting address
    of the host itself, or else at the loopback. Of two ranks, the one with the higher address connects to the other. If that
    other rank listens at 127.0.0.1, the first one connects to its own host instead, and fails: "connectFullMesh failed …
    Connection refused" (measured with torch 2.13; if only one node has such a name, it may work).
    """
    if environment.get("GLOO_SOCKET_IFNAME") or not interfaces:
        return ""
    resolved = addresses_of(socket.gethostname())
    own_addresses = [address for interface in interfaces for address in interface.addresses]
    used = next((address for address in resolved if is_loopback(address) or address in own_addresses), "")
    if used and not is_loopback(used):
        return ""
    return f"the host's own name resolves to {used or ' '.join(resolved) or 'nothing'} on this host"


def check_own_name(
    interfaces: Sequence[Interface], environment: Mapping[str, str], best: str, has_several_machines: bool
) -> Iterator[Finding]:
    """Whether ranks of Gloo on other nodes reach this node at the address of its own name.

    best : the interface that leads to the other nodes
    """
    fault = own_name_misleads(interfaces, environment)
    setting = f"write GLOO_SOCKET_IFNAME={best or '…'} into slurm/site.sh"
    if fault and has_several_machines:
        yield problem("own name", f"{fault}: Gloo's ranks on other nodes could not reach this one", setting)
    elif fault:
        yield note("own name", f"{fault}: no problem on one machine", f"for several nodes, {setting}")
    elif interfaces:
        yield ok("own name", "it resolves to an address at which Gloo's ranks on other nodes reach this one")


def check_port(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the port MASTER_PORT is free; without this variable, whether any port is free."""
    port = environment.get("MASTER_PORT") or "0"
    try:
        with listen(int(port)):
            yield ok("port", f"MASTER_PORT={port} is free" if port != "0" else "there are free ports")
    except (OSError, ValueError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        fix = "unset MASTER_PORT, or choose another port, such as 29501"
        yield problem("port", f"MASTER_PORT={port} cannot be used: {reason}", fix)


def listen(port: int) -> socket.socket:
    """A socket that accepts connections by IPv4, and by IPv6 if the machine has it."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=MOST_WAITING)
    return socket.create_server(("", port), backlog=MOST_WAITING)


def free_port() -> int:
    with listen(0) as stream:
        return int(stream.getsockname()[1])


# ------------------------------------------------------------------------------------------------ checks of several nodes


def check_peers(own_node: Node, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Whether the name of each other node resolves to more than the loopback, and whether its test port is reached."""
    # One task of each machine, the first, since the address of a second task on the head node's machine is 127.0.0.1
    peers = list({node.machine: node for node in reversed(nodes) if node.machine != own_node.machine}.values())[::-1]
    if not peers:
        return
    resolved, reached = dict[Node, list[str]](), dict[Node, bool]()

    def examine(part: Sequence[Node]) -> None:
        for peer in part:
            resolved[peer], reached[peer] = addresses_of(peer.name), connects(peer.address, peer.port)

    # Not a pool: Python would wait for its threads at exit, even if the name service never answers
    parts = [peers[first::MOST_THREADS] for first in range(min(MOST_THREADS, len(peers)))]
    threads = [threading.Thread(target=examine, args=(part,), daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if unresolved := [peer for peer in peers if all(is_loopback(address) for address in resolved[peer])]:
        names = listed([f"{peer.name} resolves to {' '.join(resolved[peer]) or 'nothing'}" for peer in unresolved], 4)
        fix = "correct DNS, or /etc/hosts of every node; until then, name the head node by its address"
        yield problem("names", f"{names} here, and not to that node", fix)
    else:
        yield ok("names", "the name of every other node resolves to an address other than the loopback")
    if closed := [peer for peer in peers if not reached[peer]]:
        addresses = listed([f"{peer.name} ({peer.address}:{peer.port})" for peer in closed], 4)
        fix = "have all ports between compute nodes opened: ranks listen at ports that the system assigns"
        yield problem("ports", f"{addresses}: no connection", fix)
    else:
        yield ok("ports", "every other node accepts a connection at a port that its system assigned")


def connects(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=CONNECT_S):
        return True
    return False


def ranks_environment(interfaces: Sequence[Interface], best: str, is_misled: bool) -> dict[str, str]:
    """The environment of the all-reduce that measures bandwidth. Wrong interface variables are corrected or removed.

    is_misled : whether the check of the own name found a problem; then GLOO_SOCKET_IFNAME is set to `best`.
    """
    environment = dict(os.environ)
    wrong = {variable for variable, _ in wrong_variables(interfaces, environment)}
    if is_misled:
        wrong.add("GLOO_SOCKET_IFNAME")
    for variable in wrong:
        environment.pop(variable, None)
        if best:
            environment[variable] = best
    return environment
