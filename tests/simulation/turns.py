"""Turns in a simulation: many who want the lease of one device, and jobs that wait for their thread."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from app.devices.lease import Lease, LeaseTicket, Priority
from app.services.tuning.job_queue import JobQueue
from tests.simulation.primitives import simulated
from tests.simulation.scheduler import Simulation

PREFIXES = ("app.services", "app.devices.process", "app.devices.lease", "app.devices.slab")


class OrderlyLease(Lease):
    """The lease, which looks whether the first of the best priority is served."""

    def __init__(self) -> None:
        self._arrived: list[LeaseTicket] = []
        super().__init__()

    def _changed(self) -> None:
        holder = self._holder
        self._arrived = [ticket for ticket in self._arrived if ticket in self._queue or ticket is holder]
        self._arrived += [ticket for ticket in self._queue if ticket not in self._arrived]
        if holder is not None and holder in self._arrived:
            ahead = [one for one in self._arrived[: self._arrived.index(holder)] if one in self._queue]
            assert not [one for one in self._queue if one.priority < holder.priority], (
                "a worse priority is served first"
            )
            assert all(one.priority > holder.priority for one in ahead), "a later one is served first"
            self._arrived.remove(holder)
        super()._changed()


@dataclass
class Turns:
    """A run: the lease with who holds it, and a queue of jobs with what was put and taken."""

    simulation: Simulation
    lease: OrderlyLease = field(default_factory=OrderlyLease)
    outcomes: Counter[str] = field(default_factory=Counter)
    holders: int = 0
    followed: set[str] = field(default_factory=set)
    idle: set[str] = field(default_factory=set)
    put: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)  # the jobs that the next one is chosen from

    def __post_init__(self) -> None:
        self.queue = JobQueue(self._is_followed)

    def _is_followed(self, job_id: str) -> bool:
        self.seen.append(job_id)
        return job_id in self.followed

    def contender(self, count: int) -> None:
        """Want the lease so many times, not always for long."""
        rng = self.simulation.rng
        for _ in range(count):
            self.simulation.sleep(rng.choice((0.0, 0.01, 0.1)))
            try:
                self.lease.acquire(rng.choice(list(Priority)), rng.choice((None, None, 0.0, 0.01, 0.1)))
            except TimeoutError:
                self.outcomes["gave up"] += 1
                continue
            self.holders += 1
            assert self.holders == 1, "two hold the lease"
            self.simulation.sleep(rng.choice((0.0, 0.001, 0.05)))
            self.holders -= 1
            self.lease.release()
            self.outcomes["served"] += 1

    def putter(self, name: str, count: int) -> None:
        """Put jobs into the queue."""
        rng = self.simulation.rng
        for number in range(count):
            self.simulation.sleep(rng.choice((0.0, 0.0, 0.1)))
            job_id, idle = f"{name} {number}", rng.random() < 0.3
            if idle:
                self.idle.add(job_id)
            elif rng.random() < 0.3:
                self.followed.add(job_id)
            self.put.append(job_id)
            self.queue.put(job_id, idle=idle)

    def taker(self) -> None:
        """Take jobs, as a device's thread does, until the queue is closed."""
        while True:
            self.seen.clear()
            job_id = self.queue.take(self.simulation.rng.choice((None, 0.05)))
            if job_id is None:
                if self.queue.is_closed:
                    return
                continue
            assert job_id not in self.taken, "a job is given twice"
            self._expect_first(job_id)
            self.taken.append(job_id)
            self.simulation.sleep(self.simulation.rng.choice((0.0, 0.02)))

    def _expect_first(self, job_id: str) -> None:
        ranks = [(one in self.idle, one not in self.followed) for one in self.seen]
        assert self.seen.index(job_id) == ranks.index(min(ranks)), f"{job_id} is taken first of {self.seen}"

    def close(self, putters: list[str]) -> None:
        """Close the queue once all was put and taken."""
        while any(name in self.simulation.names for name in putters) or len(self.taken) < len(self.put):
            self.simulation.sleep(0.05)
            assert self.simulation.now < 1060.0, "a job is never taken"
        self.queue.close()


def run(seed: int) -> tuple[Simulation, Counter[str]]:
    """One run: its simulation, and how many turns came to what; raises what went wrong."""
    simulation = Simulation(seed)
    modules = [module for name, module in sys.modules.items() if name.startswith(PREFIXES)]
    with ExitStack() as stack, simulated(simulation, *modules):
        world, rng = Turns(simulation), simulation.rng
        stack.callback(world.lease.close)
        putters = [f"putter {number}" for number in range(rng.choice((1, 3)))]
        for number in range(rng.choice((2, 5, 9))):
            simulation.spawn(partial(world.contender, rng.randrange(1, 6)), f"contender {number}")
        for name in putters:
            simulation.spawn(partial(world.putter, name, rng.randrange(1, 6)), name)
        simulation.spawn(world.taker, "taker")
        simulation.spawn(partial(world.close, putters), "closer")
        simulation.run()
        assert not world.lease.is_held, "the lease is held"
        assert not world.lease.waiting, "somebody waits for the lease"
        assert sorted(world.put) == sorted(world.taken), "a job is lost"
    world.outcomes["jobs taken"] = len(world.taken)
    return simulation, world.outcomes
