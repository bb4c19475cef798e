"""The JSON part of an inference's answer, for the OpenAPI document: it is written around C's bytes by hand."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.api.inference.schemas import Scalar
from app.api.responses import Answer


class BinaryParameters(Answer):
    """Of an output whose bytes follow the JSON."""

    binary_data_size: int


class InferOutputTensor(Answer):
    """C: with its numbers, or with the bytes that follow, or with neither where it is in shared memory."""

    name: Literal["C"]
    datatype: str
    shape: list[int]
    parameters: BinaryParameters | None = None
    data: Annotated[
        list[float] | None, Field(description="In row-major order; what is not finite is NaN, Infinity or -Infinity.")
    ] = None


class InferResponse(Answer):
    """The JSON part of an answer. The parameters say what made C: device, kernel, match, instructions, precision.

    Where it is strict though it was to be emulated, `declined` says why.
    """

    id: str | None = None
    model_name: Literal["matmul"]
    model_version: Literal["1"]
    parameters: dict[str, Scalar]
    outputs: list[InferOutputTensor]
