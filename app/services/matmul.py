"""Products: a place in the slab for operands and result, the best config, and the serving child's work on them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic, perf_counter

from app.devices.base import Array
from app.devices.fleet import Fleet, Unit
from app.devices.scheduler import Priority
from app.errors import QueueFull, TooLarge, UnknownKernel, Unsupported, WrongResult
from app.services import product
from app.services.best import Answer, BestConfigs, covering, default_launch
from app.services.quarantine import Quarantine
from app.services.wants import Wants
from kernels import CATALOGUE
from kernels.device import Device
from kernels.kernel import Launch
from kernels.problem import Problem

_PAGE = 4096
_DEADLINE = 150.0  # seconds a product may take before its first phase is named: a child's start and a compilation


@dataclass(frozen=True, slots=True)
class Placement:
    """A, B and C of one problem in the slab, as NumPy views (as stored; three-dimensional where batch > 1)."""

    problem: Problem
    a: Array
    b: Array
    c: Array
    offsets: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Product:
    """What made a product: the device, the kernel with its config, how exact that answer was.

    `seconds` has queue (everything before the copies: waiting, and compiling at a first use), h2d, kernel and d2h.
    """

    device: Device
    kernel: str
    config: dict[str, int]
    match: str
    seconds: dict[str, float]


class Matmul:
    """Serves products. Methods block: call them in a thread."""

    def __init__(
        self,
        fleet: Fleet,
        best: BestConfigs,
        quarantine: Quarantine,
        wants: Wants,
        *,
        queue: int,
        max_bytes: int,
        vendor: bool,
    ) -> None:
        self.max_bytes = max_bytes
        self._fleet, self._best, self._quarantine, self._wants = fleet, best, quarantine, wants
        self._last = monotonic()
        self._queue, self._vendor = queue, vendor
        self._waiting = 0
        self._lock = threading.Lock()
        self._prepared: set[tuple[str, str]] = set()

    @contextmanager
    def place(self, problem: Problem) -> Iterator[Placement]:
        """Lend slab bytes for a problem; raises TooLarge where it can never fit, NoRoom where it cannot now."""
        self._fits(problem)
        starts = (0, _up(problem.a_bytes), _up(problem.a_bytes) + _up(problem.b_bytes))
        slab = self._fleet.slab
        region = slab.lend(starts[2] + _up(problem.c_bytes))
        try:
            memory = slab.view(region)
            shapes = (problem.a_shape, problem.b_shape, (problem.m, problem.n))
            a, b, c = (_shaped(memory, *where, problem) for where in zip(starts, shapes, strict=True))
            offsets = (region.offset, region.offset + starts[1], region.offset + starts[2])
            yield Placement(problem, a, b, c, offsets)
        finally:
            slab.release(region)

    def _fits(self, problem: Problem) -> None:
        """Raise NoDevice, Unsupported, or TooLarge for what no device here can ever hold."""
        covering(problem, self._fleet.unit(None).device)
        largest = max(problem.a_bytes, problem.b_bytes, problem.c_bytes)
        for unit in self._fleet.units:
            whole, one = unit.device.memory_bytes, unit.device.limits.allocation_bytes or unit.device.memory_bytes
            if problem.bytes > whole:
                raise TooLarge(f"{problem.key} takes {problem.bytes} bytes", limit=whole, size=problem.bytes)
            if largest > one:
                raise TooLarge(f"a matrix of {problem.key} takes {largest} bytes", limit=one, size=largest)

    def multiply(self, placement: Placement, device_id: str | None = None, kernel: str | None = None) -> Product:
        """Fill the placement's C, by the next answer where one turns out to be wrong.

        Raises UnknownDevice, UnknownKernel, Unsupported, RefusedConfig, QueueFull, and DeviceError where the device
        failed.
        """
        with self._admitted():
            unit = self._fleet.unit(device_id) if device_id else self._freest()
            condemned: Launch | None = None
            while True:
                name, launch, match = self._choose(placement.problem, unit, kernel)
                try:
                    return self._made(placement, unit, name, launch, match)
                except WrongResult as error:
                    self._condemn(unit, launch, error)
                    if kernel is not None or launch in {None, condemned}:
                        raise
                    condemned = launch

    def _made(self, placement: Placement, unit: Unit, name: str, launch: Launch | None, match: str) -> Product:
        started = perf_counter()
        self._prepare(unit, launch)
        order = product.Order(placement.problem, launch, *placement.offsets)
        spent = unit.products.call(product.multiply, order, priority=Priority.PRODUCT, deadline=_DEADLINE)
        total = perf_counter() - started
        seconds = {"h2d": spent.h2d, "kernel": spent.kernel, "d2h": spent.d2h}
        config = dict(launch.config) if launch else {}
        return Product(unit.device, name, config, match, {"queue": total - sum(seconds.values()), **seconds})

    def quiet(self) -> float:
        """Seconds since a product was asked for or made; none while one is being made."""
        return 0.0 if self._waiting else monotonic() - self._last

    def verify_defaults(self) -> None:
        """Verify every device's float32 defaults, so that the first product need not wait; raises DeviceError.

        One that answers wrong is quarantined: others are served in its place.
        """
        problem = Problem(256, 256, 256)
        for unit in self._fleet.units:
            for kernel in covering(problem, unit.device):
                with suppress(Unsupported):  # a device that allows no config of a kernel is not served by it
                    self._verify(unit, default_launch(kernel, problem, unit.device))

    def _verify(self, unit: Unit, launch: Launch) -> None:
        if self._quarantine.holds(unit.device, launch.kernel, launch.config) is None:
            self._prepare(unit, launch)
            try:
                unit.products.call(product.verify_class, launch, priority=Priority.CANARY, deadline=_DEADLINE)
            except WrongResult as error:
                self._condemn(unit, launch, error)

    def _condemn(self, unit: Unit, launch: Launch | None, error: WrongResult) -> None:
        """Never serve this launch's config again."""
        if launch is not None and self._quarantine.holds(unit.device, launch.kernel, launch.config) is None:
            self._quarantine.condemn(unit.device, launch, error.message)
            self._best.changed()

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        with self._lock:
            if self._waiting >= self._queue:
                raise QueueFull(f"{self._waiting} products wait already", limit=self._queue, size=self._waiting)
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                self._last = monotonic()

    def _freest(self) -> Unit:
        first = self._fleet.unit(None)  # raises NoDevice where there is none
        return min(self._fleet.units, key=lambda unit: unit.lease.waiting, default=first)

    def _choose(self, problem: Problem, unit: Unit, kernel: str | None) -> tuple[str, Launch | None, str]:
        if kernel == "vendor":
            if unit.vendor.name is None:
                raise Unsupported(f"no vendor library on {unit.device.id}: {unit.vendor.reason}")
            return "vendor", None, "exact"
        if kernel is not None and kernel not in CATALOGUE:
            raise UnknownKernel(f"there is no kernel {kernel}; there are {', '.join(CATALOGUE)} and vendor")
        answer = self._best.answer(problem, unit.device.id)
        if kernel is None:
            self._wants.noted(answer)
        if kernel is None or kernel == answer.kernel:
            if kernel is None and self._vendor and _vendor_is_faster(answer):
                return "vendor", None, answer.match
            return answer.kernel, answer.launch, answer.match
        return self._forced(kernel, problem, unit)

    def _forced(self, name: str, problem: Problem, unit: Unit) -> tuple[str, Launch, str]:
        record, kernel = self._best.record(unit.device.model, problem), CATALOGUE[name]
        unsuited = kernel.refusal(problem, unit.device)
        if unsuited is not None:
            raise Unsupported(f"{name} does not compute {problem.key} on {unit.device.id}: {unsuited}")
        trial = getattr(record, name, None) if record else None
        if trial is not None and trial.state == "measured":
            launch = kernel.launch(kernel.space.config(trial.config), problem, unit.device)
            if self._quarantine.holds(unit.device, name, launch.config) is None:
                return name, launch, "exact"
        launch = default_launch(kernel, problem, unit.device)
        reason = self._quarantine.holds(unit.device, name, launch.config)
        if reason is not None:
            raise WrongResult(f"{name} {launch.config} is quarantined on {unit.device.id}: {reason}")
        return name, launch, "default"

    def _prepare(self, unit: Unit, launch: Launch | None) -> None:
        if launch is not None and (key := (unit.device.id, launch.build.digest)) not in self._prepared:
            unit.prepare(launch.build)
            self._prepared.add(key)


def _vendor_is_faster(answer: Answer) -> bool:
    vendor = answer.baselines["vendor"].timing if answer.baselines else None
    return vendor is not None and answer.timing is not None and vendor.median_ms < answer.timing.median_ms


def _shaped(memory: memoryview, start: int, shape: tuple[int, int], problem: Problem) -> Array:
    count = problem.batch * shape[0] * shape[1]
    return product.view(memory, start, problem, count).reshape((problem.batch, *shape) if problem.batch > 1 else shape)


def _up(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE
