"""The fleet of a Ray cluster: every node's devices, each named by its node."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import ray

from app.cluster.connection import ClusterNode, NodeConnection
from app.cluster.messages import NodeDescription, NodeSettings
from app.cluster.worker import RemoteCompilers, RemoteWorker
from app.devices.backend import Vendor
from app.devices.fleet import Fleet, Unit, open_fleet
from app.devices.lease import Lease
from app.devices.slab import Slab
from app.errors import NoDevice, StartRefused
from kernels.device import Device

_LOG: Final = logging.getLogger(__name__)
_ANSWERING: Final = 5.0  # seconds that the cluster's head may take to be connected to
_NAMED: Final = re.compile(r"[^A-Za-z0-9._-]")
# Nothing is sent to Ray's authors, and an actor without GPUs sees those of its node.
_ENVIRONMENT: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Where the cluster is, and what is taken of it: `devices` of each node, auto for its GPUs alone.

    A node that says nothing for `patience` seconds is lost.
    """

    address: str
    devices: str
    cache_dir: Path
    sandboxed: bool = True
    insecure: bool = False
    patience: float = 10.0


@contextmanager
def open_cluster(settings: ClusterSettings, slab_bytes: int) -> Iterator[Fleet]:
    """Connect to a Ray cluster and open the devices of its nodes; this host's only as one of these.

    For a node without devices the fleet has a reason. Raises StartRefused if there is no such cluster, or others than
    a private network's may reach it.
    """
    with ExitStack() as stack:
        _connect(settings.address)
        stack.callback(ray.shutdown)
        nodes = cluster_nodes()
        _expect_private(nodes, insecure=settings.insecure)
        local = stack.enter_context(open_fleet("none", settings.cache_dir, slab_bytes, sandboxed=settings.sandboxed))
        asked = "cuda" if settings.devices == "auto" else settings.devices
        chosen = [node for node in nodes if node.gpus or "opencl" in asked]
        how = NodeSettings(asked, settings.cache_dir, slab_bytes, settings.sandboxed, settings.patience)
        connections = [NodeConnection(node, how, local.slab, _named) for node in chosen]
        for connection in connections:
            stack.callback(connection.close)
        units, reasons = _opened(connections, local.slab, stack)
        skipped = [f"{node.name}: it has no GPU, and no CPU was asked for" for node in nodes if node not in chosen]
        for reason in (*reasons, *skipped):
            _LOG.log(logging.INFO if units else logging.WARNING, "%s", reason)
        yield replace(local, units=tuple(units), reasons=(*reasons, *skipped))


def _connect(address: str) -> None:
    """Connect this process to the cluster; raises StartRefused."""
    os.environ.update(_ENVIRONMENT)
    try:
        _expect_listener(address)
        with _own_handler():
            ray.init(address=address, namespace="tilewise", log_to_driver=False, configure_logging=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise StartRefused(f"there is no Ray cluster at TILEWISE_RAY={address}: {error}") from error


def _expect_listener(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERING).close()


@contextmanager
def _own_handler() -> Iterator[None]:
    """Keep what SIGTERM does here: Ray has it end the process at once."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def cluster_nodes() -> list[ClusterNode]:
    """The nodes that live, by name; of several with one name each but the first has its number's beginning too."""
    told: list[dict[str, Any]] = [each for each in ray.nodes() if each["Alive"]]
    seen, found = Counter[str](), []
    for each in sorted(told, key=lambda one: (str(one["NodeName"]), str(one["NodeID"]))):
        name, number = _NAMED.sub("-", str(each["NodeName"])), str(each["NodeID"])
        seen[name] += 1
        own = name if seen[name] == 1 else f"{name}-{number[:6]}"
        found.append(ClusterNode(own, number, str(each["NodeManagerAddress"]), each["Resources"].get("GPU", 0.0)))
    return found


def _named(name: str) -> ClusterNode | None:
    return next((node for node in cluster_nodes() if node.name == name), None)


def _expect_private(nodes: list[ClusterNode], *, insecure: bool) -> None:
    """Raise StartRefused for a node whose address is no private network's; say that Ray lets everybody in."""
    public = [node.address for node in nodes if not _is_private(node.address)]
    if public and not insecure:
        raise StartRefused(
            f"Ray lets in whoever reaches it, and {', '.join(public)} is no private address: whoever reaches it runs "
            "programs as this user. Have the cluster on a private network, or set TILEWISE_INSECURE=yes"
        )
    _LOG.warning("Ray authenticates nobody: whoever reaches the ports of its %d nodes runs programs there", len(nodes))


def _is_private(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_private
    except ValueError:
        return False


def _opened(connections: list[NodeConnection], slab: Slab, stack: ExitStack) -> tuple[list[Unit], list[str]]:
    """Open every node at once; the units, and why there are no more."""
    units, reasons = list[Unit](), list[str]()
    with ThreadPoolExecutor(max(1, len(connections)), thread_name_prefix="opening a node") as pool:
        for connection, future in [(each, pool.submit(each.open)) for each in connections]:
            try:
                found = future.result()
            except NoDevice as error:
                reasons.append(error.message)
                continue
            reasons += [f"{connection.node.name}: {reason}" for reason in found.reasons]
            units += _units(connection, found, slab, stack)
    return units, reasons


def _units(connection: NodeConnection, found: NodeDescription, slab: Slab, stack: ExitStack) -> list[Unit]:
    compilers = RemoteCompilers(connection, found.width)
    stack.callback(compilers.close)
    return [_unit(connection, device, vendor, compilers, slab, stack) for device, vendor in found.devices]


def _unit(
    connection: NodeConnection, device: Device, vendor: Vendor, compilers: RemoteCompilers, slab: Slab, stack: ExitStack
) -> Unit:
    """A node's device; its lease is the node's own, and this one is never taken."""
    lease = Lease()
    stack.callback(lease.close)
    products = RemoteWorker(connection, device.id, "products", slab)
    trials = products if device.exclusive else RemoteWorker(connection, device.id, "trials", slab)
    for worker in {products, trials}:
        stack.callback(worker.close)
    return Unit(replace(device, id=f"{connection.node.name}:{device.id}"), vendor, lease, products, trials, compilers)
