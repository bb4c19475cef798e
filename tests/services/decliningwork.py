"""What tests have a serving child do in place of making products: kernels of class emulated decline some operands."""

from __future__ import annotations

import os

import numpy as np

from app.devices.fleet import Held
from app.devices.process import Link
from app.errors import WrongResult
from app.worker.serving import batched
from app.worker.serving import multiply as product
from app.worker.serving.multiply import Order, Spent
from kernels.launch import Launch

VERDICT = 4
FIRST = 1e30  # an A that begins so is declined


def multiply(held: Held, link: Link, order: Order) -> Spent:
    """As product.multiply, on a device whose emulated products are declined where A says so."""
    _decline(held, order.launch, [order])
    return product.multiply(held, link, order)


def multiply_all(held: Held, link: Link, orders: tuple[Order, ...], launch: Launch) -> Spent:
    """As together.multiply, on such a device."""
    _decline(held, launch, list(orders))
    return batched.multiply(held, link, orders, launch)


def _decline(held: Held, mine: Launch | None, orders: list[Order]) -> None:
    firsts = [np.frombuffer(held.slab, np.float32, 1, order.a)[0] for order in orders]
    emulated = mine is not None and mine.problem.precision == "emulated"
    verdict = VERDICT if emulated and max(firsts) >= FIRST else 0

    def declined(launch: Launch) -> int:
        return verdict if mine is not None and launch.problem == mine.problem else 0

    held.backend.declined = declined  # type: ignore[method-assign]


def wrong(_: Held, __: Link, order: Order) -> Spent:
    """A product whose kernel's class fails its check."""
    raise WrongResult(f"{order.problem.key} is wrong")


def die(_: Held, __: Link, ___: Order) -> Spent:
    """A product that ends its process."""
    os._exit(9)
