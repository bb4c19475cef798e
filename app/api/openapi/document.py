"""The OpenAPI document, made when it is first asked for: the schemas of all models take long to build."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema

from app.api.openapi.direct_route import DirectRoute
from app.api.openapi.examples import EXAMPLES
from app.api.openapi.operations_examples import OPERATIONS
from app.api.openapi.parameters import REFERENCE

# In the order in which a reader wants them.
TAGS: Final = {
    "tune": "Have tile sizes tried for shapes, and the fastest kept.",
    "best-config": "Which kernel and config to use for a problem, and how sure that is.",
    "matmul": "Multiply matrices by the best config known.",
    "matrices": "Matrices that stay with the service, so that products need not send them.",
    "jobs": "Work that outlives its request: tunes, and products made later.",
    "trials": "What was tried and how it went, and what is missing.",
    "workloads": "Which products a program runs, tuned by the time that they take of it.",
    "interchange": "Results as files: exported for other programs and services, and imported from them.",
    "cache": "Opaque results of other tuners, by namespace and key.",
    "devices": "The devices of this host.",
    "kernels": "The ladder of kernels: their spaces, their sources, and what a tile costs.",
    "operations": "Health, limits, version and metrics.",
    "keys": "Who may do what: API keys, and sessions of browsers.",
    "inference": "The Open Inference Protocol, version 2, as Triton's clients speak it: one model, `matmul`.",
}


class _UnsortedSchema(GenerateJsonSchema):
    """Leaves members in the order in which they were written: m, n, k."""

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        """Leave it as it is."""
        del parent_key
        return value


def describe(
    app: FastAPI,
    models: Iterable[type[BaseModel]],
    schemas: Callable[[], Mapping[str, Any]],
    examples: Mapping[str, Any],
) -> None:
    """Complete the OpenAPI document of `app`: models and schemas that routes only refer to, examples, names."""

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
                routes=[route.described() if isinstance(route, DirectRoute) else route for route in app.routes],
            )
            _, extra = models_json_schema(
                [(model, "validation") for model in models], ref_template=REFERENCE, schema_generator=_UnsortedSchema
            )
            known = document.setdefault("components", {}).setdefault("schemas", {})
            known.update({**extra.get("$defs", {}), **schemas()})
            for name, example in {**EXAMPLES, **OPERATIONS, **examples}.items():
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
