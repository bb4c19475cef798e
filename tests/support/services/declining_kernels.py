"""What tests have a serving child do in place of making products: kernels of class emulated decline some operands."""

from __future__ import annotations

import os

import numpy as np

from app.devices.backend import WorkerContext
from app.devices.process import WorkerLink
from app.errors import WrongResult
from app.worker.serving import batched, product
from app.worker.serving.product import MultiplyRequest, MultiplyResult
from kernels.launch import Launch

VERDICT = 4
FIRST = 1e30  # an A that begins so is declined


def multiply(held: WorkerContext, link: WorkerLink, order: MultiplyRequest) -> MultiplyResult:
    """As product.multiply, on a device whose emulated products are declined where A says so."""
    _decline(held, order.launch, [order])
    return product.multiply(held, link, order)


def multiply_all(
    held: WorkerContext, link: WorkerLink, orders: tuple[MultiplyRequest, ...], launch: Launch
) -> MultiplyResult:
    """As together.multiply, on such a device."""
    _decline(held, launch, list(orders))
    return batched.multiply(held, link, orders, launch)


def _decline(held: WorkerContext, mine: Launch | None, orders: list[MultiplyRequest]) -> None:
    firsts = [np.frombuffer(held.slab, np.float32, 1, order.a)[0] for order in orders]
    emulated = mine is not None and mine.problem.precision == "emulated"
    verdict = VERDICT if emulated and max(firsts) >= FIRST else 0

    def declined(launch: Launch) -> int:
        return verdict if mine is not None and launch.problem == mine.problem else 0

    held.backend.declined = declined  # type: ignore[method-assign]


def wrong(_: WorkerContext, __: WorkerLink, order: MultiplyRequest) -> MultiplyResult:
    """A product whose kernel's class fails its check."""
    raise WrongResult(f"{order.problem.key} is wrong")


def die(_: WorkerContext, __: WorkerLink, ___: MultiplyRequest) -> MultiplyResult:
    """A product that ends its process."""
    os._exit(9)


def spoil(held: WorkerContext, link: WorkerLink, order: MultiplyRequest) -> MultiplyResult:
    """As product.multiply, but the sign and exponent of C's last element are another's."""
    made = product.multiply(held, link, order)
    last = order.c + order.problem.c_bytes - 1
    np.frombuffer(held.slab, np.uint8)[last] ^= 0x41
    return made
