"""A session without a service: devices and database are opened in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from rich.console import Console

import tilewise
from app.api import responses
from app.api.body.operand_files import opened_file
from app.api.formats.operand_spec import bytes_of
from app.api.params import validated
from app.api.routes import kernels as catalogue
from app.api.routes.charts.lessons import LessonsQuery, climbed
from app.api.routes.interchange.export import ExportSources
from app.api.routes.workloads.responses import WorkloadAnswer
from app.cli import matrices
from app.cli.database_session import Stored, problem_of, read_answer
from app.devices import worker_entry
from app.devices.backend import Reading
from app.dtypes import Array, numpy_dtype
from app.main import opened
from app.services.exports.service import ExportSpec
from app.services.health.cordons import OPERATOR
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.services.tuning.request import TuneSpec
from app.settings import Settings
from app.tuning.budget import Budget
from app.workloads.options import ReadOptions
from kernels import KERNELS
from kernels.problem import Problem
from tilewise import Cordon, Device, Event, Job, Kernel, Lessons, Product, ServiceFile, Workload
from tilewise.arguments import ExportArguments, ProductArguments, TuneArguments, WorkloadArguments
from tilewise.decoding import from_json
from tilewise.shapes import ShapeLike, shape_of


@contextmanager
def local(settings: Settings, who: str, console: Console) -> Iterator[Local]:
    """Open everything, say so meanwhile, and close it at the end; raises DatabaseOwned, SchemaUnknown, NoDevice."""
    status = console.status("opening the database and the devices")
    status.start()
    try:
        with opened(settings, who) as service:
            status.stop()
            yield Local(service, settings.operand_dir)
    finally:
        status.stop()


class Local(Stored):
    """The client's methods over the services of this process."""

    def __init__(self, service: Service, operands: Path | None = None) -> None:
        results = ExportSources(service.jobs, service.imports, service.stored_results, service.fleet)
        super().__init__(service.jobs, service.best, service.misses, service.fleet, results)
        self._service, self._operands = service, operands

    def multiply(self, a: ArrayLike | ServiceFile, b: ArrayLike | ServiceFile, arguments: ProductArguments) -> Product:
        """As Session.multiply."""
        a, b = self._array("a", a), self._array("b", b)
        kind = (arguments.trans_a, arguments.trans_b, arguments.precision)
        problem = Problem(**asdict(matrices.problem(a, b, *kind)))
        where = arguments.placement or "auto"
        with self._service.matmul.reserve(problem, device_id=arguments.device, placement=where) as buffers:
            buffers.a[...] = a.reshape(buffers.a.shape)
            buffers.b[...] = b.reshape(buffers.b.shape)
            made = self._service.matmul.multiply(buffers, arguments.device, arguments.kernel, verify=arguments.verify)
            c = buffers.c.copy().reshape((*a.shape[:-2], problem.m, problem.n))
        timing = {name: seconds * 1e3 for name, seconds in made.seconds.items()}
        how = (made.kernel, dict(made.config), made.match, timing, made.device.id, made.instructions)
        certificate = None if made.certificate is None else tilewise.Certificate(**made.certificate.facts())
        return Product(c, *how, made.precision, made.declined, certificate, made.devices)

    def _array(self, name: str, value: ArrayLike | ServiceFile) -> Array:
        """An operand, be it a file in the folder of operands; raises UnknownFile, InvalidMatrix."""
        if not isinstance(value, ServiceFile):
            return matrices.operand(value)
        with opened_file(self._operands, value.name, name, value.dtype) as file:
            array = np.empty(file.described.shape, numpy_dtype(file.described.dtype))
            file.read_into(bytes_of(array))
        return array

    def start_tune(self, arguments: TuneArguments) -> Job:
        """As Session.start_tune."""
        kind = (arguments.dtype, arguments.precision, arguments.trans_a, arguments.trans_b)
        problems = [tilewise.Problem(each.m, each.n, each.k, each.batch, *kind) for each in arguments.shapes]
        devices = () if arguments.device is None else (arguments.device,)
        budget = Budget(arguments.trials, arguments.seconds, arguments.gain_percent)
        search = (devices, arguments.kernels, arguments.strategy, budget)
        spec = TuneSpec(tuple(map(problem_of, problems)), *search, retune=arguments.retune)
        return read_answer(Job, responses.Job.of(self._service.tuning.submit(spec, ANONYMOUS)))

    def profile(self, problem: tilewise.Problem, *, device: str | None = None) -> Job:
        """As Client.profile."""
        return read_answer(Job, responses.Job.of(self._service.profiles.submit(problem_of(problem), device, ANONYMOUS)))

    def export_winner(self, arguments: ExportArguments) -> bytes:
        """As Session.export_winner."""
        how = (arguments.device, arguments.arch, arguments.kernel, arguments.config)
        return self._service.exports.take(ExportSpec(arguments.target, problem_of(arguments.problem), *how)).zip()

    def start_workload(self, file: Path | bytes, arguments: WorkloadArguments) -> Workload:
        """As Session.start_workload."""
        called = arguments.name or ("" if isinstance(file, bytes) else file.name)
        options = ReadOptions(arguments.dtype, arguments.precision, arguments.free)
        workloads = self._service.workloads
        with BytesIO(file) if isinstance(file, bytes) else file.open("rb") as stream:
            kept, _ = workloads.create(stream, called, arguments.source, options, ANONYMOUS)
        if arguments.tune is not None:
            _, kept = workloads.tune(kept, arguments.tune, arguments.device, ANONYMOUS)
        return read_answer(Workload, WorkloadAnswer.of(kept, workloads.report(kept, arguments.device)))

    def workload(self, workload_id: str, *, device: str | None = None) -> Workload:
        """As Session.workload."""
        kept = self._service.workloads.get(workload_id, ANONYMOUS)
        return read_answer(Workload, WorkloadAnswer.of(kept, self._service.workloads.report(kept, device)))

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

    def sensors(self, device_id: str) -> Reading | None:
        """What a device's sensors say now; None if it has none."""
        found: Reading | None = self._service.fleet.unit(device_id).trials.call(worker_entry.sensors)
        return found

    def reasons(self) -> tuple[str, ...]:
        """Why other devices of this host could not be opened."""
        return self._service.fleet.reasons

    def devices(self) -> list[Device]:
        """As Client.devices."""
        devices = (unit.device for unit in self._service.fleet.units)
        return [from_json(Device, {**asdict(device), "model": device.model}) for device in devices]

    def cordon(self, device: str, reason: str) -> Cordon:
        """As Client.cordon."""
        cordon = self._service.health.cordons.cordon(self._service.fleet.unit(device), reason, OPERATOR)
        return from_json(Cordon, {"device": device, "cordoned": True, **asdict(cordon)})

    def uncordon(self, device: str) -> Cordon:
        """As Client.uncordon."""
        self._service.health.cordons.uncordon(self._service.fleet.unit(device))
        return Cordon(device, cordoned=False)

    def kernels(self) -> list[Kernel]:
        """As Client.kernels."""
        return ladder()

    def lessons(
        self, shape: ShapeLike, *, change: Mapping[str, int] | None = None, device: str | None = None
    ) -> Lessons:
        """As Client.lessons."""
        wanted = shape_of(shape)
        told = ",".join(f"{name}={value}" for name, value in (change or {}).items()) or None
        asked = validated(LessonsQuery, {"m": wanted.m, "n": wanted.n, "k": wanted.k, "change": told})
        return read_answer(Lessons, climbed(self._service.jobs, asked, self._service.fleet.unit(device).device))


def ladder() -> list[Kernel]:
    """The kernels of this installation, as its service would tell of them: neither database nor device is opened."""
    return [read_answer(Kernel, catalogue.Summary.of(kernel)) for kernel in KERNELS.values()]
