"""The one model, `matmul`, under its path with and without a version; and the memory its requests may name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import Path
from starlette.requests import Request
from starlette.responses import Response

from app.api.openapi.direct_route import DirectRouter
from app.errors import UnknownModel

MODEL: Final = "matmul"
VERSION: Final = "1"  # clients read it as an integer

ModelName = Annotated[str, Path(json_schema_extra={"enum": [MODEL]})]
ModelVersion = Annotated[str, Path(json_schema_extra={"enum": [VERSION]})]
Route = Callable[[Request], Awaitable[Response]]


def expect(model: str, version: str = VERSION) -> None:
    """Raise UnknownModel if there is no such model, or no such version of it."""
    if model != MODEL:
        raise UnknownModel(f"there is no model {model[:100]}, there is {MODEL}")
    if version != VERSION:
        raise UnknownModel(f"there is no version {version[:100]} of {MODEL}, there is {VERSION}")


def versioned(router: DirectRouter, method: str, ending: str, **told: Any) -> Callable[[Route], Route]:
    """Have `router` answer a path below the model, and the same below its version."""

    def decorate(route: Route) -> Route:
        async def latest(request: Request, model: ModelName) -> Response:
            expect(model)
            return await route(request)

        async def exact(request: Request, model: ModelName, version: ModelVersion) -> Response:
            expect(model, version)
            return await route(request)

        latest.__name__, exact.__name__ = route.__name__, f"{route.__name__}_of_version"
        described = {"description": route.__doc__, **told}
        router.add(method, f"/v2/models/{{model}}{ending}", latest, **described)
        described["summary"] = f"{told['summary']}, by its version"
        router.add(method, f"/v2/models/{{model}}/versions/{{version}}{ending}", exact, **described)
        return route

    return decorate
