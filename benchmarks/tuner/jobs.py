"""What the benchmarks of tune jobs share: orders of random shapes, and one JSON request after the other."""

from __future__ import annotations

import json
import random
from http.client import HTTPConnection
from time import sleep
from typing import Any, Final

from benchmarks.harness import Running

ENDED: Final = {"succeeded", "failed", "cancelled", "expired"}
_DTYPES: Final = ("float32", "float32", "float64", "float16")


def ask(server: Running, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """One JSON request; gives the status and the answer."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def shape(generator: random.Random, most: int = 8192) -> dict[str, int]:
    """A cube of a power of two from 64 on, or sizes that differ and are no multiples of anything."""
    if generator.random() < 0.5:
        size = 2 ** generator.randint(6, most.bit_length() - 1)
        return {"m": size, "n": size, "k": size}
    return {name: round(64 * (most / 64) ** generator.random()) for name in "mnk"}


def order(generator: random.Random, seconds: float, most: int = 8192) -> dict[str, Any]:
    """An order of one shape, or now and then of three, that no other order's job does already."""
    shapes = [shape(generator, most) for _ in range(3 if generator.random() < 0.15 else 1)]
    dtype = generator.choice(_DTYPES)
    return {"shapes": shapes, "dtype": dtype, "budget": {"seconds": seconds}, "retune": True}


def ended(server: Running, job_id: str, each: float = 0.05) -> dict[str, Any]:
    """The job once it has ended."""
    while True:
        _, job = ask(server, "GET", f"/jobs/{job_id}")
        if job["state"] in ENDED:
            found: dict[str, Any] = job
            return found
        sleep(each)


def told(order: dict[str, Any]) -> str:
    """An order in a few words."""
    shapes = " + ".join("x".join(str(one[name]) for name in "mnk") for one in order["shapes"])
    return f"{shapes} {order['dtype']}"
