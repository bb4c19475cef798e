"""A service in this process, whose application answers as the real one does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI

from app.api.state import state_of
from app.main import create_app
from app.services.matmul.buffers import Product
from app.services.service import Service
from kernels.problem import Problem
from tests.support.services.service_settings import settings
from tests.support.waiting import until


class Client:
    """Asks an application that runs in this process, so that its kernels can be broken."""

    def __init__(self, app: FastAPI, loop: asyncio.AbstractEventLoop) -> None:
        self._http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
        self._loop = loop

    def get(self, path: str, params: dict[str, int] | None = None) -> httpx.Response:
        return asyncio.run_coroutine_threadsafe(self._http.get(path, params=params), self._loop).result(60)

    def post(self, path: str, json: dict[str, Any]) -> httpx.Response:
        return asyncio.run_coroutine_threadsafe(self._http.post(path, json=json), self._loop).result(60)


@contextmanager
def started(folder: Path) -> Iterator[tuple[Client, Service]]:
    app, loop = create_app(settings(folder)), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    lifespan = app.router.lifespan_context(app)
    try:
        asyncio.run_coroutine_threadsafe(lifespan.__aenter__(), loop).result(60)
        try:
            yield Client(app, loop), state_of(app).slot.get()
        finally:
            asyncio.run_coroutine_threadsafe(lifespan.__aexit__(None, None, None), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def readiness_once(client: Client, holds: Callable[[dict[str, Any]], bool], seconds: float = 90.0) -> dict[str, Any]:
    """What GET /health/ready says once something holds for it."""
    told: dict[str, Any] = {}

    def asked() -> bool:
        nonlocal told
        told = dict(client.get("/health/ready").json())
        return holds(told)

    until(asked, seconds, each=0.05, meanwhile=lambda: told)
    return told


def settled(told: dict[str, Any]) -> bool:
    return told["pending"] == 0 and told.get("code") != "not_ready"


def product(service: Service, problem: Problem, kernel: str | None = None) -> Product:
    """A product, which is right."""
    rng = np.random.default_rng(problem.m)
    with service.matmul.reserve(problem) as placed:
        placed.a[...], placed.b[...] = rng.standard_normal(placed.a.shape), rng.standard_normal(placed.b.shape)
        placed.c[...] = np.nan
        made = service.matmul.multiply(placed, kernel=kernel)
        reference = placed.a.astype(np.float64) @ placed.b
        assert np.linalg.norm(placed.c - reference) < 1e-6 * np.linalg.norm(reference)
        return made
