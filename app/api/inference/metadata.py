"""What the Open Inference Protocol tells of the server and its one model."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, Field, RootModel
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.body.json_body import read_document
from app.api.errors import MEDIA, documented, problem, timed_out
from app.api.formats import json_matrix
from app.api.inference.datatypes import DATATYPES, DTYPES
from app.api.inference.model import MODEL, VERSION, ModelName, expect, versioned
from app.api.inference.schemas import Scalar
from app.api.openapi.direct_route import DirectRouter
from app.api.params import StrictModel
from app.api.responses import Answer, reply
from app.api.state import service_of, state_of
from app.errors import Unsupported

router = DirectRouter("inference")

PLATFORM: Final = "tilewise"
_CONVERTED: Final = tuple(DATATYPES[dtype] for dtype in json_matrix.CONVERTED)
_EXTENSIONS: Final = ("binary_tensor_data", "model_configuration", "model_repository", "parameters", "statistics")
_UNREADY: Final[dict[int | str, dict[str, Any]]] = {
    503: {
        "description": "`not_ready`: products are not served yet, or not any more.",
        "headers": {"Retry-After": {"description": "Seconds until it is worth asking.", "schema": {"type": "integer"}}},
        "content": {MEDIA: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
    }
}
_READ: Final = timed_out() | documented(errors.Malformed, errors.BodyTooLarge, errors.Invalid)


class ServerMetadata(Answer):
    """What the server is, and which of the protocol's extensions it has."""

    name: Literal["tilewise"]
    version: str
    extensions: list[str]


class ServerLive(Answer):
    """The process answers."""

    live: Literal[True] = True


class ServerReady(Answer):
    """Products are served."""

    ready: Literal[True] = True


class ModelReady(Answer):
    """The model answers."""

    name: Literal["matmul"] = "matmul"
    ready: Literal[True] = True


class TensorMetadata(Answer):
    """A tensor; a size of -1 is any, and so are the batches that may come before both sizes."""

    name: str
    datatype: Annotated[str, Field(description="The type by default: others of the protocol's floats are served too.")]
    shape: list[int]


class ModelMetadata(Answer):
    """The model's tensors."""

    name: Literal["matmul"]
    versions: list[str]
    platform: Literal["tilewise"]
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: Annotated[
        dict[str, Scalar], Field(description="Which types there are, and which need a parameter to be JSON numbers.")
    ]


class TensorConfig(Answer):
    """A tensor in the words of a model's configuration."""

    name: str
    data_type: str
    dims: list[int]


class ModelConfig(Answer):
    """The model's configuration, as far as clients read it."""

    name: Literal["matmul"]
    platform: Literal["tilewise"]
    backend: Literal["tilewise"]
    max_batch_size: Literal[0]
    input: list[TensorConfig]
    output: list[TensorConfig]


class RepositoryModel(Answer):
    """One model of the repository."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


class Repository(RootModel[list[RepositoryModel]]):
    """The repository's models."""


class ModelStatistics(BaseModel):
    """Counts and nanoseconds since the service started."""

    name: str
    version: str
    last_inference: Annotated[int, Field(description="Milliseconds since 1970.")]
    inference_count: int
    execution_count: int
    inference_stats: dict[str, dict[str, int]]
    batch_stats: list[dict[str, Any]]
    memory_usage: list[dict[str, Any]]


class Statistics(Answer):
    """The statistics of every model that was asked for."""

    model_stats: list[ModelStatistics]


class RepositoryQuestion(StrictModel):
    """Which models."""

    ready: Annotated[bool, Field(description="Only those that are ready.")] = False


class RepositoryOrder(StrictModel):
    """What to do with a model."""

    parameters: dict[str, Scalar] = {}  # noqa: RUF012 - pydantic copies it


@router.get("/v2", summary="The server", response_model=ServerMetadata, responses=documented())
async def server_metadata(request: Request) -> Response:
    """The server's name and the protocol's extensions that it has."""
    regions = service_of(request).regions
    extensions = [*_EXTENSIONS]
    extensions += ["system_shared_memory"] if regions.allowed else []
    extensions += ["cuda_shared_memory"] if regions.has_cuda else []
    return reply(ServerMetadata(name="tilewise", version=version("tilewise"), extensions=extensions))


@router.get("/v2/health/live", summary="Does the server answer?", response_model=ServerLive, responses=documented())
async def server_live(request: Request) -> Response:
    """200 as long as the process can answer."""
    del request
    return reply(ServerLive())


