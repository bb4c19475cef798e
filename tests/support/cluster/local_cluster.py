"""LocalCluster: a Ray cluster on this machine, its files in a folder of its own, with nodes that may be lost."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent to Ray's authors
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns that this will be so
    "RAY_enable_metrics_collection": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}


class LocalCluster:
    """The cluster's head, which is a node too, and more of them by name."""

    def __init__(self, folder: str, names: Iterable[str]) -> None:
        from ray.cluster_utils import Cluster  # noqa: PLC0415 - an extra

        head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": folder, "node_name": "head"}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: dict[str, Any] = {}
        for name in names:
            self.add(name)
        self._cluster.wait_for_nodes()

    @property
    def address(self) -> str:
        """Where services find it."""
        return str(self._cluster.address)

    def add(self, name: str) -> None:
        """Start a node."""
        self._nodes[name] = self._cluster.add_node(wait=False, num_cpus=1, node_name=name)

    def kill(self, name: str) -> None:
        """Kill a node: its raylet and all that it started, by SIGKILL."""
        self.signal(name, signal.SIGKILL)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to all processes of a node."""
        root = self._nodes[name].all_processes["raylet"][0].process.pid
        for pid in (root, *_descendants(root)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        """End all nodes."""
        for name in self._nodes:
            self.signal(name, signal.SIGCONT)
        self._cluster.shutdown()


@contextmanager
def local_cluster(*names: str) -> Iterator[LocalCluster]:
    """A cluster of the head and nodes of some names; Ray's folder is short, since sockets' paths may not be long."""
    folder = tempfile.mkdtemp(prefix="tw")
    # Ray writes the cluster's address to a folder of its own below this one, which it makes only without a temp_dir.
    environment = ENVIRONMENT | {"RAY_TMPDIR": folder}
    Path(folder, "ray").mkdir()
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        cluster = LocalCluster(folder, names)
        try:
            yield cluster
        finally:
            cluster.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


def _descendants(pid: int) -> Iterator[int]:
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, thread.read_text(encoding="ascii").split()):
                yield from (child, *_descendants(child))
