"""The reference of HTTP, from the OpenAPI document, and of its errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.errors.codes import error_codes

Document = Mapping[str, Any]
REFERENCE: Final = "#/components/schemas/"


def operations(document: Document) -> str:
    """Every operation under its tag: parameters, bodies, and statuses with their codes."""
    lines: list[str] = []
    for tag in document["tags"]:
        lines += [f"## {tag['name']}", "", tag["description"], ""]
        for method, path, operation in _operations(document):
            if tag["name"] in operation["tags"]:
                lines += _operation(method, path, operation)
    return "\n".join(lines)


def schemas(document: Document) -> str:
    """Every object of bodies and answers: its members, their types and meanings."""
    lines: list[str] = []
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += [f"## {name}", "", _flat(schema.get("description", "")), ""]
        members = schema.get("properties", {})
        if members:
            lines += ["| member | type | meaning |", "| --- | --- | --- |"]
            lines += [
                f"| `{key}` | {_type(one)} | {_flat(one.get('description', ''))} |" for key, one in members.items()
            ]
            lines.append("")
    return "\n".join(lines)


def error_list() -> str:
    """Every code that an error's body may carry, by status."""
    found = sorted((each.status, each.code, each.meaning) for each in error_codes().values())
    lines = [f"| {status} | [`{code}`]({code}.md) | {_flat(meaning)} |" for status, code, meaning in found]
    return "\n".join(["| status | code | meaning |", "| --- | --- | --- |", *lines])


def error_facts(document: Document, code: str) -> str:
    """An error's status and meaning, and which operations say that they may answer it."""
    status, meaning = error_codes()[code].status, error_codes()[code].meaning
    by = [
        f"[`{method.upper()} {path}`](../http.md#{_anchor(method, path)})"
        for method, path, operation in _operations(document)
        if f"`{code}`" in operation["responses"].get(str(status), {}).get("description", "")
    ]
    lines = [f"**{status} {error_codes()[code].title}.** {_flat(meaning)}", ""]
    if code in {"internal_error", "not_found", "request_timeout"}:
        by = []
    return "\n".join([*lines, f"Answered by {', '.join(by)}." if by else "Any operation may answer it."])


def _operations(document: Document) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"### {method.upper()} {path}", "", f"*{operation['summary']}.*", "")
    yield from (operation.get("description", ""), "")
    parameters = operation.get("parameters", [])
    if parameters:
        yield from ("| parameter | in | type | meaning |", "| --- | --- | --- | --- |")
        yield from map(_parameter, parameters)
        yield ""
    body = operation.get("requestBody", {}).get("content", {})
    if body:
        yield from ("| request body | |", "| --- | --- |")
        yield from (f"| `{media}` | {_type(one.get('schema', {}))} |" for media, one in body.items())
        yield ""
    yield from ("| status | answer |", "| --- | --- |")
    yield from (_response(status, one) for status, one in sorted(operation["responses"].items()))
    yield ""


def _parameter(one: Mapping[str, Any]) -> str:
    schema = one.get("schema", {})
    name = f"`{one['name']}`" + (" (required)" if one.get("required") else "")
    default = f" Default: `{schema['default']}`." if "default" in schema else ""
    return f"| {name} | {one['in']} | {_type(schema)} | {_flat(one.get('description', ''))}{default} |"


def _response(status: str, one: Mapping[str, Any]) -> str:
    content = one.get("content", {})
    problem = "application/problem+json" in content
    kinds = [f"`{media}` {_type(each.get('schema', {}))}".strip() for media, each in content.items()]
    codes = [_linked(part) for part in one.get("description", "").split("\n\n")] if problem else []
    plain = _flat(one.get("description", "")).replace("Successful Response", "")  # the framework's, which says nothing
    text = "<br>".join(codes) if problem else plain
    headers = ", ".join(f"`{name}`" for name in one.get("headers", {}))
    shown = [text, *([] if problem else kinds), *([f"Headers: {headers}"] if headers else [])]
    return f"| {status} | {'<br>'.join(filter(None, shown))} |"


def _linked(text: str) -> str:
    """A code with its meaning, the code as a link to its page."""
    code = text.partition("`:")[0].removeprefix("`")
    return _flat(text if code not in error_codes() else f"[`{code}`](errors/{code}.md):{text.partition('`:')[2]}")


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(REFERENCE)
        return f"[{name}](schemas.md#{name.lower()})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(one) for one in schema[several]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    kind = schema.get("type", "")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _anchor(method: str, path: str) -> str:
    """What a heading of both is called in a link, by Markdown's rules."""
    return re.sub(r"[^\w\s-]", "", f"{method} {path}").lower().replace(" ", "-")


def _flat(text: str) -> str:
    """Text that fits a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
