"""NodeActor: it holds the node's devices, their workers, leases and slab, and makes calls."""

from __future__ import annotations

import logging
import mmap
import os
import platform
import threading
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from math import inf
from time import monotonic
from typing import Any, Final

import numpy as np

from app.cluster import staging
from app.cluster.messages import NodeAnswer, NodeCall, NodeDescription, NodeSettings, Role, SharedSlab, whole_pages
from app.devices.fleet import Fleet, open_fleet
from app.devices.process import CallLimit, CallStopped, DeviceWorker
from app.devices.slab import SlabRegion
from app.dtypes import Array
from app.errors import TilewiseError
from kernels.launch import Build

_LOG: Final = logging.getLogger(__name__)
_LOOK: Final = 1.0  # seconds between two looks at when the service was last heard


def versions() -> tuple[str, ...]:
    """What must be the same on both sides: they exchange pickled values."""
    return f"tilewise {version('tilewise')}", f"Python {'.'.join(platform.python_version_tuple()[:2])}"


class NodeActor:
    """The actor of a node; its methods are called from several threads."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._fleet: Fleet | None = None
        self._memory: mmap.mmap | None = None
        self._heard, self._patience = monotonic(), inf
        self._limits: dict[int, CallLimit] = {}
        self._results: dict[int, SlabRegion] = {}
        self._token: SlabRegion | None = None

    def versions(self) -> tuple[str, ...]:
        """What runs here."""
        return versions()

    def send_results(self) -> None:
        """Send results, and take operands, since the service cannot read this node's slab."""
        self._memory = None

    def open(self, settings: NodeSettings, service: SharedSlab) -> NodeDescription:
        """Open the devices; raises StartRefused."""
        if os.environ.get("OMP_NUM_THREADS") == "1":  # Ray's, for actors without CPUs: references are made with all
            del os.environ["OMP_NUM_THREADS"]
        opening = open_fleet(settings.devices, settings.cache_dir, settings.slab_bytes, sandboxed=settings.sandboxed)
        fleet = self._fleet = self._stack.enter_context(opening)
        self._memory = staging.opened(service)
        shared, self._token = staging.announced(fleet.slab)
        self._heard, self._patience = monotonic(), settings.patience
        threading.Thread(target=self._end_unheard, name="fence", daemon=True).start()
        width = fleet.compilers.width if fleet.compilers is not None else 1
        devices = tuple((unit.device, unit.vendor) for unit in fleet.units)
        return NodeDescription(versions(), devices, fleet.reasons, width, shared, self._memory is not None)

    @property
    def reads_slab(self) -> bool:
        """Whether operands are read where the service has them, and results left for it to read."""
        return self._memory is not None

    def slab_view(self) -> memoryview:
        """The slab of the node."""
        slab = self._opened().slab
        return slab.view(SlabRegion(0, slab.nbytes))

    def close(self) -> None:
        """End the node's processes."""
        self._patience = inf
        self._stack.close()

    def ping(self) -> dict[tuple[str, Role], str | None]:
        """Hear the service; gives what troubles each worker."""
        self._heard = monotonic()
        found: dict[tuple[str, Role], str | None] = {}
        for unit in self._opened().units:
            found[unit.device.id, "products"] = unit.products.trouble
            found[unit.device.id, "trials"] = unit.trials.trouble
        return found

    def call(self, asked: NodeCall, *operands: Array) -> tuple[NodeAnswer, *tuple[Array, ...]]:
        """Make a call from operands that were sent, or are read where the service has them; its result, if sent."""
        worker = self._worker(asked.device, asked.role)
        self.limit(asked.number, *asked.limit)
        try:
            with ExitStack() as stack:
                value, offset, results = self._made(worker, asked, operands, stack)
            return NodeAnswer("value", value, worker.generation, worker.trouble, offset), *results
        except CallStopped:
            return (NodeAnswer("stopped", None, worker.generation, worker.trouble),)
        except TilewiseError as error:
            return (NodeAnswer("error", error, worker.generation, worker.trouble),)
        finally:
            self._limits.pop(asked.number, None)

    def limit(self, number: int, ask: float, kill: float) -> None:
        """Have a call stop `ask` seconds from now, and its process be killed in `kill`."""
        now = monotonic()
        self._limits[number] = CallLimit(now + ask, now + kill)

    def release(self, number: int) -> None:
        """Take back the memory of a result that the service has read."""
        if number in self._results:
            self._opened().slab.release(self._results.pop(number))

    def compile(self, build: Build, architecture: str, deadline: float | None) -> TilewiseError | None:
        """Put a build's binary into this node's cache; gives the error, if there is one."""
        compilers = self._opened().compilers
        try:
            if compilers is not None:
                compilers.compile(build, architecture, deadline)
        except TilewiseError as error:
            return error
        return None

    def replace(self, device: str, role: Role, reason: str) -> None:
        """Replace a worker's process."""
        self._worker(device, role).replace(reason)

    def _made(
        self, worker: DeviceWorker, asked: NodeCall, operands: tuple[Array, ...], stack: ExitStack
    ) -> tuple[Any, int, tuple[Array, ...]]:
        """The value of a call, and its result: where it is kept for the service to read, or its bytes."""
        if asked.function is None:
            worker.start(self._until(asked.number))
            return None, 0, ()
        slab, wanted = self._opened().slab, asked.operands
        region = slab.lend(wanted.nbytes) if wanted.nbytes else None
        if region is not None:
            keep = stack.enter_context(ExitStack())
            keep.callback(slab.release, region)
            self._stage(region, asked, operands)
        start = region.offset if region is not None else 0
        value = worker.call(
            asked.function,
            *staging.shifted(asked.function, asked.arguments, start),
            priority=asked.priority,
            deadline=asked.deadline,
            leased=asked.leased,
            until=self._until(asked.number),
        )
        if region is None:
            return value, 0, ()
        offset = sum(whole_pages(panel.nbytes) for panel in wanted.reads)
        if self._memory is not None:
            keep.pop_all()
            self._results[asked.number] = region
            return value, region.offset + offset, ()
        sent = []
        for panel in wanted.writes:
            sent.append(staging.rows(slab.view(region), staging.at(offset, panel)).copy())
            offset += whole_pages(panel.nbytes)
        return value, 0, tuple(sent)

    def _stage(self, region: SlabRegion, asked: NodeCall, operands: tuple[Array, ...]) -> None:
        """Copy a call's operands into this node's slab."""
        view, offset = self._opened().slab.view(region), 0
        for number, panel in enumerate(asked.operands.reads):
            rows = operands[number] if self._memory is None else staging.rows(self._memory, panel)
            np.copyto(staging.rows(view, staging.at(offset, panel)), rows)
            offset += whole_pages(panel.nbytes)

    def _until(self, number: int) -> Callable[[], CallLimit]:
        return lambda: self._limits.get(number, CallLimit())

    def _worker(self, device: str, role: Role) -> DeviceWorker:
        unit = self._opened().unit(device)
        return unit.products if role == "products" else unit.trials

    def _opened(self) -> Fleet:
        if self._fleet is None:
            raise RuntimeError("the node was not opened")
        return self._fleet

    def _end_unheard(self) -> None:
        """End the actor once the service was not heard for too long: it has another one, or is gone."""
        while monotonic() - self._heard < self._patience:
            threading.Event().wait(_LOOK)
        _LOG.error("the service was not heard for %g s: this node's processes end", self._patience)
        os._exit(1)  # the workers end with it
