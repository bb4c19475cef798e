"""Products: reserves buffers, chooses a kernel, queues the launch, and falls back to a lower kernel where one fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from math import prod
from time import monotonic, perf_counter
from typing import Final

import numpy as np

from app.devices.fleet import Fleet, Unit
from app.devices.process import PendingCall
from app.devices.slab import SlabRegion
from app.dtypes import Array, numpy_dtype
from app.errors import ChildDied, ChildLost, DeviceCordoned, DeviceError, NoRoom, Unsupported
from app.services.access.usage import DeviceSeconds
from app.services.best.lookup import BestConfigs
from app.services.best.misses import MissCounter
from app.services.best.quarantine import Quarantine
from app.services.matmul.admission import Admission, AdmissionLimits
from app.services.matmul.batching import BatchCostModel, DynamicBatcher
from app.services.matmul.buffers import NOWHERE, OperandBuffers, Product
from app.services.matmul.certificates.certificate import Certifier
from app.services.matmul.chunked_transfer import LARGE, ChunkedTransfer
from app.services.matmul.device_cache import DeviceCacheDirectory
from app.services.matmul.device_queue import BuildDeadlines, CancelToken, PendingBuilds
from app.services.matmul.kernel_choice import (
    FailedAttempts,
    KernelChoice,
    KernelSelector,
    ServingFailures,
    another_may_do,
    strictly,
)
from app.services.matmul.placement import Placement, ProductPlanner, TileMaker
from app.services.matmul.resident_matrices import PendingMatrix, ResidentMatrix
from app.services.matmul.tiles.memory import DeviceMemory
from app.services.matmul.tiles.walk import TileWalk
from app.services.principal import ANONYMOUS, Principal
from app.worker.serving import product
from app.worker.serving.product import MultiplyResult
from kernels.fp32_emulation import reason
from kernels.launch import Build, Launch
from kernels.problem import Problem

_LOG: Final = logging.getLogger(__name__)
AT_ONCE: Final = 2**16  # bytes of a product that is made in less time than a thread takes to be woken
_PAGE: Final = 4096
_PATIENCE: Final = 20.0  # seconds at least for a launch's first use, which leaves a client's patience for the next one


class MatmulService:
    """Serves products. All methods but `is_small` and `begin` block: call them in a thread."""

    def __init__(
        self,
        fleet: Fleet,
        best: BestConfigs,
        quarantine: Quarantine,
        misses: MissCounter,
        *,
        queue: int,
        max_bytes: int,
        vendor: bool,
        kept_bytes: int = 0,
        share: float = 1.0,
        max_batch: int = 1,
        device_bytes: int | None = None,
        costs: BatchCostModel | None = None,
    ) -> None:
        self.max_bytes, self.together = max_bytes, max_batch
        memory = {unit.device.id: unit.device.memory_bytes for unit in fleet.units}
        self.admission = Admission(AdmissionLimits(queue, fleet.slab.nbytes, memory, share))
        self.used, self.device_cache = DeviceSeconds("products"), DeviceCacheDirectory(fleet, kept_bytes)
        self.batcher = DynamicBatcher(fleet.units, costs or BatchCostModel(), self.device_cache, max_batch)
        self._fleet, self._best, self._quarantine = fleet, best, quarantine
        self._selector = KernelSelector(best, quarantine, misses, vendor=vendor)
        self.failures, self.deadlines = ServingFailures(quarantine, best), BuildDeadlines()
        self.made_at: dict[str, float] = {}  # when a device made its last product, by the monotonic clock
        self._prepared, self.builds = set[tuple[str, Build]](), PendingBuilds()
        self.memory = DeviceMemory(fleet, device_bytes)
        self.planner = ProductPlanner(self.memory, best, self._usable)

    def expect_place(self, principal: Principal) -> None:
        """Raise QueueFull, OverShare or DeviceTimeUsed if any product of a principal would be refused now."""
        self.used.expect(principal, principal.quota.product_seconds_per_hour)
        self.admission.expect_place(principal)

    @contextmanager
    def reserve(
        self,
        problem: Problem,
        a: ResidentMatrix | None = None,
        b: ResidentMatrix | None = None,
        c: PendingMatrix | None = None,
        *,
        device_id: str | None = None,
        committed: bool = True,
        stacked: bool = False,
        principal: Principal = ANONYMOUS,
        placement: Placement = "auto",
    ) -> Iterator[OperandBuffers]:
        """A place in the queue, and buffers for what is not resident; the caller pins resident matrices meanwhile.

        If they are not `committed`, call `commit` before they are touched. Raises TooLarge if the problem can never
        fit, NoRoom, QueueFull, OverShare and DeviceTimeUsed if it cannot be admitted now, and as ProductPlanner.plan.
        """
        self.used.expect(principal, principal.quota.product_seconds_per_hour)
        resident = a is not None or b is not None
        plan = self.planner.plan(problem, placement, device_id, resident=resident, arriving=not committed)
        kept = (a, b, c.resident if c else None)
        sizes = (problem.a_bytes, problem.b_bytes, problem.c_bytes)
        rooms = [0 if each else _up(size) for each, size in zip(kept, sizes, strict=True)]
        with (
            self.admission.admitted(problem.bytes, device_id, principal, self.memory.device_bytes(problem)) as ticket,
            self._slab_bytes(sum(rooms), committed) as region,
        ):
            starts = (region.offset, region.offset + rooms[0], region.offset + rooms[0] + rooms[1])
            at_a, at_b, at_c = (each.region.offset if each else at for each, at in zip(kept, starts, strict=True))
            view_a = _empty(problem) if a else self._view(at_a, problem.a_shape, problem)
            view_b = _empty(problem) if b else self._view(at_b, problem.b_shape, problem)
            view_c = self._view(at_c, (problem.m, problem.n), problem)
            key_a, key_b, key_c = (each.key if each else None for each in kept)
            keys, offsets = (key_a, key_b, key_c), (at_a, at_b, at_c)
            operands = zip("ab", (view_a, view_b), (at_a, at_b), strict=True)
            sent = {name: (view.nbytes, at) for name, view, at in operands if view.size}
            copies = self.device_cache, self._fleet.unit(ticket.device), sent, (view_c.nbytes, at_c)
            is_large = plan.tiles is None and max(view_a.nbytes + view_b.nbytes, view_c.nbytes) > LARGE
            with closing(ChunkedTransfer(*copies)) if is_large else nullcontext() as transfer:
                views = view_a, view_b, view_c
                yield OperandBuffers(problem, *views, offsets, keys, c, ticket, transfer, region, stacked, plan=plan)

    @contextmanager
    def _slab_bytes(self, nbytes: int, committed: bool) -> Iterator[SlabRegion]:
        """Bytes of the slab; of 0 bytes none at all."""
        if not nbytes:
            yield NOWHERE
            return
        try:
            region = self._fleet.slab.lend(nbytes, committed=committed)
        except NoRoom as error:
            raise self.admission.with_retry_after(error) from None
        try:
            yield region
        finally:
            self._fleet.slab.release(region)

    def commit(self, buffers: OperandBuffers) -> None:
        """Commit the pages of the buffers, and of a C that stays resident; raises NoRoom."""
        try:
            for region in buffers.regions:
                self._fleet.slab.commit(region)
        except NoRoom as error:
            raise self.admission.with_retry_after(error) from None

    def is_uncommitted(self, buffers: OperandBuffers) -> bool:
        """Whether some of the pages are not committed yet."""
        return any(map(self._fleet.slab.is_uncommitted, buffers.regions))

    def _view(self, offset: int, shape: tuple[int, int], problem: Problem) -> Array:
        whole = (problem.batch, *shape) if problem.batch > 1 else shape
        memory = self._fleet.slab.view(SlabRegion(offset, prod(whole) * problem.itemsize))
        return np.ndarray(whole, numpy_dtype(problem.dtype), memory)

    def certifier(self, buffers: OperandBuffers) -> Certifier:
        """What certifies a product, from the time on at which its operands begin to arrive; its user closes it."""
        problem = buffers.problem
        places = zip(buffers.offsets, (problem.a_shape, problem.b_shape, (problem.m, problem.n)), strict=True)
        devices = () if buffers.plan.tiles else tuple(unit.device for unit in self._fleet.units)
        views = (self._view(*each, problem) for each in places)
        return buffers.certifier or Certifier(problem, *views, devices=devices)

    def multiply(
        self,
        buffers: OperandBuffers,
        device_id: str | None = None,
        kernel: str | None = None,
        token: CancelToken | None = None,
        verify: str | None = None,
    ) -> Product:
        """Make C in its buffer, by the next kernel if one fails, and keep it if it is to stay resident.

        With `verify` it has a certificate, for which the operands are read meanwhile, or were as they arrived.
        Raises UnknownDevice, UnknownKernel, Unsupported, RefusedConfig, Cancelled where the token is, and DeviceError
        where the device failed, CertificateFailed among them.
        """
        token, certifier = token or CancelToken(), self.certifier(buffers) if verify else None
        with closing(certifier) if certifier else nullcontext():
            if certifier is not None:
                buffers = replace(buffers, certifier=certifier)
                certifier.operands_are_there()
                if buffers.transfer is not None and buffers.pending_result is None:
                    buffers.transfer.keep_on_device()
            try:
                made = self._multiply_planned(buffers, device_id, kernel, token)
            finally:
                if buffers.ticket is not None:
                    buffers.ticket.leave_queue()
            made = made if certifier is None else made.certified(certifier, buffers.transfer)
        if buffers.pending_result is not None:
            token.raise_if_cancelled()  # a cancelled result replaces no matrix
            buffers.pending_result.keep()
        return made

    def _multiply_planned(
        self, buffers: OperandBuffers, device_id: str | None, kernel: str | None, token: CancelToken
    ) -> Product:
        """Make the product as a whole, or in its tiles, each from a device's queue as any other product."""
        tiles, units = buffers.plan.tiles, buffers.plan.units
        if tiles is None:
            return self._multiply_or_fall_back(buffers, device_id, kernel, token)
        if device_id or not units:
            units = (self._fleet.unit(device_id) if device_id else self._soonest(buffers),)
        with closing(TileWalk(buffers, tiles, self.device_cache, units, self.memory.product_bytes)) as walk:
            return TileMaker(
                walk, lambda part, unit: self._multiply_or_fall_back(part, unit.device.id, kernel, token)
            ).product()

    def is_small(self, buffers: OperandBuffers) -> bool:
        """Whether a product is one for `begin`: it touches little, and no resident matrix."""
        bare = buffers.transfer is None and buffers.pending_result is None and buffers.keys == (None, None, None)
        return bare and buffers.problem.bytes <= AT_ONCE

    def begin(
        self, buffers: OperandBuffers, device_id: str | None, started: float
    ) -> PendingCall[Product | None] | None:
        """Begin a small product whose device is free; None for any other: `multiply` makes it.

        Nothing here blocks. The pending call gives None if `multiply` is to make the product again. The time since
        `started`, by perf_counter, counts as its wait. Raises UnknownDevice, Unsupported.
        """
        unit = self._fleet.unit(device_id) if device_id else self._soonest(buffers)
        if self.batcher.waiting(unit) or not self._selector.ready(buffers.problem, unit):
            return None
        choice = self._selector.choose(buffers.problem, unit, None, counted=False)
        if choice.launch is None or not self.builds.is_built(unit, choice.launch):
            return None
        allowed = self.deadlines.seconds(unit, _PATIENCE)
        request = product.MultiplyRequest(choice.problem, choice.launch, *buffers.offsets, allowed=allowed)
        pending = self.batcher.begin(unit, request)
        if pending is None:
            return None
        return pending.then(lambda finish: self._finish(buffers, unit, choice, finish, started))

    def _finish(
        self,
        buffers: OperandBuffers,
        unit: Unit,
        choice: KernelChoice,
        finish: Callable[[], MultiplyResult],
        started: float,
    ) -> Product | None:
        try:
            result = finish()
        except DeviceError as error:  # `multiply` takes the next kernel
            self.failures.record(unit, choice.launch, error)
            return None
        if result.decline_flags:
            return None
        self.deadlines.learn(unit, result.build)
        self.made_at[unit.device.id] = monotonic()
        self._selector.count(buffers.problem, unit)
        self._account(buffers, result.spent)
        if buffers.ticket is not None:
            buffers.ticket.leave_queue()
        made = choice.product(unit, result, 1, started)
        made.trace(started)
        return made

    def _multiply_or_fall_back(
        self, buffers: OperandBuffers, device_id: str | None, kernel: str | None, token: CancelToken
    ) -> Product:
        """Make the product by the best config, else by the kernels below it in turn, from the same operands."""
        started, unit = perf_counter(), self._fleet.unit(device_id) if device_id else self._soonest(buffers)
        problem, declined, attempts = buffers.problem, None, FailedAttempts()
        while True:
            choice = self._chosen(buffers, problem, unit, kernel, attempts)
            began, lost = perf_counter(), attempts.seconds
            try:
                with self.builds.place(unit, choice.launch) as has_place:
                    if not (has_place or kernel):
                        choice = self._selector.lowest(choice, unit) or choice
                    result, together = self._launch_with_retry(buffers, unit, choice, token, attempts)
            except DeviceError as error:
                if choice.had_following and not buffers.is_lost_tile(error):
                    attempts.is_alone = True  # whose fault it was shows then
                    continue
                kind = self.failures.record(unit, choice.launch, error)
                is_gone = isinstance(error, DeviceCordoned | ChildLost) and device_id is None
                if is_gone and (other := self._soonest(buffers)) != unit:
                    unit = other
                    continue
                if kernel is not None or not another_may_do(error) or buffers.is_lost_tile(error):
                    raise
                _LOG.warning("%s failed to make %s (%s): %s", choice.kernel, problem.key, kind, error.message)
                attempts.failed(choice, error, lost + perf_counter() - began)
                continue
            if not result.decline_flags:
                self.deadlines.learn(unit, result.build)
                self.made_at[unit.device.id] = monotonic()
                choice = replace(choice, declined=choice.declined or declined)
                made = choice.product(unit, result, together, started, attempts.seconds)
                made.trace(started)
                return made
            problem, kernel, declined = strictly(problem), None, reason(result.decline_flags)

    def _chosen(
        self, buffers: OperandBuffers, problem: Problem, unit: Unit, kernel: str | None, attempts: FailedAttempts
    ) -> KernelChoice:
        """The next kernel to try; raises the first failure if none is left."""
        if attempts.first is None:
            choice = self._selector.choose(problem, unit, kernel, whole=buffers.whole)
            if buffers.more is None or attempts.is_alone or not choice.may_follow:
                return choice
            return replace(choice, feed=self._selector.feed(buffers.more, unit, kernel, self.builds))
        with suppress(Unsupported):
            return self._selector.below(problem, unit, attempts.configs)
        if problem.precision == "emulated":
            why = f"what emulates it failed: {attempts.first.message}"
            with suppress(Unsupported):
                return replace(self._selector.below(strictly(problem), unit, attempts.configs), declined=why)
        raise attempts.first

    def _launch_with_retry(
        self, buffers: OperandBuffers, unit: Unit, choice: KernelChoice, token: CancelToken, attempts: FailedAttempts
    ) -> tuple[MultiplyResult, int]:
        """As `_launch`, once more if a signal from outside killed the worker: that is not the kernel's fault."""
        try:
            return self._launch(buffers, unit, choice, token, attempts)
        except ChildDied as error:
            token.raise_if_cancelled()
            if not error.facts.get("outside") or buffers.is_lost_tile(error):
                raise
            _LOG.warning("%s; the product is made once more", error.message)
            return self._launch(buffers, unit, choice, token, attempts)

    def _launch(
        self, buffers: OperandBuffers, unit: Unit, choice: KernelChoice, token: CancelToken, attempts: FailedAttempts
    ) -> tuple[MultiplyResult, int]:
        allowed = self.deadlines.seconds(unit, _PATIENCE)
        attempts.seconds += self._prepare(unit, choice.launch, allowed)
        request, transfer = choice.request(buffers, allowed), buffers.transfer
        request = transfer.attach_to(request, unit) if transfer else request
        result, together = self.batcher.run(unit, request, token, buffers.principal, choice.feed)
        self.builds.learn(unit, choice.launch)
        buffers.take_sketch(result)
        if transfer and not result.decline_flags:
            transfer.mark_used(request, result)
        self._account(buffers, result.spent / together)
        return result, together

    def _account(self, buffers: OperandBuffers, seconds: float) -> None:
        """Learn how long the device was busy with a product, and count it as its principal's."""
        self.admission.learn(seconds)
        if buffers.ticket is not None:
            principal = buffers.ticket.principal
            self.used.spend(principal, principal.quota.product_seconds_per_hour, seconds)

    def idle_seconds(self) -> float:
        """Seconds since a product was admitted or made; 0 while one is in the queue."""
        return self.admission.idle_seconds()

    def _soonest(self, buffers: OperandBuffers) -> Unit:
        """The device that will end a product first, by its queue and forecast."""
        self._fleet.unit(None)  # raises NoDevice if there is none

        def present(unit: Unit) -> int:
            ahead = buffers.transfer.uploaded_bytes(unit) if buffers.transfer else 0
            return ahead + self.device_cache.cached_bytes(unit, buffers.keys)

        return self.batcher.soonest(self._usable(), buffers.problem, self._selector.launch, present)

    def _usable(self) -> Sequence[Unit]:
        """The devices that take products; all, if none does: each says why."""
        unready = self._quarantine.unready
        usable = [unit for unit in self._fleet.units if unit.takes_products and unit.device.id not in unready]
        return usable or self._fleet.units

    def _prepare(self, unit: Unit, launch: Launch | None, allowed: float) -> float:
        """Compile a launch ahead, if its device does that outside its worker; gives the seconds that it took."""
        started = perf_counter()
        if launch is None or (key := (unit.device.id, launch.build)) in self._prepared:
            return 0.0
        unit.prepare(launch.build, allowed)
        self._prepared.add(key)
        return perf_counter() - started if unit.is_compiled_ahead else 0.0


def _empty(problem: Problem) -> Array:
    """The view of an operand that has nowhere to land."""
    return np.empty(0, numpy_dtype(problem.dtype))


def _up(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE
