"""The HTTP contract: routes, requests, answers and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI

from app.api import errors
from app.api.inference import infer, metadata, shared_memory
from app.api.inference.answers import InferResponse
from app.api.inference.schemas import InferRequest
from app.api.openapi.direct_route import DirectDispatch
from app.api.openapi.document import describe
from app.api.responses import ProblemDetails
from app.api.routes import (
    analysis,
    devices,
    error_pages,
    events,
    health,
    jobs,
    kernels,
    keys,
    limits,
    matmul,
    matrices,
    trials,
    tune,
)
from app.api.routes.best import best_config
from app.api.routes.cache import entries as cache
from app.api.routes.charts import (
    gauges,
    importance,
    job_trace,
    landscape,
    lessons,
    occupancy,
    profiles,
    roofline,
    trace,
)
from app.api.routes.exports import assembly, preprocessed, take
from app.api.routes.interchange import export, imports
from app.api.routes.workloads import workloads
from app.api.schemas import Cordoning, ProductMembers, TuneRequest
from app.api.state import State
from app.api.telemetry.middleware import Counted
from app.server import TransferLimits

# In this order: the first is the one that has no time to lose.
ROUTERS = (
    best_config,
    matmul,
    metadata,
    infer,
    shared_memory,
    matrices,
    tune,
    jobs,
    events,
    job_trace,
    trials,
    landscape,
    importance,
    roofline,
    trace,
    lessons,
    profiles,
    workloads,
    export,
    imports,
    cache,
    gauges,
    devices,
    kernels,
    assembly,
    preprocessed,
    analysis,
    occupancy,
    take,
    limits,
    error_pages,
    health,
    keys,
)
_CHARTS = (
    assembly.EXAMPLES
    | landscape.EXAMPLES
    | roofline.EXAMPLES
    | trace.EXAMPLES
    | lessons.EXAMPLES
    | profiles.EXAMPLES
    | gauges.EXAMPLES
    | importance.EXAMPLES
    | occupancy.EXAMPLES
    | preprocessed.EXAMPLES
)
_EXAMPLES = keys.EXAMPLES | workloads.EXAMPLES | imports.EXAMPLES | best_config.EXAMPLES | cache.EXAMPLES | _CHARTS
_INFERENCE_MODELS = (InferRequest, InferResponse, shared_memory.SystemRegistration, shared_memory.CudaRegistration)


def include(
    app: FastAPI,
    *,
    max_body_bytes: int,
    limits: TransferLimits = TransferLimits(),  # noqa: B008 - it is frozen
    transfers: int | None = None,
    operands: Path | None = None,
) -> None:
    """Give `app` every route, the one shape of errors, and the limit of bodies; `state_of` gives what they share."""
    state = State.new(limits, lambda: app.router.routes, transfers, operands)
    state.install(app)
    routes = [route for module in ROUTERS for route in module.router.routes]
    app.add_middleware(DirectDispatch, routes=routes, handlers=app.exception_handlers)  # the innermost
    errors.install(app, max_body_bytes)
    app.add_middleware(Counted, metrics=state.metrics, guard=state.guard, tracing=state.tracing)
    app.router.routes[:0] = routes
    describe(
        app,
        [ProblemDetails, TuneRequest, Cordoning, *keys.MODELS, *profiles.MODELS, *_INFERENCE_MODELS],
        _schemas,
        _EXAMPLES,
    )


def _schemas() -> dict[str, Any]:
    members = ProductMembers.model_json_schema()["properties"]
    return {"ProductBody": matmul.body_schema(members), "Product": matmul.ANSWER}
