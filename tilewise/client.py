"""Client and AsyncClient: products, tuning, resident matrices and the best configs of a running service."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from tilewise._cache import CacheMethods
from tilewise._charts import ChartMethods
from tilewise._cordons import CordonMethods
from tilewise._exports import ExportMethods
from tilewise._files import ProductOperand
from tilewise._futures import AsyncSubmitted, Submitted
from tilewise._interchange import InterchangeMethods
from tilewise._jobs import JobMethods
from tilewise._keys import KeyMethods
from tilewise._ladders import LadderMethods
from tilewise._matmul import MatmulMethods
from tilewise._matrices import MatrixMethods
from tilewise._pool import Transport
from tilewise._profiles import ProfileMethods
from tilewise._sansio import AsyncRunner, Flow, Operation, SyncRunner, awaited, driven
from tilewise._workloads import WorkloadMethods
from tilewise.arguments import Placement, ProductArguments

LOCAL = "http://127.0.0.1:8000"


class ClientMethods(
    MatmulMethods,
    ProfileMethods,
    JobMethods,
    MatrixMethods,
    KeyMethods,
    CordonMethods,
    ExportMethods,
    WorkloadMethods,
    InterchangeMethods,
    LadderMethods,
    ChartMethods,
    CacheMethods,
):
    """All that can be asked of a service, written once."""

    def __init__(
        self,
        url: str = LOCAL,
        *,
        timeout: float = 300.0,
        retries: int = 4,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        shared_memory: bool = True,
    ) -> None:
        shown = os.environ.get("TILEWISE_KEY", "") if key is None else key
        both = ({"Authorization": f"Bearer {shown}"} if shown else {}) | dict(headers or {})
        super().__init__(Transport(url, timeout, retries, both, tls), shared_memory=shared_memory)
        self.url = self.transport.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @Operation
    def close(self) -> Flow[None]:
        """Close the idle connections. The client stays usable: a later request opens a new one."""
        yield from self.shared.give_back()
        self.transport.close()


class Client(ClientMethods, SyncRunner):
    """A service at `url`: http://host:port, https://host:port, or unix:///path of a Unix socket.

    Usable from any number of threads; close it, or use it as a context manager. `timeout` bounds each wait for the
    service, in seconds. `retries` bounds how often a request is sent again: after a broken connection where that does
    no harm, and after 429 or 503 with Retry-After. `key` is an API key, by default TILEWISE_KEY's. `headers` go with
    every request; `tls` is by default the system's. With `shared_memory` large operands go through it where the service
    is on this machine and offers that.
    Every method raises ClientError if the service refuses, and UnreachableError, a ClientError, if none answers.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(
        self,
        a: ProductOperand,
        b: ProductOperand,
        *,
        trans_a: bool = False,
        trans_b: bool = False,
        device: str | None = None,
        kernel: str | None = None,
        precision: str = "strict",
        verify: str | None = None,
        placement: Placement | None = None,
    ) -> Submitted:
        """Send a product's operands and have it made meanwhile: result() gives what matmul would."""
        arguments = ProductArguments(device, kernel, precision, trans_a, trans_b, verify, placement)
        return Submitted(self, *driven(self._queued(a, b, arguments)))


class AsyncClient(ClientMethods, AsyncRunner):
    """As Client, for asyncio: its methods are coroutine functions, `events` gives an asynchronous iterator.

    Usable from any number of tasks.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def submit(
        self,
        a: ProductOperand,
        b: ProductOperand,
        *,
        trans_a: bool = False,
        trans_b: bool = False,
        device: str | None = None,
        kernel: str | None = None,
        precision: str = "strict",
        verify: str | None = None,
        placement: Placement | None = None,
    ) -> AsyncSubmitted:
        """As Client's."""
        arguments = ProductArguments(device, kernel, precision, trans_a, trans_b, verify, placement)
        return AsyncSubmitted(self, *await awaited(self._queued(a, b, arguments)))
