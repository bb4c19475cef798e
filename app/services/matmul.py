"""Products: a place in the slab for operands and result, the best config, and the serving child's work on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import prod
from time import perf_counter

import numpy as np

from app.devices.base import Array
from app.devices.fleet import Fleet, Unit
from app.devices.scheduler import Priority
from app.devices.slab import Region
from app.errors import NoRoom, TooLarge, UnknownKernel, Unsupported, WrongResult
from app.services import product
from app.services.admission import Admission, Limits
from app.services.answer import Product
from app.services.best import BestConfigs, covering, default_launch
from app.services.copies import Copies
from app.services.gathering import DEADLINE, Claim, Gathering
from app.services.matrices import Draft, Resident
from app.services.passage import passage
from app.services.placement import NOWHERE, Placement
from app.services.quarantine import Quarantine
from app.services.rates import Rates
from app.services.wants import Wants
from kernels import CATALOGUE
from kernels.kernel import Build, Launch
from kernels.problem import Problem

_PAGE = 4096
_REMEMBERED = 4096  # problems


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
        kept_bytes: int = 0,
        share: float = 1.0,
        gather: int = 1,
    ) -> None:
        self.max_bytes, self.together = max_bytes, gather
        memory = {unit.device.id: unit.device.memory_bytes for unit in fleet.units}
        self.admission = Admission(Limits(queue, fleet.slab.nbytes, memory, share))
        self.copies = Copies(fleet, kept_bytes)
        self._gathering = Gathering(fleet.units, Rates(), self.copies, gather)
        self._fleet, self._best, self._quarantine, self._wants = fleet, best, quarantine, wants
        self._vendor = vendor
        self._prepared: set[tuple[str, Build]] = set()
        self._fitting: set[Problem] = set()  # problems that were found to fit: the devices do not change

    @contextmanager
    def place(
        self,
        problem: Problem,
        a: Resident | None = None,
        b: Resident | None = None,
        c: Draft | None = None,
        *,
        device_id: str | None = None,
        backed: bool = True,
    ) -> Iterator[Placement]:
        """A place in the queue, and slab bytes for what is not resident; what is must be held for as long as this is.

        Where these are not `backed`, `back` is called before they are touched.
        Raises TooLarge where the problem can never fit, NoRoom, QueueFull and OverShare where it cannot be taken now.
        """
        self._fits(problem)
        residents = (a, b, c.resident if c else None)
        sizes = (problem.a_bytes, problem.b_bytes, problem.c_bytes)
        rooms = [0 if each else _up(size) for each, size in zip(residents, sizes, strict=True)]
        with self.admission.admitted(problem.bytes, device_id) as ticket, self._lent(sum(rooms), backed) as region:
            start = region.offset
            starts = (start, start + rooms[0], start + rooms[0] + rooms[1])
            pairs = list(zip(residents, starts, strict=True))
            at_a, at_b, at_c = (each.region.offset if each else at for each, at in pairs)
            view_a = _empty(problem) if a else self._view(at_a, problem.a_shape, problem)
            view_b = _empty(problem) if b else self._view(at_b, problem.b_shape, problem)
            view_c = self._view(at_c, (problem.m, problem.n), problem)
            key_a, key_b, key_c = (each.key if each else None for each in residents)
            keys, offsets = (key_a, key_b, key_c), (at_a, at_b, at_c)
            operands = {"a": (view_a.nbytes, at_a), "b": (view_b.nbytes, at_b)}
            sent = {name: each for name, each in operands.items() if each[0]}
            with passage(self.copies, self._fleet.unit(ticket.device), sent, (view_c.nbytes, at_c)) as opened:
                yield Placement(problem, view_a, view_b, view_c, offsets, keys, c, ticket, opened, region)

    @contextmanager
    def _lent(self, nbytes: int, backed: bool) -> Iterator[Region]:
        """So many bytes of the slab; of none, none at all."""
        if not nbytes:
            yield NOWHERE
            return
        try:
            region = self._fleet.slab.lend(nbytes, backed=backed)
        except NoRoom as error:
            raise self.admission.later(error) from None
        try:
            yield region
        finally:
            self._fleet.slab.release(region)

    def back(self, placement: Placement) -> None:
        """Have the system find the pages of what was lent, and of a C that stays; raises NoRoom."""
        try:
            for region in placement.regions:
                self._fleet.slab.back(region)
        except NoRoom as error:
            raise self.admission.later(error) from None

    def is_fresh(self, placement: Placement) -> bool:
        """Whether some of these pages are still to be found."""
        return any(map(self._fleet.slab.is_fresh, placement.regions))

    def _view(self, offset: int, shape: tuple[int, int], problem: Problem) -> Array:
        whole = (problem.batch, *shape) if problem.batch > 1 else shape
        memory = self._fleet.slab.view(Region(offset, prod(whole) * problem.itemsize))
        return np.frombuffer(memory, np.dtype(problem.dtype)).reshape(whole)

    def _fits(self, problem: Problem) -> None:
        """Raise NoDevice, Unsupported, or TooLarge for what no device here can ever hold."""
        if problem in self._fitting:
            return
        covering(problem, self._fleet.unit(None).device)
        largest = max(problem.a_bytes, problem.b_bytes, problem.c_bytes)
        for unit in self._fleet.units:
            whole, one = unit.device.memory_bytes, unit.device.limits.allocation_bytes or unit.device.memory_bytes
            if problem.bytes > whole:
                raise TooLarge(f"{problem.key} takes {problem.bytes} bytes", limit=whole, size=problem.bytes)
            if largest > one:
                raise TooLarge(f"a matrix of {problem.key} takes {largest} bytes", limit=one, size=largest)
        if len(self._fitting) >= _REMEMBERED:
            self._fitting.clear()
        self._fitting.add(problem)

    def multiply(
        self,
        placement: Placement,
        device_id: str | None = None,
        kernel: str | None = None,
        claim: Claim | None = None,
    ) -> Product:
        """Fill the placement's C, by the next answer where one turns out to be wrong, and keep it where it is to stay.

        Raises UnknownDevice, UnknownKernel, Unsupported, RefusedConfig, Cancelled where the claim is, and DeviceError
        where the device failed.
        """
        claim = claim or Claim()
        try:
            made = self._served(placement, device_id, kernel, claim)
        finally:
            if placement.ticket is not None:
                placement.ticket.made()
        if placement.left is not None:
            claim.expect()  # what nobody wants any more replaces nothing
            placement.left.keep()
        return made

    def _served(self, placement: Placement, device_id: str | None, kernel: str | None, claim: Claim) -> Product:
        unit = self._fleet.unit(device_id) if device_id else self._freest(placement)
        condemned: Launch | None = None
        while True:
            name, launch, match = self._choose(placement.problem, unit, kernel)
            try:
                return self._made(placement, unit, name, launch, match, claim)
            except WrongResult as error:
                self._condemn(unit, launch, error)
                if kernel is not None or launch in {None, condemned}:
                    raise
                condemned = launch

    def _made(
        self, placement: Placement, unit: Unit, name: str, launch: Launch | None, match: str, claim: Claim
    ) -> Product:
        started = perf_counter()
        self._prepare(unit, launch)
        order, moving = product.Order(placement.problem, launch, *placement.offsets, placement.keys), placement.passage
        order = moving.ordered(order, unit) if moving else order
        spent, together = self._gathering.make(unit, order, claim)
        total = perf_counter() - started
        if moving:
            moving.made(order)
        seconds = {"h2d": spent.h2d, "kernel": spent.kernel, **({} if order.late else {"d2h": spent.d2h})}
        self.admission.pace(sum(seconds.values()) / together)
        config = dict(launch.config) if launch else {}
        return Product(unit.device, name, config, match, {"queue": total - sum(seconds.values()), **seconds}, together)

    def quiet(self) -> float:
        """Seconds since a product was asked for or made; none while one is being made."""
        return self.admission.quiet()

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
                unit.products.call(product.verify_class, launch, priority=Priority.CANARY, deadline=DEADLINE)
            except WrongResult as error:
                self._condemn(unit, launch, error)

    def _condemn(self, unit: Unit, launch: Launch | None, error: WrongResult) -> None:
        """Never serve this launch's config again."""
        if launch is not None and self._quarantine.holds(unit.device, launch.kernel, launch.config) is None:
            self._quarantine.condemn(unit.device, launch, error.message)
            self._best.changed()

    def _freest(self, placement: Placement) -> Unit:
        """The device that is free first, and of those the one that has most of the operands already."""
        first = self._fleet.unit(None)  # raises NoDevice where there is none

        def eager(unit: Unit) -> tuple[int, int]:
            ahead = placement.passage.pushed(unit) if placement.passage else 0
            return self._gathering.waiting(unit), -ahead - self.copies.held(unit, placement.keys)

        return min(self._fleet.units, key=eager, default=first)

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
            if kernel is None and self._vendor and answer.vendor_is_faster:
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
        if launch is not None and (key := (unit.device.id, launch.build)) not in self._prepared:
            unit.prepare(launch.build)
            self._prepared.add(key)


def _empty(problem: Problem) -> Array:
    """The view of an operand that has nowhere to land."""
    return np.empty(0, np.dtype(problem.dtype))


def _up(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE
