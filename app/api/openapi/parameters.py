"""What routes tell of their requests: query parameters, headers and bodies that they read themselves."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

REFERENCE: Final = "#/components/schemas/{model}"


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
