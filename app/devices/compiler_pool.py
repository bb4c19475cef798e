"""A pool of compiling processes, which hold no device and can be killed."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future
from contextvars import copy_context
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final, Protocol, TypeAlias

from app.devices import worker_entry
from app.devices.fair_pool import FairThreadPool
from app.devices.process import Worker
from app.devices.sandbox import Sandbox
from app.errors import Closing, TilewiseError
from kernels.launch import Build

Key: TypeAlias = tuple[str, str]

_LOG = logging.getLogger(__name__)
_AHEAD: Final = 8  # processes started ahead at most: each keeps 43 MB of its own, even where nothing is tuned
_FIRST: Final = 60.0  # seconds for a compilation while none has been seen to end
_LEAST: Final = 10.0
_SLOWER: Final = 5.0  # times the slowest compilation seen: one that takes longer is taken for hung


class BuildCompilers(Protocol):
    """What compiles the builds of a device, here or on its node; as Compilers, whose methods say what they raise."""

    width: int

    def start(self, build: Build, architecture: str, deadline: float | None = None) -> Future[None]:
        """Have a build's binary put into the device's cache, and return at once."""
        ...

    def compile(self, build: Build, architecture: str, deadline: float | None = None) -> None:
        """Put a build's binary into the device's cache, and wait."""
        ...

    def cancel(self, builds: Iterable[Build], architecture: str) -> None:
        """Give up the builds that no compiler has begun."""
        ...


class Compilers:
    """A pool of compiler processes, `width` of them or one fewer than cores; each is started on first use, or ahead.

    Concurrent requests for a build and architecture share one compilation; owners take turns. Binaries are on disk;
    builds compiled here are remembered. A build that failed is compiled again.
    """

    def __init__(self, cache_dir: Path, sandbox: Sandbox | None = None, width: int | None = None) -> None:
        self.width = max(1, len(os.sched_getaffinity(0)) - 1) if width is None else width
        self._cache_dir = cache_dir
        self._children = [
            Worker(f"compiler {number}", worker_entry.compiler, (cache_dir,), sandbox=sandbox)
            for number in range(self.width)
        ]
        self._idle = self._children.copy()
        self._lock = threading.Lock()
        self._jobs: dict[Key, Future[None]] = {}
        self._slowest: float | None = None
        self._threads = FairThreadPool(self.width, "compiling")
        self._starting: threading.Thread | None = None

    @property
    def deadline(self) -> float:
        """Seconds that a compilation may take now: several times the slowest that was seen."""
        return _FIRST if self._slowest is None else max(_LEAST, _SLOWER * self._slowest)

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that there are now."""
        return [child.pid for child in self._children if child.pid is not None]

    @property
    def ready(self) -> int:
        """How many processes need not be started for a build."""
        return sum(child.trouble is None for child in self._children)

    def of(self, owner: str) -> BuildCompilers:
        """These compilers as a device shares them with others: builds of several owners are compiled in turn."""
        return _SharedCompilers(self, owner)

    def warm(self, count: int = _AHEAD) -> None:
        """Start `count` processes ahead of the first builds, at most the width, and return at once; to be called once.

        They are those that the first builds get, in that order. A failure is logged: a build that needs the process
        starts it again.
        """
        # None of the pool's threads waits for a start, and all processes stay among the idle ones: a build is not
        # queued behind this, and if its process is being started it waits for the rest of that alone.
        chosen = self._idle[: -count - 1 : -1]
        self._starting = threading.Thread(target=_start_ahead, args=(chosen,), name="starting compilers", daemon=True)
        self._starting.start()

    def start(self, build: Build, architecture: str, deadline: float | None = None, owner: str = "") -> Future[None]:
        """Have a build's binary put into the cache, and return at once.

        The future raises CompileFailed, ChildTimedOut after `deadline` seconds, ChildDied, or CancelledError. Raises
        Closing at the end.
        """
        key = build.digest, architecture
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                try:
                    work = partial(copy_context().run, self._run, build, architecture, deadline)
                    job = self._threads.submit(owner, work)
                except RuntimeError as error:
                    raise Closing("the compilers are closed") from error
                self._jobs[key] = job
        job.add_done_callback(partial(self._forget_a_failed_one, key))
        return job

    def compile(self, build: Build, architecture: str, deadline: float | None = None, owner: str = "") -> None:
        """Compile a build into the cache and wait; raises as `start`'s future, which cannot be cancelled."""
        while True:
            try:
                return self.start(build, architecture, deadline, owner).result()
            except CancelledError:
                continue  # somebody who had asked for the same build ahead has given it up

    def both(self, build: Build, architecture: str, *, line_info: bool = False) -> worker_entry.CompiledBuild:
        """A build's cubin, which is the one in the cache, and its PTX; raises as `compile`, and Closing at the end."""
        work = partial(copy_context().run, self._both, build, architecture, line_info)
        try:
            return self._threads.submit("", work).result()
        except RuntimeError as error:
            raise Closing("the compilers are closed") from error

    def cancel(self, builds: Iterable[Build], architecture: str) -> None:
        """Give up the builds that no compiler has begun; one that is begun is finished, for the cache."""
        with self._lock:
            jobs = [self._jobs.get((build.digest, architecture)) for build in builds]
        for job in jobs:
            if job is not None:
                job.cancel()

    def close(self) -> None:
        """End every compiler; pending compilations are cancelled."""
        self._threads.close()
        for child in self._children:
            child.close()
        self._threads.join()
        if self._starting is not None:
            self._starting.join()

    def _run(self, build: Build, architecture: str, deadline: float | None) -> None:
        child = self._idle.pop()  # the last one used: no more are started than work at the same time
        allowed = deadline or self.deadline
        started = monotonic()
        try:
            child.call(worker_entry.compile_cubin, build, architecture, self._cache_dir, allowed, deadline=allowed)
        finally:
            self._idle.append(child)
        self._slowest = max(self._slowest or 0.0, monotonic() - started)

    def _both(self, build: Build, architecture: str, line_info: bool) -> worker_entry.CompiledBuild:
        child, allowed = self._idle.pop(), 2 * self.deadline
        try:
            found: worker_entry.CompiledBuild = child.call(
                worker_entry.compile_both, build, architecture, self._cache_dir, allowed, line_info, deadline=allowed
            )
        finally:
            self._idle.append(child)
        return found

    def _forget_a_failed_one(self, key: Key, job: Future[None]) -> None:
        if job.cancelled() or job.exception() is not None:
            with self._lock:
                if self._jobs.get(key) is job:
                    del self._jobs[key]


def _start_ahead(children: Iterable[Worker]) -> None:
    """Start children one after the other.

    The first reads from disk what the others then find in memory, and no more than one takes a core from a build.
    """
    try:
        for child in children:
            child.start()
    except Closing:
        pass
    except TilewiseError as error:
        _LOG.info("compilers are not started ahead: %s", error.message)


class _SharedCompilers:
    """A device's part in compilers that several devices share."""

    def __init__(self, compilers: Compilers, owner: str) -> None:
        self.width, self.cancel = compilers.width, compilers.cancel
        self._compilers, self._owner = compilers, owner

    def start(self, build: Build, architecture: str, deadline: float | None = None) -> Future[None]:
        """As Compilers.start."""
        return self._compilers.start(build, architecture, deadline, self._owner)

    def compile(self, build: Build, architecture: str, deadline: float | None = None) -> None:
        """As Compilers.compile."""
        self._compilers.compile(build, architecture, deadline, self._owner)
