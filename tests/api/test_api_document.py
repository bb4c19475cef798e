"""The OpenAPI document: what generators of clients and readers make of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from app.main import create_app
from app.settings import Settings

_JSON = "application/json"
# What has nothing in it but words that its schema says, or the protocol's own texts.


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(Settings()).openapi()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def example_of(document: dict[str, Any], content: dict[str, Any]) -> Any:
    """A media type's own example, or that of the schema that it refers to."""
    schema = content["schema"]
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return content.get("example", schema.get("example"))


def validate(document: dict[str, Any], value: Any, schema: dict[str, Any]) -> None:
    jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]}).validate(value)


@pytest.mark.rotating
def test_operations_are_named_after_their_functions(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)
    assert {"tune", "best_config", "matmul", "list_jobs", "get_job", "get_kernel_source", "infer"} <= set(names)
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", name) for name in names)


def test_tags_come_in_the_order_in_which_a_reader_wants_them(document: dict[str, Any]) -> None:
    names = [tag["name"] for tag in document["tags"]]
    assert names[:5] == ["tune", "best-config", "matmul", "matrices", "jobs"]
    assert names[-1] == "inference"
    assert {tag for _, _, operation in operations(document) for tag in operation["tags"]} == set(names)
    assert all(tag["description"] for tag in document["tags"])


def test_document_says_where_by_whom_and_under_which_licence(document: dict[str, Any]) -> None:
    assert document["servers"][0]["url"] == "/"
    assert document["info"]["license"]["identifier"] == "Apache-2.0"
    assert document["info"]["contact"]["name"]


def test_every_body_has_an_example_that_its_schema_allows(document: dict[str, Any]) -> None:
    seen = 0
    for path, method, operation in operations(document):
        content = operation.get("requestBody", {}).get("content", {}).get(_JSON)
        if content is not None:
            example = example_of(document, content)
            assert example is not None, (method, path)
            validate(document, example, content["schema"])
            seen += 1
    assert seen >= 6


def test_every_main_answer_has_an_example_that_its_schema_allows(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        for status, answer in operation["responses"].items():
            stream = answer.get("content", {}).get("text/event-stream")
            assert stream is None or stream["example"].endswith("\n\n"), path
            content = answer.get("content", {}).get(_JSON)
            if content is None or not status.startswith("2"):
                continue
            example = example_of(document, content)
            assert example is not None, (method, path, status)
            validate(document, example, content["schema"])


def test_errors_have_one_shape_everywhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert not {"HTTPValidationError", "ValidationError"} & set(schemas)
    assert {"m", "n", "k", "batch", "dtype"} <= set(schemas["Problem"]["properties"])
    validate(document, schemas["ProblemDetails"]["example"], {"$ref": "#/components/schemas/ProblemDetails"})
    for path, method, operation in operations(document):
        for status, answer in operation["responses"].items():
            if status[0] in "45":
                told = answer["content"]["application/problem+json"]["schema"]
                assert told == {"$ref": "#/components/schemas/ProblemDetails"}, (method, path, status)


def test_members_of_a_shape_come_in_their_usual_order(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for shape in (schemas["TuneRequest"]["properties"]["shapes"]["examples"][0][0], schemas["Shape"]["properties"]):
        assert list(shape)[:3] == ["m", "n", "k"]


def test_text_is_declared_as_text_alone(document: dict[str, Any]) -> None:
    for path in ("/kernels/{name}/source", "/metrics"):
        assert set(document["paths"][path]["get"]["responses"]["200"]["content"]) == {"text/plain"}
    assert set(document["paths"]["/jobs/{job_id}/events"]["get"]["responses"]["200"]["content"]) == {
        "text/event-stream"
    }


@pytest.mark.parametrize(
    ("path", "name", "words"),
    [
        ("/analysis", "tile", "either it or `config`"),
        ("/analysis", "config", "In place of `tile`"),
        ("/kernels/{name}", "m", "with `n` and `k`"),
        ("/kernels/{name}", "config", "with `m`, `n` and `k`"),
        ("/bests", "shape", "agree with it"),
        ("/trials", "shape", "agree with it"),
        ("/matmul", "m", "plain bytes need it"),
        ("/matmul", "evictable", "with `c` alone"),
        ("/matmul", "precision", "`tf32` of float32 alone"),
        ("/best-config", "precision", "`tf32` of float32 alone"),
        ("/matrices/{name}", "shape", "plain bytes need it"),
    ],
)
def test_a_rule_between_parameters_is_said_where_they_are(
    document: dict[str, Any], path: str, name: str, words: str
) -> None:
    told = [each for method in document["paths"][path].values() for each in method.get("parameters", ())]
    assert any(each["name"] == name and words in each.get("description", "") for each in told)


def test_a_rule_between_members_is_said_in_their_schema(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert "one of data and the parameters" in schemas["InferInput"]["description"]
    assert "with `shared_memory_byte_size`" in json.dumps(schemas["InputParameters"])
    assert "One A and one B" in json.dumps(schemas["InferRequest"])
    assert "`tf32` of float32 alone" in json.dumps(schemas["TuneRequest"])
    assert "`tf32` of float32 alone" in json.dumps(schemas["RequestParameters"])
