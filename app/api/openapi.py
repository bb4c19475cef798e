"""What routes tell their OpenAPI document: they read their requests themselves, so they also describe them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.examples import EXAMPLES
from app.api.writing import SlabResponse

# In the order in which a reader wants them.
TAGS: Final = {
    "tune": "Have tile sizes tried for shapes, and the fastest kept.",
    "best-config": "Which kernel and config to use for a problem, and how sure that is.",
    "matmul": "Multiply matrices by the best config known.",
    "matrices": "Matrices that stay with the service, so that products need not send them.",
    "jobs": "Work that outlives its request: tunes, and products made later.",
    "trials": "What was tried and how it went, and what is missing.",
    "devices": "The devices of this host.",
    "kernels": "The ladder of kernels: their spaces, their sources, and what a tile costs.",
    "operations": "Health, limits, version and metrics.",
    "inference": "The Open Inference Protocol, version 2, as Triton's clients speak it: one model, `matmul`.",
}
REFERENCE: Final = "#/components/schemas/{model}"


class DirectRoute(APIRoute):
    """A route whose function takes the Request, and the path's parameters as text, and gives the Response.

    Nothing stands between them: no dependency is resolved, no answer is validated again.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, HEAD as GET but for the body, or leave a method that this route does not have to the framework."""
        methods, method = self.methods or set(), scope["method"]
        if method not in methods and not (method == "HEAD" and "GET" in methods):
            await super().handle(scope, receive, send)
            return
        response = await self.endpoint(Request(scope, receive, send), **scope["path_params"])
        if method == "HEAD":
            response = _Bodiless(response)
        await response(scope, receive, send)


class _Unsorted(GenerateJsonSchema):
    """Leaves members in the order in which they were written: m, n, k."""

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        """Leave it as it is."""
        del parent_key
        return value


class _Bodiless:
    """An answer's status and headers: a body is not even begun, for it may be a stream without an end."""

    def __init__(self, response: Response) -> None:
        self._response = response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        start = {"status": self._response.status_code, "headers": self._response.raw_headers}
        if isinstance(self._response, SlabResponse):
            await self._response.aclose()
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": b""})


def parameters(query: type[BaseModel]) -> list[dict[str, Any]]:
    """Every member of a query model as a parameter."""
    schema = query.model_json_schema()
    required = schema.get("required", ())
    return [_parameter(name, member, name in required) for name, member in schema["properties"].items()]


def header(name: str, text: str, **schema: Any) -> dict[str, Any]:
    """One optional request header."""
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": text,
        "schema": schema or {"type": "string"},
    }


def body(model: type[BaseModel]) -> dict[str, Any]:
    """A JSON request body of a model, which `describe` must be told of."""
    schema = {"$ref": REFERENCE.format(model=model.__name__)}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def describe(app: FastAPI, models: Iterable[type[BaseModel]], schemas: Mapping[str, Any]) -> None:
    """Complete the OpenAPI document of `app`: models and schemas that routes only refer to, examples, names."""
    for route in app.routes:
        if isinstance(route, APIRoute):
            route.operation_id = route.endpoint.__name__

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                summary=app.summary,
                description=app.description,
                tags=[{"name": name, "description": text} for name, text in TAGS.items()],
                servers=[{"url": "/", "description": "The service that gave this document."}],
                contact={"name": "The maintainers of Tilewise"},
                license_info={"name": "Apache License 2.0", "identifier": "Apache-2.0"},
                routes=app.routes,
            )
            _, extra = models_json_schema(
                [(model, "validation") for model in models], ref_template=REFERENCE, schema_generator=_Unsorted
            )
            known = document.setdefault("components", {}).setdefault("schemas", {})
            known.update({**extra.get("$defs", {}), **schemas})
            for name, example in EXAMPLES.items():
                known[name]["example"] = example
            _unframed(document)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # the framework's documented way to extend the document


def _unframed(document: dict[str, Any]) -> None:
    """Take out the framework's own validation error: it is declared wherever a path has a parameter, and never sent."""
    for operations in document["paths"].values():
        for operation in operations.values():
            answer = operation["responses"].get("422", {}).get("content", {}).get("application/json", {})
            if answer.get("schema", {}).get("$ref", "").endswith("/HTTPValidationError"):
                del operation["responses"]["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)


def _parameter(name: str, member: dict[str, Any], required: bool) -> dict[str, Any]:
    schema = {key: value for key, value in member.items() if key not in {"description", "title", "examples", "anyOf"}}
    schema.update(next((choice for choice in member.get("anyOf", ()) if choice.get("type") != "null"), {}))
    if schema.get("default", ...) is None:
        del schema["default"]
    described = {"name": name, "in": "query", "required": required, "schema": schema}
    if "description" in member:
        described["description"] = member["description"]
    if member.get("examples"):
        described["example"] = member["examples"][0]
    return described
