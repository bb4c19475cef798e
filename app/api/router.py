"""The HTTP contract: routes, requests, answers and errors."""

from __future__ import annotations

from typing import cast

from fastapi import FastAPI

from app.api import errors, inference
from app.api.body.upload_slots import UploadSlots
from app.api.load_shedding import LoadShedder
from app.api.metrics import Counted, Metrics
from app.api.openapi import describe
from app.api.products import SmallProductQueue
from app.api.responses import ProblemDetails
from app.api.routes import (
    analysis,
    best_config,
    devices,
    error_pages,
    health,
    jobs,
    kernels,
    limits,
    matmul,
    matrices,
    trials,
    tune,
)
from app.api.routes.best_config import RenderedAnswers
from app.api.schemas import ProductMembers, TuneRequest
from app.api.state import RequestThreads
from app.server import TransferLimits
from app.services.service import Service

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
    kernels,
    analysis,
    limits,
    error_pages,
    health,
)


def include(app: FastAPI, *, max_body_bytes: int, limits: TransferLimits = TransferLimits()) -> None:  # noqa: B008 - it is frozen
    """Give `app` every route, the one shape of errors, and the limit of bodies; `app.state.service` is the service."""

    def service() -> Service:
        return cast("Service", app.state.service)

    metrics = Metrics(service)
    app.state.load_shedder = LoadShedder(service, metrics)
    app.state.threads, app.state.rendered, app.state.metrics = RequestThreads(), RenderedAnswers(), metrics
    app.state.tasks, app.state.limits, app.state.upload_slots, app.state.small_products = (
        set(),
        limits,
        UploadSlots(),
        SmallProductQueue(),
    )
    app.state.inference = inference.InferenceStatistics()
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
