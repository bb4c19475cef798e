"""A session with no service: everything is opened in this process, under the database's owner lock."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TypeVar

from numpy.typing import ArrayLike
from rich.console import Console

from app.api import answers, catalogue, tried
from app.client import Best, Device, Event, Job, Kernel, Product, Shape, Trial, matrices
from app.client.reading import read
from app.errors import Invalid
from app.main import Service, opened
from app.services.principal import ANONYMOUS
from app.services.tuning import TuneOrder
from app.settings import Settings
from kernels import CATALOGUE
from kernels.problem import Problem

T = TypeVar("T")


@contextmanager
def local(settings: Settings, who: str, console: Console) -> Iterator[Local]:
    """Open everything, say so meanwhile, and close it at the end; raises DatabaseOwned, SchemaUnknown, NoDevice."""
    status = console.status("opening the database and the devices")
    status.start()
    try:
        with opened(settings, who) as service:
            status.stop()
            yield Local(service)
    finally:
        status.stop()


class Local:
    """The client's methods over the services of this process."""

    def __init__(self, service: Service) -> None:
        self._service = service

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
        """As Client.product."""
        a, b = matrices.operand(a), matrices.operand(b)
        problem = Problem(**asdict(matrices.problem(a, b, trans_a, trans_b, precision)))
        with self._service.matmul.place(problem) as placement:
            placement.a[...] = a.reshape(placement.a.shape)
            placement.b[...] = b.reshape(placement.b.shape)
            made = self._service.matmul.multiply(placement, device, kernel)
            c = placement.c.copy().reshape((*a.shape[:-2], problem.m, problem.n))
        timing = {name: seconds * 1e3 for name, seconds in made.seconds.items()}
        how = (made.kernel, dict(made.config), made.match, timing, made.device.id, made.instructions)
        return Product(c, *how, made.precision, made.declined)

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
        """As Client.tune."""
        problems = (_problem(each, dtype, precision, trans_a, trans_b) for each in shapes)
        names = None if kernels is None else tuple(kernels)
        order = TuneOrder(tuple(problems), device, names, strategy, trials, seconds, gain, retune)
        return _as(Job, answers.Job.of(self._service.tuning.submit(order, ANONYMOUS)))

    def job(self, job_id: str) -> Job:
        """As Client.job."""
        return _as(Job, answers.Job.of(self._service.jobs.get(job_id)))

    def events(self, job_id: str, after: int = 0) -> Iterator[Event]:
        """As Client.events."""
        changed = threading.Event()
        unsubscribe = self._service.jobs.subscribe(job_id, changed.set)
        try:
            while True:
                changed.clear()
                for event in self._service.jobs.events(job_id, after):
                    after = event.id
                    yield Event(event.id, event.name, event.data)
                    if event.name == "end":
                        return
                changed.wait()
        finally:
            unsubscribe()

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
        """As Client.best_config."""
        problem = _problem(Shape(m, n, k, batch), dtype, precision, trans_a, trans_b)
        answer = self._service.best.answer(problem, device, exact=exact)
        self._service.wants.noted(answer)
        return _as(Best, answers.Best.of(answer))

    def trials(self, *, job_id: str | None = None, after: int = 0, limit: int = 100) -> list[Trial]:
        """As Client.trials."""
        return [
            _as(Trial, tried.Trial.of(row))
            for row in self._service.jobs.trials(job_id=job_id, after=after, limit=limit)
        ]

    def recording(self, job_id: str) -> str:
        """As Client.recording."""
        return self._service.jobs.recordings(job_id=job_id)

    def devices(self) -> list[Device]:
        """As Client.devices."""
        devices = (unit.device for unit in self._service.fleet.units)
        return [read(Device, {**asdict(device), "model": device.model}) for device in devices]

    def kernels(self) -> list[Kernel]:
        """As Client.kernels."""
        return ladder()


def ladder() -> list[Kernel]:
    """The kernels of this installation, as its service would tell of them: neither database nor device is opened."""
    return [_as(Kernel, catalogue.Summary.of(kernel)) for kernel in CATALOGUE.values()]


def _as(kind: type[T], answer: answers.Answer) -> T:
    """What the service would answer, as its client reads it: so both kinds of session say the same."""
    return read(kind, answer.model_dump(mode="json"))


def _problem(shape: Shape, dtype: str, precision: str, trans_a: bool, trans_b: bool) -> Problem:
    try:
        return Problem(shape.m, shape.n, shape.k, shape.batch, dtype, precision, trans_a, trans_b)
    except ValueError as error:
        raise Invalid(str(error)) from error
