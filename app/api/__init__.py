"""The HTTP contract: routes, requests, answers and errors."""

from __future__ import annotations

from typing import cast

from fastapi import FastAPI

from app.api import (
    analysis,
    best_config,
    bounds,
    catalogue,
    devices,
    errors,
    inference,
    jobs,
    matmul,
    matrices,
    operations,
    trials,
    tune,
)
from app.api.answers import ProblemDetails
from app.api.berths import Berths
from app.api.best_config import Rendered
from app.api.gate import Gate
from app.api.making import Line
from app.api.metrics import Counted, Metrics
from app.api.openapi import describe
from app.api.pace import Pace
from app.api.schemas import ProductMembers, TuneRequest
from app.api.service import Service, Threads

# In this order: the first is the one that has no time to lose.
ROUTERS = (
    best_config,
    matmul,
    inference,
    matrices,
    tune,
    jobs,
    trials,
    devices,
    catalogue,
    analysis,
    bounds,
    operations,
)


def include(app: FastAPI, *, max_body_bytes: int, pace: Pace = Pace()) -> None:  # noqa: B008 - it is frozen
    """Give `app` every route, the one shape of errors, and the limit of bodies; `app.state.service` is the service."""

    def service() -> Service:
        return cast("Service", app.state.service)

    metrics = Metrics(service)
    app.state.gate = Gate(service, metrics)
    app.state.threads, app.state.rendered, app.state.metrics = Threads(), Rendered(), metrics
    app.state.tasks, app.state.pace, app.state.berths, app.state.line = set(), pace, Berths(), Line()
    app.state.inference = inference.Statistics()
    errors.install(app, max_body_bytes)
    app.add_middleware(Counted, metrics=metrics)
    routes = [route for module in ROUTERS for route in module.router.routes]
    app.router.routes[:0] = routes
    members = ProductMembers.model_json_schema()["properties"]
    describe(
        app,
        [ProblemDetails, TuneRequest, *inference.MODELS],
        {"ProductBody": matmul.body_schema(members), "Product": matmul.ANSWER},
    )
