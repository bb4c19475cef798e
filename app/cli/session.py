"""Session: what a command speaks to, be it a running service or everything opened in this process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from numpy.typing import ArrayLike
from rich.console import Console

from app.cli.options import usage
from app.devices.last_devices import remembered
from app.errors import DatabaseOwned
from app.settings import Settings
from tilewise import (
    Analysis,
    Best,
    Client,
    Cordon,
    Device,
    Event,
    Import,
    Imported,
    Job,
    Kernel,
    Lessons,
    Miss,
    Page,
    Problem,
    Product,
    Profile,
    Roofline,
    ServiceFile,
    TimeGrid,
    Trial,
    Workload,
)
from tilewise.arguments import ExportArguments, ProductArguments, TuneArguments, WorkloadArguments
from tilewise.shapes import ShapeLike

T = TypeVar("T")


class Records(Protocol):
    """The client's methods that no device is needed for. Errors are as Session's."""

    def best(self, problem: Problem, *, device: str | None = None, match: Literal["exact"] | None = None) -> Best:
        """Give the best known config."""
        ...

    def tile_cost(self, problem: Problem, tile: int, kernel: str, *, device: str | None = None) -> Analysis:
        """Work out what a square tile costs."""
        ...

    def bests(
        self, *, device: str | None = None, dtype: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page[Best]:
        """List what is stored for the problems that were tuned, newest first."""
        ...

    def landscape(self, problem: Problem, *, kernel: str | None = None, device: str | None = None) -> TimeGrid:
        """Give the best time over two parameters of a kernel."""
        ...

    def profiles(
        self,
        problem: Problem | None = None,
        *,
        device: str | None = None,
        job_id: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Profile]:
        """List stored profiles, newest first."""
        ...

    def roofline(self, problem: Problem, *, points: str = "bests", device: str | None = None) -> Roofline:
        """Give a device's ceilings and where trials lie below them."""
        ...

    def misses(self, *, device: str | None = None, cursor: str | None = None, limit: int = 100) -> Page[Miss]:
        """List the shapes that were asked for most and are not tuned."""
        ...

    def dismiss_miss(self, problem: Problem, *, device: str | None = None) -> None:
        """Forget that a problem was asked for."""
        ...

    def jobs(
        self, *, state: str | None = None, kind: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page[Job]:
        """List jobs, newest first."""
        ...

    def job(self, job_id: str) -> Job:
        """Give the job as it stands."""
        ...

    def cancel(self, job_id: str) -> Job:
        """Ask that a job ends."""
        ...

    def trials(
        self,
        *,
        kernel: str | None = None,
        state: str | None = None,
        job_id: str | None = None,
        round: str | None = None,  # noqa: A002 - the parameter's name over HTTP
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Trial]:
        """List stored trials."""
        ...

    def recording(self, job_id: str) -> str:
        """Give a job's trials as a recording."""
        ...

    def export_results(
        self,
        format: str = "bundle",  # noqa: A002 - the client's name for it
        *,
        problem: Problem | None = None,
        device: str | None = None,
        kernel: str | None = None,
        job_id: str | None = None,
        import_id: str | None = None,
    ) -> bytes:
        """Give results as a file."""
        ...

    def import_results(
        self,
        data: bytes,
        format: str = "bundle",  # noqa: A002 - the client's name for it
        *,
        problem: Problem | None = None,
        device: str | None = None,
        kernel: str | None = None,
    ) -> Imported:
        """Take in a file of results."""
        ...

    def imports(self) -> list[Import]:
        """List imports."""
        ...

    def delete_import(self, import_id: str) -> None:
        """Forget an import."""
        ...


class Session(Records, Protocol):
    """The client's methods that commands use. Each raises ClientError or TilewiseError, both with `code`."""

    def multiply(self, a: ArrayLike | ServiceFile, b: ArrayLike | ServiceFile, arguments: ProductArguments) -> Product:
        """Multiply."""
        ...

    def start_tune(self, arguments: TuneArguments) -> Job:
        """Start or join a tuning job."""
        ...

    def events(self, job_id: str, after: int = 0) -> Iterator[Event]:
        """Follow a job to its end."""
        ...

    def profile(self, problem: Problem, *, device: str | None = None) -> Job:
        """Have a problem's kernels profiled."""
        ...

    def start_workload(self, file: Path | bytes, arguments: WorkloadArguments) -> Workload:
        """Count the products of a file, and begin to tune them."""
        ...

    def workload(self, workload_id: str, *, device: str | None = None) -> Workload:
        """Report on a workload."""
        ...

    def devices(self) -> list[Device]:
        """List the devices."""
        ...

    def export_winner(self, arguments: ExportArguments) -> bytes:
        """Give a winner as a zip of files."""
        ...

    def reasons(self) -> tuple[str, ...]:
        """Say why other devices could not be opened."""
        ...

    def kernels(self) -> list[Kernel]:
        """List the kernels."""
        ...

    def lessons(
        self, shape: ShapeLike, *, change: Mapping[str, int] | None = None, device: str | None = None
    ) -> Lessons:
        """Give the ladder of lessons."""
        ...

    def cordon(self, device: str, reason: str) -> Cordon:
        """Have a device refuse products and tunes."""
        ...

    def uncordon(self, device: str) -> Cordon:
        """Have a device serve again."""
        ...


class Remote(Client):
    """A running service as a session."""

    def best(self, problem: Problem, *, device: str | None = None, match: Literal["exact"] | None = None) -> Best:
        """As Records.best."""
        return self.best_config(**asdict(problem), device=device, match=match)

    def tile_cost(self, problem: Problem, tile: int, kernel: str, *, device: str | None = None) -> Analysis:
        """As Records.tile_cost."""
        return self.analysis(problem.shape, tile=tile, dtype=problem.dtype, kernel=kernel, device=device)

    def multiply(self, a: ArrayLike | ServiceFile, b: ArrayLike | ServiceFile, arguments: ProductArguments) -> Product:
        """As Session.multiply."""
        return self.product(a, b, **asdict(arguments))

    def start_tune(self, arguments: TuneArguments) -> Job:
        """As Session.start_tune."""
        return self.tune(**_members(arguments))

    def start_workload(self, file: Path | bytes, arguments: WorkloadArguments) -> Workload:
        """As Session.start_workload."""
        return self.create_workload(file, **_members(arguments))

    def export_winner(self, arguments: ExportArguments) -> bytes:
        """As Session.export_winner."""
        return self.take(**_members(arguments))


def _members(arguments: TuneArguments | WorkloadArguments | ExportArguments) -> dict[str, Any]:
    """The arguments of the client's method, by their names."""
    return {field.name: getattr(arguments, field.name) for field in fields(arguments)}


@contextmanager
def session(settings: Settings, url: str | None, who: str, console: Console) -> Iterator[Session]:
    """Speak to the service at `url`, or to the one that has the database open, or open everything here.

    `who` names the command to another process that finds the database owned.
    """
    with ExitStack() as stack:
        if url:
            yield stack.enter_context(_client(url))
            return
        from app.cli.local_session import local  # noqa: PLC0415 - HTTP needs no whole service

        yield _opened(stack, lambda: local(settings, f"pid {os.getpid()} ({who})", console), console)


@contextmanager
def records(settings: Settings, url: str | None, who: str, console: Console) -> Iterator[Records]:
    """As session, for what needs no device: without a service the database alone is opened."""
    with ExitStack() as stack:
        if url:
            yield stack.enter_context(_client(url))
            return
        from app.cli.database_session import stored  # noqa: PLC0415 - HTTP needs no database

        yield _opened(stack, lambda: stored(settings, f"pid {os.getpid()} ({who})"), console)


def open_for_devices(
    settings: Settings, url: str | None, who: str, console: Console
) -> AbstractContextManager[Records]:
    """As records where this host's devices are known, and as session, which opens them, where they are not."""
    if url or remembered(settings.cache, settings.devices) is not None:
        return records(settings, url, who, console)
    return session(settings, url, who, console)


def _opened(stack: ExitStack, here: Callable[[], AbstractContextManager[T]], console: Console) -> T | Remote:
    """What is opened here, or a client of the service that has the database open.

    Raises DatabaseOwned if its owner is no service.
    """
    try:
        return stack.enter_context(here())
    except DatabaseOwned as owned:
        address = address_of(str(owned.facts.get("owner", "")))
        if address is None:
            raise
        console.print(f"[dim]speaking to the service at {address}, which has the database open[/]", soft_wrap=True)
    return stack.enter_context(_client(address))


def address_of(owner: str) -> str | None:
    """Where the owner of a database listens, by what it says of itself; None if it is no service."""
    found = re.search(r" at ((?:https?|unix)://\S+)", owner)
    everywhere = {"//0.0.0.0:": "//127.0.0.1:", "//[::]:": "//[::1]:"}
    address = found.group(1) if found else None
    for one, loopback in everywhere.items():
        address = address and address.replace(one, loopback)
    return address


def _client(url: str) -> Remote:
    with usage():
        return Remote(url)
