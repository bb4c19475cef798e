"""Products in a simulation: clients, admission, slab, queue, batches, lease and workers are the service's own.

Only the processes are not: the worker's loop runs in a simulated thread, and its kernel is NumPy's product on the slab.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from app.devices.backend import Vendor
from app.devices.fleet import Fleet, Unit
from app.devices.process import Worker, WorkerLink
from app.devices.process import worker as worker_module
from app.devices.slab import Slab, SlabRegion
from app.dtypes import Array
from app.errors import Cancelled, DeviceError, LaunchFailed, NoRoom, OverShare, QueueFull, TilewiseError
from app.services.best.lookup import BestConfigs
from app.services.best.misses import MissCounter
from app.services.best.quarantine import Quarantine
from app.services.matmul.batching import BatchCostModel
from app.services.matmul.buffers import OperandBuffers
from app.services.matmul.device_queue import CancelToken
from app.services.matmul.service import MatmulService
from app.services.principal import ANONYMOUS, Principal
from app.worker.serving import batched, product
from app.worker.serving.product import MultiplyRequest, MultiplyResult
from kernels.device import Device, Limits
from kernels.launch import Launch
from kernels.problem import Problem
from tests.simulation.child import SimulatedProcess, processes
from tests.simulation.primitives import replaced, simulated
from tests.simulation.scheduler import Simulation
from tests.simulation.turns import PREFIXES, OrderlyLease

MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a folder in memory
_PAGE: Final = 4096
_LIMITS: Final = Limits(1024, 49152, 32, 4, 2e10, 1e11, 5e10)
_DEVICE: Final = Device("opencl:0", "opencl", "simulated", "none", "0", "0", "0", "", 2**30, _LIMITS)
_PROBLEMS: Final = (Problem(4, 6, 5), Problem(8, 8, 8), Problem(3, 5, 7, trans_a=True), Problem(40, 30, 20))
_PATIENCE: Final = 300.0  # seconds after which a product that has no outcome is lost


class Eager(BatchCostModel):
    """Takes it for granted that together is faster."""

    def best(self, device: Device, launch: Launch, together: Any) -> int:
        """The largest batch."""
        del device, launch
        return max(together, default=1)


@dataclass
class Faults:
    """How often what goes wrong."""

    kills: int = 0
    stops: int = 0
    cancels: float = 0.0
    refusals: float = 0.0

    @classmethod
    def drawn(cls, simulation: Simulation) -> Faults:
        """None in a third of the runs."""
        rng = simulation.rng
        if rng.random() < 1 / 3:
            return cls()
        return cls(rng.randrange(4), rng.choice((0, 0, 1)), rng.choice((0.0, 0.3)), rng.choice((0.0, 0.0, 0.1)))


@dataclass
class World:
    """What a run has: the service's parts, its simulated device, and what became of each product."""

    simulation: Simulation
    faults: Faults
    stack: ExitStack
    apart: bool = field(init=False)  # whether each client is a principal of its own
    slab: Slab = field(init=False)
    lease: OrderlyLease = field(init=False)
    unit: Unit = field(init=False)
    workers: tuple[Worker, Worker] = field(init=False)
    fleet: Fleet = field(init=False)
    quarantine: Quarantine = field(init=False)
    best: BestConfigs = field(init=False)
    misses: MissCounter = field(init=False)
    matmul: MatmulService = field(init=False)
    outcomes: Counter[str] = field(default_factory=Counter)
    user: str | None = None  # who is on the device
    launches: Counter[int] = field(default_factory=Counter)  # by C's place in the slab, while it is lent
    processes: list[SimulatedProcess] = field(default_factory=list)
    together: int = 0

    def __post_init__(self) -> None:
        rng = self.simulation.rng
        self.apart = rng.random() < 0.5
        self.slab, self.lease = Slab(_PAGE * rng.choice((6, 12, 64))), OrderlyLease()
        self.stack.callback(self.slab.close)
        self.stack.callback(self.lease.close)
        made = processes(self.simulation, self.processes.append)
        self.stack.enter_context(replaced(self.simulation, worker_module, "WorkerProcess", made))
        products, trials = (Worker(name, set_up, (name,), lease=self.lease) for name in ("products", "trials"))
        self.workers, nowhere = (products, trials), cast("Any", None)
        self.unit = Unit(_DEVICE, Vendor(None, "none"), self.lease, products, trials, nowhere)
        self.fleet = Fleet((self.unit,), self.slab)
        self.quarantine, self.misses = Quarantine(nowhere), MissCounter(nowhere)
        self.best = BestConfigs(self.fleet, quarantine=self.quarantine)
        self.matmul = MatmulService(
            self.fleet,
            self.best,
            self.quarantine,
            self.misses,
            queue=rng.choice((2, 6, 99)),
            max_bytes=2**20,
            vendor=False,
            share=rng.choice((1.0, 0.5)),
            max_batch=rng.choice((1, 8)),
            costs=Eager(self.simulation.clock),
        )

    def compute(self, link: WorkerLink, orders: tuple[MultiplyRequest, ...], launch: Launch | None) -> MultiplyResult:
        """Make products as a worker does: with the lease, from the slab into the slab."""
        simulation, problem = self.simulation, orders[0].problem
        assert all(one.launch == orders[0].launch for one in orders), "a batch of different launches"
        assert launch is not None
        assert launch.problem.batch == len(orders) * problem.batch, "a batch of another size"
        if simulation.rng.random() < 0.2:
            link.phase("launch", 30.0)
        with link.lease(10.0, last=True), self.on_device("a product"):
            if simulation.rng.random() < self.faults.refusals:
                raise LaunchFailed("the launch failed")
            simulation.sleep(simulation.rng.choice((0.0, 0.001, 0.02)))
            results = [self._view(one.a, problem.a_shape) for one in orders]
            made = [
                self._product(problem, a, self._view(one.b, problem.b_shape))
                for one, a in zip(orders, results, strict=True)
            ]
            simulation.sleep(simulation.rng.choice((0.0, 0.001)))
            for one, c in zip(orders, made, strict=True):
                self._view(one.c, (problem.m, problem.n))[...] = c
                self.launches[one.c] += 1
        return MultiplyResult(0.001, 0.001, 0.001)

    @staticmethod
    def _product(problem: Problem, a: Array, b: Array) -> Array:
        return np.asarray((a.T if problem.trans_a else a) @ (b.T if problem.trans_b else b), np.float32)

    def _view(self, offset: int, shape: tuple[int, int]) -> Array:
        return np.ndarray(shape, np.float32, self.slab.view(SlabRegion(offset, 4 * shape[0] * shape[1])))

    @contextmanager
    def on_device(self, who: str) -> Iterator[None]:
        """Be alone on the device inside the block."""
        assert self.user is None, f"{who} and {self.user} are on the device at once"
        self.user = who
        try:
            yield
        finally:
            self.user = None

    def client(self, name: str, count: int) -> None:
        """Ask for some products, one after another."""
        rng, who = self.simulation.rng, Principal(f"caller {name[-1]}" if self.apart else ANONYMOUS.name)
        for number in range(count):
            self.simulation.sleep(rng.choice((0.0, 0.0, 0.01, 0.5)))
            token, asked, problem = CancelToken(), self.simulation.now, rng.choice(_PROBLEMS)
            if rng.random() < self.faults.cancels:
                self._cancel_later(token, f"{name}'s cancellation {number}")
            try:
                self._expect_product(problem, token, rng.randrange(2**32), who)
                self.outcomes["made"] += 1
            except (NoRoom, OverShare, QueueFull, DeviceError, Cancelled) as error:
                self._expect_reason(error, token)
                self.outcomes[type(error).__name__] += 1
            assert self.simulation.now - asked < (_PATIENCE if self.faults != Faults() else 5.0), "it took too long"

    def _cancel_later(self, token: CancelToken, name: str) -> None:
        kill, delay = self.simulation.rng.random() < 0.5, self.simulation.rng.choice((0.0, 0.001, 0.02))

        def cancel() -> None:
            self.simulation.sleep(delay)
            token.cancel(kill=kill)

        self.simulation.spawn(cancel, name)

    def _expect_reason(self, error: TilewiseError, token: CancelToken) -> None:
        if isinstance(error, Cancelled):
            assert token.is_cancelled, "cancelled by nobody"
        elif isinstance(error, DeviceError):
            self._expect_fault(error)

    def _expect_fault(self, error: DeviceError) -> None:
        assert self.faults != Faults(), repr(error)

    def _expect_product(self, problem: Problem, token: CancelToken, seed: int, who: Principal) -> None:
        rng = np.random.default_rng(seed)
        with self.matmul.reserve(problem, principal=who) as buffers:
            buffers.a[...] = rng.integers(-9, 9, buffers.a.shape)
            buffers.b[...] = rng.integers(-9, 9, buffers.b.shape)
            buffers.c[...] = np.nan
            expected, place = self._product(problem, buffers.a, buffers.b), buffers.offsets[2]
            self.launches[place] = 0
            together = self._make(buffers, token)
            assert np.array_equal(buffers.c, expected), "a wrong product"
            self.together += together > 1
            if self.faults == Faults():
                assert self.launches[place] == 1, f"it was made {self.launches[place]} times"

    def _make(self, buffers: OperandBuffers, token: CancelToken) -> int:
        """As the API does: a small product at once if its device is free, else in the queue."""
        if self.matmul.is_small(buffers) and self.simulation.rng.random() < 0.3:
            pending = self.matmul.begin(buffers, None, self.simulation.now)
            made = pending.finish() if pending is not None else None
            if made is not None:
                return made.together
        return self.matmul.multiply(buffers, token=token).together

    def tuner(self, calls: int) -> None:
        """Measure, launch after launch, and yield the device to products between them."""
        for _ in range(calls):
            self.simulation.sleep(self.simulation.rng.choice((0.0, 0.1)))
            try:
                self.unit.trials.call(measure, self.simulation.rng.randrange(1, 6), deadline=20.0)
            except DeviceError as error:
                self.outcomes[f"trial: {type(error).__name__}"] += 1
                self._expect_fault(error)

    def saboteur(self) -> None:
        """Kill and stop processes."""
        rng = self.simulation.rng
        for action in [SimulatedProcess.signal] * self.faults.kills + [SimulatedProcess.stop] * self.faults.stops:
            self.simulation.sleep(rng.choice((0.05, 0.2, 1.0)) + rng.random() * 0.1)
            alive = [one for one in self.processes if one.is_alive()]
            if alive:
                action(rng.choice(alive))

    def expect_idle(self) -> None:
        """Expect that nothing is held any more."""
        admission = self.matmul.admission
        assert admission.waiting == 0, "places are held"
        assert not any(admission.slab_bytes.values()), "bytes are held"
        assert not any(admission.device_bytes.values()), "bytes of the device are held"
        assert self.slab.lent_bytes == 0, "the slab is lent"
        assert self.matmul.batcher.waiting(self.unit) == 0, "the queue is not empty"
        for lock in (self.lease, *(worker.calls for worker in self.workers)):
            assert not lock.is_held, "a turn is held"
            assert not lock.waiting, "somebody waits for a turn"
        assert self.user is None, "the device is in use"