@router.get(
    "/v2/health/ready",
    summary="Are inferences served?",
    response_model=ServerReady,
    responses=documented() | _UNREADY,
)
async def server_ready(request: Request) -> Response:
    """200 once every device's float32 defaults were verified in this process."""
    return _unready(request) or reply(ServerReady())


@router.get("/v2/models/stats", summary="Statistics of all models", response_model=Statistics, responses=documented())
async def all_model_statistics(request: Request) -> Response:
    """The statistics of the one model."""
    told = state_of(request.app).inference.told()
    return _json({"model_stats": [{"name": MODEL, "version": VERSION, **told}]})


@versioned(
    router,
    "GET",
    "/stats",
    summary="The model's statistics",
    response_model=Statistics,
    responses=documented(errors.UnknownModel),
)
async def model_statistics(request: Request) -> Response:
    """How many inferences there were, and how long their phases took."""
    return await all_model_statistics(request)


@versioned(
    router,
    "GET",
    "/ready",
    summary="Does the model answer?",
    response_model=ModelReady,
    responses=documented(errors.UnknownModel) | _UNREADY,
)
async def model_ready(request: Request) -> Response:
    """200 as soon as the server is ready."""
    return _unready(request) or reply(ModelReady())


@versioned(
    router,
    "GET",
    "/config",
    summary="The model's configuration",
    response_model=ModelConfig,
    responses=documented(errors.UnknownModel),
)
async def model_config(request: Request) -> Response:
    """The model's tensors in the words of a configuration; there is no batching that a client takes part in."""
    del request
    tensors = {name: TensorConfig(name=name, data_type="TYPE_FP32", dims=[-1, -1]) for name in "ABC"}
    told: dict[str, Any] = {"name": MODEL, "platform": PLATFORM, "backend": PLATFORM, "max_batch_size": 0}
    return reply(ModelConfig(**told, input=[tensors["A"], tensors["B"]], output=[tensors["C"]]))


@versioned(
    router,
    "GET",
    "",
    summary="The model",
    response_model=ModelMetadata,
    responses=documented(errors.UnknownModel),
)
async def model_metadata(request: Request) -> Response:
    """The model's versions and tensors: A and B in, C out."""
    del request
    tensors = {name: TensorMetadata(name=name, datatype="FP32", shape=[-1, -1]) for name in "ABC"}
    told: dict[str, Any] = {"name": MODEL, "versions": [VERSION], "platform": PLATFORM}
    told["parameters"] = {"datatypes": ", ".join(DTYPES), "json_needs_convert": ", ".join(_CONVERTED)}
    return reply(ModelMetadata(**told, inputs=[tensors["A"], tensors["B"]], outputs=[tensors["C"]]))


@router.post("/v2/repository/index", summary="All models", response_model=Repository, responses=documented() | _READ)
async def list_models(request: Request) -> Response:
    """The one model, and whether it is ready."""
    asked, reason = await read_document(RepositoryQuestion, request), service_of(request).ready()
    state: Literal["READY", "UNAVAILABLE"] = "READY" if reason is None else "UNAVAILABLE"
    model = RepositoryModel(name=MODEL, version=VERSION, state=state, reason=reason or "")
    return reply(Repository([] if asked.ready and reason is not None else [model]))


@router.post(
    "/v2/repository/models/{model}/load",
    summary="Load a model",
    response_class=Response,
    responses=documented(errors.UnknownModel, errors.Unsupported) | _READ,
)
async def load_model(request: Request, model: ModelName) -> Response:
    """Nothing is to be done: the model is always there. It takes no other configuration."""
    expect(model)
    order = await read_document(RepositoryOrder, request)
    if order.parameters:
        raise Unsupported(f"{MODEL} takes no {', '.join(order.parameters)}: it is part of the service")
    return Response()


@router.post(
    "/v2/repository/models/{model}/unload",
    summary="Unload a model",
    response_class=Response,
    responses=documented(errors.UnknownModel, errors.Unsupported),
)
async def unload_model(request: Request, model: ModelName) -> Response:
    """Refused: the model is part of the service."""
    del request
    expect(model)
    raise Unsupported(f"{MODEL} is part of the service and is not unloaded")


def _unready(request: Request) -> Response | None:
    reason = service_of(request).ready()
    return None if reason is None else problem(503, "not_ready", reason, headers={"Retry-After": "1"})


def _json(members: dict[str, Any]) -> Response:
    return Response(orjson.dumps(members), media_type="application/json")
