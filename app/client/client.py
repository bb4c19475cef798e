"""Client: products, tuning and the best configs of a running service."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.client import matrices
from app.client.answers import Event, Job, Product, Shape
from app.client.asking import Asking
from app.client.events import parse
from app.client.transport import FAILURES, Ask, ClientError, Failure, Transport, target

# The service writes a comment every 15 s: a stream silent for longer is broken.
SILENCE: Final = 45.0
POLL: Final = 0.1

ShapeLike = Shape | int | tuple[int, int, int] | tuple[int, int, int, int]


class Client(Asking):
    """A service at `url`. Usable from any number of threads; close it, or use it as a context manager.

    `timeout` bounds each wait for the service, in seconds. `retries` bounds how often a request is sent again: after
    a broken connection where that does no harm, and after 429 or 503 with Retry-After.
    Every method raises ClientError where the service refuses, and UnreachableError, a ClientError, where none answers.
    """

    def __init__(self, url: str = "http://127.0.0.1:8000", *, timeout: float = 300.0, retries: int = 4) -> None:
        super().__init__(Transport(url, timeout, retries))
        self.url = self._transport.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections. The client stays usable: a later request opens a new one."""
        self._transport.close()

    def matmul(
        self,
        a: ArrayLike,
        b: ArrayLike,
        trans_a: bool = False,
        trans_b: bool = False,
        device: str | None = None,
        kernel: str | None = None,
        precision: str = "strict",
    ) -> NDArray[Any]:
        """op(A)[m,k] x op(B)[k,n] as C[m,n], of the operands' dtype; three-dimensional operands are batches.

        Raises ValueError where the operands are no matrices, or do not fit each other.
        """
        return self.product(a, b, trans_a, trans_b, device, kernel, precision).c

    def product(
        self,
        a: ArrayLike,
        b: ArrayLike,
        trans_a: bool = False,
        trans_b: bool = False,
        device: str | None = None,
        kernel: str | None = None,
        precision: str = "strict",
    ) -> Product:
        """As matmul, with the kernel, the config, how exact the match was, and the service's own timing."""
        a, b = matrices.operand(a), matrices.operand(b)
        asked = matrices.problem(a, b, trans_a, trans_b, precision)
        c = np.empty((*a.shape[:-2], asked.m, asked.n), dtype=a.dtype)
        where = target("/matmul", {**asdict(asked), "device": device, "kernel": kernel})
        kind = "application/octet-stream"
        body = (matrices.flat(a), matrices.flat(b))
        # A product changes nothing at the service, so it may be asked for twice.
        ask = Ask("POST", where, body, {"Content-Type": kind, "Accept": kind}, again=True)
        headers = self._transport.exchange(ask, into=matrices.flat(c)).headers
        return Product(
            c,
            headers.get("X-Kernel", ""),
            matrices.config(headers.get("X-Config", "")),
            headers.get("X-Match", ""),
            matrices.timing(headers.get("Server-Timing", "")),
            headers.get("X-Device"),
        )

    def tune(
        self,
        shapes: Iterable[ShapeLike],
        *,
        dtype: str = "float32",
        precision: str = "strict",
        trans_a: bool = False,
        trans_b: bool = False,
        device: str | None = None,
        kernels: Iterable[str] | None = None,
        strategy: str = "auto",
        trials: int | None = None,
        seconds: float | None = None,
        gain: float | None = None,
        retune: bool = False,
        wait: bool | float = False,
    ) -> Job:
        """Ask for one tuning job over `shapes`: (m, n, k), (m, n, k, batch), or a size for a square.

        `trials` and `seconds` are the job's whole budget; with `gain` a search ends once it expects to gain less than
        so many per cent, and what is None beside it is no limit. `wait` true waits until the job has ended, a number at
        most so many seconds; the job comes back as it then stands.
        """
        kind = {"dtype": dtype, "precision": precision, "trans_a": trans_a, "trans_b": trans_b}
        body = kind | {
            "shapes": [asdict(shape_of(each)) for each in shapes],
            "device": device,
            "kernels": None if kernels is None else list(kernels),
            "strategy": strategy,
            "budget": {"trials": trials, "seconds": seconds, "gain_percent": gain},
            "retune": retune,
        }
        patience = 0.0 if isinstance(wait, bool) else wait
        headers = {"Content-Type": "application/json"} | ({"Prefer": f"wait={patience:g}"} if patience else {})
        data = (memoryview(json.dumps(body).encode()),)
        reply = self._transport.exchange(
            Ask("POST", "/tune", data, headers, timeout=self._transport.timeout + patience)
        )
        job = self._as(Job, reply)
        return self.wait(job.id) if wait is True and not job.ended else job

    def job(self, job_id: str) -> Job:
        """Give the job as it stands."""
        return self._as(Job, self._get(f"/jobs/{job_id}"))

    def cancel(self, job_id: str) -> Job:
        """Ask that a job ends; gives it as it then stands (cancelling takes until the running trial's end)."""
        return self._as(Job, self._transport.exchange(Ask("DELETE", f"/jobs/{job_id}", again=True)))

    def wait(self, job_id: str) -> Job:
        """Wait until the job has ended."""
        for _ in self.events(job_id):
            pass
        return self.job(job_id)

    def events(self, job_id: str, after: int = 0, patience: float = 60.0) -> Iterator[Event]:
        """Give the job's events with an id above `after`, as they come, to its end.

        A broken stream is resumed where it broke; UnreachableError once nothing has answered for `patience` seconds.
        """
        heard = time.monotonic()
        while True:
            failure: Failure = ConnectionError("the stream ended before the job")
            try:
                for event in self._stream(job_id, after):
                    heard = time.monotonic()
                    if event is None:
                        continue
                    after = event.id
                    yield event
                    if event.name == "end":
                        return
            except _EndedError:
                return
            except FAILURES as broken:
                failure = broken
            except ClientError as refused:
                if refused.status != 503:  # noqa: PLR2004 - a service that restarts says 503 meanwhile
                    raise
            if time.monotonic() - heard > patience:
                raise self._transport.unreachable(failure)
            time.sleep(POLL)

    def ready(self, wait: float = 0.0) -> bool:
        """Tell whether the service is ready, within `wait` seconds."""
        until = time.monotonic() + wait
        while True:
            try:
                self._transport.exchange(Ask("GET", "/health/ready", again=True, patient=False))
            except ClientError:
                if time.monotonic() >= until:
                    return False
                time.sleep(POLL)
            else:
                return True

    def _stream(self, job_id: str, after: int) -> Iterator[Event | None]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(after)} if after else {})
        with self._transport.stream(Ask("GET", f"/jobs/{job_id}/events", (), headers, timeout=SILENCE)) as response:
            if response.status == 204:  # noqa: PLR2004 - HTTP's word for: the job has ended, there is nothing more
                raise _EndedError
            yield from parse(response)


class _EndedError(Exception):
    """A stream was asked for whose last event had been seen."""


def shape_of(shape: ShapeLike) -> Shape:
    """Make a Shape of what a caller may give: a Shape, sizes, or one size for a square."""
    if isinstance(shape, Shape):
        return shape
    return Shape(shape, shape, shape) if isinstance(shape, int) else Shape(*shape)
