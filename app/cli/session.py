"""Session: what a command speaks to, be it a running service or everything opened in this process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from numpy.typing import ArrayLike
from rich.console import Console

from app.cli.options import usage
from app.client import Best, Client, Device, Event, Job, Kernel, Product, Shape, Trial
from app.settings import Settings


class Session(Protocol):
    """The client's methods that commands use. Each raises ClientError or TilewiseError, both with `code`."""

    def product(
        self,
        a: ArrayLike,
        b: ArrayLike,
        trans_a: bool = False,
        trans_b: bool = False,
        device: str | None = None,
        kernel: str | None = None,
        precision: str = "strict",
    ) -> Product:
        """Multiply."""
        ...

    def tune(
        self,
        shapes: Iterable[Shape],
        *,
        dtype: str = "float32",
        precision: str = "strict",
        trans_a: bool = False,
        trans_b: bool = False,
        device: str | None = None,
        kernels: Iterable[str] | None = None,
        strategy: str = "auto",
        trials: int | None = None,
        seconds: float | None = None,
        gain: float | None = None,
        retune: bool = False,
    ) -> Job:
        """Start or join a tuning job."""
        ...

    def job(self, job_id: str) -> Job:
        """Give the job as it stands."""
        ...

    def events(self, job_id: str, after: int = 0) -> Iterator[Event]:
        """Follow a job to its end."""
        ...

    def best_config(
        self,
        m: int,
        n: int,
        k: int,
        *,
        batch: int = 1,
        dtype: str = "float32",
        precision: str = "strict",
        trans_a: bool = False,
        trans_b: bool = False,
        device: str | None = None,
        exact: bool = False,
    ) -> Best:
        """Give the best known config."""
        ...

    def trials(self, *, job_id: str | None = None, after: int = 0, limit: int = 100) -> list[Trial]:
        """List stored trials."""
        ...

    def recording(self, job_id: str) -> str:
        """Give a job's trials as a recording."""
        ...

    def devices(self) -> list[Device]:
        """List the devices."""
        ...

    def kernels(self) -> list[Kernel]:
        """List the kernels."""
        ...


@contextmanager
def session(settings: Settings, url: str | None, who: str, console: Console) -> Iterator[Session]:
    """Speak to the service at `url`, or without one open everything here under the database's owner lock.

    `who` names the command to another process that finds the database owned.
    """
    if url:
        with usage():
            client = Client(url)
        with client:
            yield client
        return
    from app.cli.local import local  # noqa: PLC0415 - a command that speaks HTTP need not load the whole service

    with local(settings, f"pid {os.getpid()} ({who})", console) as here:
        yield here
