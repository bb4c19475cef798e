"""The HTTP contract: routes, requests, answers and errors."""

from __future__ import annotations

from typing import cast

from fastapi import FastAPI

from app.api import analysis, best_config, catalogue, devices, errors, jobs, matmul, operations, trials, tune
from app.api.answers import Problem
from app.api.best_config import Rendered
from app.api.metrics import Counted, Metrics
from app.api.openapi import describe
from app.api.schemas import ProductMembers, TuneRequest
from app.api.service import Service, Threads

# In this order: the first is the one that has no time to lose.
ROUTERS = (best_config, matmul, tune, jobs, trials, devices, catalogue, analysis, operations)


def include(app: FastAPI, *, max_body_bytes: int) -> None:
    """Give `app` every route, the one shape of errors, and the limit of bodies; `app.state.service` is the service."""
    metrics = Metrics(lambda: cast("Service", app.state.service))
    app.state.threads, app.state.rendered, app.state.metrics = Threads(), Rendered(), metrics
    app.state.tasks = set()
    errors.install(app, max_body_bytes)
    app.add_middleware(Counted, metrics=metrics)
    routes = [route for module in ROUTERS for route in module.router.routes]
    app.router.routes[:0] = routes
    members = ProductMembers.model_json_schema()["properties"]
    describe(app, [Problem, TuneRequest], {"ProductBody": matmul.body_schema(members)})
