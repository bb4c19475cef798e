"""Times launches with CUDA events or a replayed graph."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from importlib.resources import files
from math import ceil
from time import perf_counter
from typing import Any, Final

import cupy
import numpy as np
from cupy.cuda import runtime

from kernels.device import Limits
from kernels.sources import READ_SWEEP

Launch = Callable[[], None]
Around = Callable[[int], AbstractContextManager[object]]

_SWEPT_BYTES: Final = 2**27  # bytes at least that are read to keep the device busy while the host queues launches
_GRID, _BLOCK = 528, 512
_HEADROOM: Final = 1.3  # how much faster than the device's bandwidth that may be
_BUSY: Final = 250e-6  # seconds of it at least: a host that has waited queues its first launch so late, and slowly
_MOST_BUSY: Final = 10e-3  # seconds of it at most
_SPARE: Final = 2.0  # times what the host took last, such as a graph's first launch
_CALMER: Final = 0.5  # of it at least after launches that were queued in less
_TIMES: Final = 3  # that launches are queued where the device was idle before they were
_QUEUEING: Final = 20e-6  # seconds that the host takes to queue a launch with its two events, or a graph
_NODE: Final = 1e-6  # seconds that each launch of a graph adds to that
_GRAPHS: Final = 32  # kept: contenders that are timed in turn are captured once
_TICK: Final = 1e-6  # milliseconds: a zero of the device's clock is less than this, and no launch takes nothing


class LaunchTimer:
    """Times launches on the current device's legacy default stream, with cold caches.

    Launches are queued behind reads of twice the cache, which leave clean lines: a launch waits neither for the host
    nor for what another has left to be written. What was queued too late for that is queued again behind more reads.
    """

    def __init__(self, limits: Limits, allocate: Callable[[int], Any]) -> None:
        self._nbytes = max(_SWEPT_BYTES, 2 * limits.cache_bytes)
        self._sweeping = self._nbytes / limits.bandwidth / _HEADROOM
        self._busy = _BUSY
        self._allocate = allocate
        self._swept: Any = None
        self._sweep: Any = None
        self._stream: Any = None
        self._graphs: OrderedDict[tuple[object, ...], tuple[Any, object]] = OrderedDict()

    @property
    def graphs(self) -> tuple[Any, ...]:
        """The graphs that are kept, the one used last at the end."""
        return tuple(graph for graph, _ in self._graphs.values())

    def seconds(
        self, policy: str, launches: Sequence[Launch], what: object, key: tuple[object, ...], around: Around
    ) -> list[float]:
        """Time launches by a policy: each by events, or the mean of all by a graph.

        A graph is captured once for a `what` and equal keys. It keeps `what` alive, but no operands. `around` is
        entered with the stream from which a graph is captured. Raises ValueError for an unknown policy, and CUDA's
        errors.
        """
        if not launches:
            return []
        if policy == "events":
            return self._each(launches)
        if policy == "graph":
            return [self._together(launches, what, key, around)]
        raise ValueError(f"CUDA has no policy {policy!r}")

    def forget(self) -> None:
        """Give back the memory that is held for keeping the device busy."""
        self._swept = None

    def _each(self, launches: Sequence[Launch]) -> list[float]:
        return self._queued(launches, len(launches) * _QUEUEING)

    def _together(self, launches: Sequence[Launch], what: object, key: tuple[object, ...], around: Around) -> float:
        graph = self._graph(launches, what, key, around)
        whole = [lambda: graph.launch(cupy.cuda.Stream.null)]
        return self._queued(whole, _QUEUEING + len(launches) * _NODE)[0] / len(launches)

    def _queued(self, launches: Sequence[Launch], seconds: float) -> list[float]:
        """The seconds of each launch, which the host takes about `seconds` to queue."""
        for _ in range(_TIMES):
            events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in launches]
            busy = self._keep_busy(max(self._busy, seconds))
            began = perf_counter()
            for (start, end), launch in zip(events, launches, strict=True):
                start.record()
                launch()
                end.record()
            was_idle, took = busy.done, perf_counter() - began
            runtime.deviceSynchronize()
            self._busy = min(max(_BUSY, _SPARE * took, _CALMER * self._busy), _MOST_BUSY)
            if not was_idle:
                break
        return [_elapsed(*pair) for pair in events]

    def _keep_busy(self, seconds: float) -> Any:
        """Queue reads that take so long, and leave nothing of anybody's operands in the cache; gives their end."""
        if self._sweep is None:
            self._sweep = cupy.RawModule(path=str(files("kernels").joinpath(READ_SWEEP))).get_function("read_sweep")
        if self._swept is None:
            self._swept = self._allocate(self._nbytes)
        given = np.uint64(self._swept.ptr), np.uint64(self._nbytes // 16)
        for _ in range(ceil(seconds / self._sweeping)):
            self._sweep((_GRID,), (_BLOCK,), given)
        end = cupy.cuda.Event()
        end.record()
        return end

    def _graph(self, launches: Sequence[Launch], what: object, key: tuple[object, ...], around: Around) -> Any:
        whole = id(what), *key
        if whole not in self._graphs:
            self._graphs[whole] = self._captured(launches, around), what
        self._graphs.move_to_end(whole)
        while len(self._graphs) > _GRAPHS:
            self._graphs.popitem(last=False)
        return self._graphs[whole][0]

    def _captured(self, launches: Sequence[Launch], around: Around) -> Any:
        stream = self._stream or cupy.cuda.Stream(non_blocking=True)
        self._stream = None  # until it has proved to be whole
        with around(stream.ptr), stream:
            stream.begin_capture()
            try:
                for launch in launches:
                    launch()
            except BaseException:
                with suppress(RuntimeError):
                    stream.end_capture()
                raise
            graph = stream.end_capture()
        graph.upload(stream)
        stream.synchronize()
        self._stream = stream
        return graph


def _elapsed(start: Any, end: Any) -> float:
    return max(float(cupy.cuda.get_elapsed_time(start, end)), _TICK) * 1e-3
