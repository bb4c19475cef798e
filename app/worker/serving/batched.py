"""A batch of products of one launch, each from and to its own buffers in the slab."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter

import numpy as np

from app.devices.backend import Operands, WorkerContext
from app.devices.process import WorkerLink
from app.dtypes import Array
from app.worker.serving.launch_class import built
from app.worker.serving.product import MultiplyRequest, MultiplyResult, deadline
from kernels.launch import Launch


def multiply(
    held: WorkerContext, link: WorkerLink, requests: tuple[MultiplyRequest, ...], launch: Launch
) -> MultiplyResult:
    """Make every order's product by one launch, whose batch is theirs in turn; raises as `product.multiply`.

    Where the launch declines, for one product's sake, none is made.
    """
    program, build = built(held, link, launch, requests[0].allowed)
    backend, problem = held.backend, launch.problem
    places = [(each.a, each.b, each.c) for each in requests]
    sizes = [nbytes // len(requests) for nbytes in (problem.a_bytes, problem.b_bytes, problem.c_bytes)]

    def parts(which: int) -> Iterable[Array]:
        return (np.frombuffer(held.slab, np.uint8, sizes[which], place[which]) for place in places)

    with link.lease(deadline(backend, MultiplyRequest(problem, launch, 0, 0, 0)), last=True):
        started = perf_counter()
        a, b = (np.concatenate(list(parts(which))) for which in (0, 1))
        operands = Operands(backend.upload(a), backend.upload(b), backend.allocate(problem.c_bytes))
        copied = perf_counter()
        backend.run(program, launch, operands)
        launched, declined = perf_counter(), backend.declined(launch)
        if declined:
            return MultiplyResult(copied - started, launched - copied, 0.0, decline_flags=declined, build=build)
        c = np.empty(problem.c_bytes, np.uint8)
        backend.download(operands.c, c)
        for number, place in enumerate(parts(2)):
            place[:] = c[number * sizes[2] : (number + 1) * sizes[2]]
        return MultiplyResult(copied - started, launched - copied, perf_counter() - launched, build=build)
