"""Times launches with CUDA events or a replayed graph."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from math import ceil
from typing import Any, Final

import cupy
from cupy.cuda import runtime

from kernels.device import Limits

Launch = Callable[[], None]
Around = Callable[[int], AbstractContextManager[object]]

_FILLED_BYTES: Final = (
    2**27
)  # bytes at least that are overwritten to keep the device busy while the host queues launches
_HEADROOM: Final = 1.3  # how much faster than the device's bandwidth that may be
_QUEUEING: Final = 20e-6  # seconds that the host takes to queue a launch with its two events, or a graph
_NODE: Final = 1e-6  # seconds that each launch of a graph adds to that
_GRAPHS: Final = 32  # kept: contenders that are timed in turn are captured once
_TICK: Final = 1e-6  # milliseconds: a zero of the device's clock is less than this, and no launch takes nothing


class LaunchTimer:
    """Times launches on the current device's legacy default stream, with cold caches."""

    def __init__(self, limits: Limits, allocate: Callable[[int], Any]) -> None:
        self._nbytes = max(_FILLED_BYTES, 2 * limits.cache_bytes)
        self._overwriting = self._nbytes / limits.bandwidth / _HEADROOM
        self._allocate = allocate
        self._workspace: Any = None
        self._stream: Any = None
        self._graphs: OrderedDict[tuple[object, ...], tuple[Any, object]] = OrderedDict()

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
        self._workspace = None

    def _each(self, launches: Sequence[Launch]) -> list[float]:
        events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in launches]
        self._keep_busy(len(launches) * _QUEUEING)
        for (start, end), launch in zip(events, launches, strict=True):
            start.record()
            launch()
            end.record()
        runtime.deviceSynchronize()
        return [_elapsed(*pair) for pair in events]

    def _together(self, launches: Sequence[Launch], what: object, key: tuple[object, ...], around: Around) -> float:
        graph = self._graph(launches, what, key, around)
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        self._keep_busy(_QUEUEING + len(launches) * _NODE)
        start.record()
        graph.launch(cupy.cuda.Stream.null)
        end.record()
        runtime.deviceSynchronize()
        return _elapsed(start, end) / len(launches)

    def _keep_busy(self, seconds: float) -> None:
        """Queue work that takes so long, and leaves nothing of anybody's operands in the cache."""
        if self._workspace is None:
            self._workspace = self._allocate(self._nbytes)
        for _ in range(ceil(seconds / self._overwriting)):
            runtime.memsetAsync(self._workspace.ptr, 0, self._nbytes, 0)

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