worlds: list[World] = []  # the one of the run under way


def set_up(_name: str) -> World:
    """What a worker holds."""
    world = worlds[-1]
    world.simulation.sleep(world.simulation.rng.choice((0.01, 0.5)))
    return world


def multiply_one(held: World, link: WorkerLink, request: MultiplyRequest) -> MultiplyResult:
    """In place of `product.multiply`."""
    return held.compute(link, (request,), request.launch)


def multiply_all(held: World, link: WorkerLink, orders: tuple[MultiplyRequest, ...], launch: Launch) -> MultiplyResult:
    """In place of `batched.multiply`."""
    return held.compute(link, orders, launch)


def measure(held: World, link: WorkerLink, launches: int) -> None:
    """Measure as a trial does: launch after launch, and the device is offered between them."""
    with link.lease(10.0):
        for _ in range(launches):
            with held.on_device("a trial"):
                held.simulation.sleep(held.simulation.rng.choice((0.001, 0.02)))
            link.offer(10.0)


def run(seed: int) -> tuple[Simulation, Counter[str]]:
    """One run: its simulation, and how many products came to what; raises what went wrong."""
    simulation = Simulation(seed)
    modules = [module for name, module in sys.modules.items() if name.startswith(PREFIXES)]
    with ExitStack() as stack, simulated(simulation, *modules):
        stack.enter_context(replaced(simulation, product, "multiply", multiply_one))
        stack.enter_context(replaced(simulation, batched, "multiply", multiply_all))
        world = World(simulation, Faults.drawn(simulation), stack)
        worlds.append(world)
        try:
            for number in range(simulation.rng.choice((1, 3, 8))):
                name, count = f"client {number}", simulation.rng.randrange(1, 5)
                simulation.spawn(partial(world.client, name, count), name)
            simulation.spawn(lambda: world.tuner(simulation.rng.randrange(3)), "tuner")
            simulation.spawn(world.saboteur, "saboteur", daemon=True)
            simulation.run()
            world.expect_idle()
        finally:
            worlds.pop()
    world.outcomes["together"] = world.together
    return simulation, world.outcomes
