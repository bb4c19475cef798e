"""Times launches with CUDA events or a replayed graph."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from importlib.resources import files
from time import perf_counter
from typing import Any, Final

import cupy
import numpy as np
from cupy.cuda import runtime

from kernels.device import Limits
from kernels.sources import READ_SWEEP, WAIT_FOR_HOST

Launch = Callable[[], None]
Around = Callable[[int], AbstractContextManager[object]]

_SWEPT_BYTES: Final = 2**27  # bytes at least that are read before a launch
_SWEEPS: Final = 2  # that often: the device begins what is queued behind them without a gap
_GRID, _BLOCK = 528, 512
_WAITED: Final = 1.0  # seconds at most that the device waits for the host to have queued everything
_LATE: Final = 0.8  # of these, after which the host may have been too late
_TIMES: Final = 3  # that launches are queued where it was
_TOGETHER: Final = 64  # launches that are queued at once: a queue that is full would wait for the device
_WORD_BYTES: Final = 4
_GRAPHS: Final = 32  # kept: contenders that are timed in turn are captured once
_TICK: Final = 1e-6  # milliseconds: a zero of the device's clock is less than this, and no launch takes nothing


class StreamWait:
    """Has what is queued on the current device's legacy default stream wait until the host releases it.

    One thread of the device reads a word of pinned memory, for a second at most.
    """

    def __init__(self) -> None:
        self._memory = cupy.cuda.alloc_pinned_memory(_WORD_BYTES)
        self._word = np.frombuffer(self._memory, np.uint32, 1)
        self._word[0] = self._count = 0
        self._function = _function(WAIT_FOR_HOST, "wait_for_host")

    def queue(self) -> None:
        """Queue the wait before what is queued next."""
        self._count = (self._count + 1) % 2**32
        given = np.uint64(self._memory.ptr), np.uint32(self._count), np.uint64(_WAITED * 1e9)
        self._function((1,), (1,), given)

    def release(self) -> None:
        """Let the device go on."""
        self._word[0] = self._count


class LaunchTimer:
    """Times launches on the current device's legacy default stream, with cold caches.

    The device begins when the host has queued everything: reads of twice the cache, which leave clean lines, and the
    launches. So a launch waits neither for the host, however busy that is, nor for what another has left to be written.
    What took the host longer than the device waits is queued again.
    """

    def __init__(self, limits: Limits, allocate: Callable[[int], Any]) -> None:
        self._nbytes = max(_SWEPT_BYTES, 2 * limits.cache_bytes)
        self._allocate = allocate
        self._swept: Any = None
        self._sweep: Any = None
        self._wait: StreamWait | None = None
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
        """Give back the memory that is read."""
        self._swept = None

    def _each(self, launches: Sequence[Launch]) -> list[float]:
        parts = [launches[begin : begin + _TOGETHER] for begin in range(0, len(launches), _TOGETHER)]
        return [seconds for part in parts for seconds in self._queued(part)]

    def _together(self, launches: Sequence[Launch], what: object, key: tuple[object, ...], around: Around) -> float:
        graph = self._graph(launches, what, key, around)
        whole = [lambda: graph.launch(cupy.cuda.Stream.null)]
        return self._queued(whole)[0] / len(launches)

    def _queued(self, launches: Sequence[Launch]) -> list[float]:
        """The seconds of each launch, queued while the device waits for the host."""
        events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in launches]
        for _ in range(_TIMES):
            began = perf_counter()
            self._queue_reads()
            try:
                for (start, end), launch in zip(events, launches, strict=True):
                    start.record()
                    launch()
                    end.record()
            finally:
                took = perf_counter() - began
                self._release()
            runtime.deviceSynchronize()
            if took < _LATE * _WAITED:
                break
        return [_elapsed(*pair) for pair in events]

    def _queue_reads(self) -> None:
        """Queue a wait for the host, and reads that leave nothing of anybody's operands in the cache."""
        if self._sweep is None:
            self._sweep = _function(READ_SWEEP, "read_sweep")
        if self._swept is None:
            self._swept = self._allocate(self._nbytes)
        if self._wait is None:
            self._wait = StreamWait()
        self._wait.queue()
        given = np.uint64(self._swept.ptr), np.uint64(self._nbytes // 16)
        for _ in range(_SWEEPS):
            self._sweep((_GRID,), (_BLOCK,), given)

    def _release(self) -> None:
        if self._wait is not None:
            self._wait.release()

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


def _function(file: str, name: str) -> Any:
    """A function of one of the package's PTX files."""
    return cupy.RawModule(path=str(files("kernels").joinpath(file))).get_function(name)


def _elapsed(start: Any, end: Any) -> float:
    return max(float(cupy.cuda.get_elapsed_time(start, end)), _TICK) * 1e-3
