"""An inference request: its JSON part, read into what the product needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from app.api.formats.json_matrix import check_answer, check_dtype
from app.api.formats.number_lists import SplitText
from app.api.formats.operand_spec import ProductOptions, TensorSpec, is_stacked, problem_of
from app.api.inference.datatypes import DTYPES
from app.api.inference.json_tensors import split_text
from app.api.params import WHOLE, StrictModel, validated
from app.api.schemas import PRECISION, Convert, DeviceId, Name, Precision, TransA, TransB
from app.errors import Invalid, Malformed, Unsupported
from kernels.problem import ITEMSIZE, LARGEST, Problem

_LAST: Final = 2**63 - 1
_FEW: Final = 4  # members of a list that are looked at, where there may be two

_NUMBERS: Final = {"type": "array", "items": {"type": "number"}}
_DATA: Final = {
    "anyOf": [_NUMBERS, {"type": "array", "items": _NUMBERS}],
    "description": "Numbers in row-major order, flat or nested.",
    "examples": [[1.0, 2.0, 3.0, 4.0]],
}

Bytes = Annotated[int, Field(ge=0, le=_LAST), WHOLE]
Datatype = Annotated[
    str, Field(description="Of both inputs.", examples=["FP32"], json_schema_extra={"enum": [*DTYPES]})
]
Scalar: TypeAlias = bool | int | float | str
Extent = Annotated[int, Field(ge=0, le=LARGEST), WHOLE]
Integer = Annotated[int, WHOLE]


def _few(value: object) -> object:
    """A list, without what is far behind its end: each member that is wrong takes a kilobyte to say."""
    return value[:_FEW] if isinstance(value, list) else value


class _Open(StrictModel):
    """What may have members that mean nothing here: the protocol lets everyone add some."""

    model_config = ConfigDict(extra="ignore")


class _SharedMemoryParameters(_Open):
    """Where a tensor's bytes are, when they are not in the JSON text."""

    shared_memory_region: Annotated[
        Name | None, Field(description="A registered region's name; with `shared_memory_byte_size`.")
    ] = None
    shared_memory_byte_size: Annotated[Bytes | None, Field(description="Bytes of it that the tensor has.")] = None
    shared_memory_offset: Annotated[Bytes, Field(description="Where in the region they begin.")] = 0

    def region(self, name: str) -> RegionRef | None:
        """The part of a region, if one is named; raises Invalid."""
        if self.shared_memory_region is None:
            return None
        if self.shared_memory_byte_size is None:
            raise Invalid(f"{name} names a shared memory region without shared_memory_byte_size", member=name)
        return RegionRef(self.shared_memory_region, self.shared_memory_offset, self.shared_memory_byte_size)


class InputParameters(_SharedMemoryParameters):
    """Where an input's bytes are."""

    binary_data_size: Annotated[Bytes | None, Field(description="Its bytes among those that follow the JSON.")] = None


class OutputParameters(_SharedMemoryParameters):
    """Where the output is wanted."""

    binary_data: Annotated[bool | None, Field(description="Whether as bytes that follow the JSON.")] = None
    classification: Annotated[Integer, Field(description="Not offered: 0.")] = 0


class RequestParameters(_Open):
    """How to multiply. Others are ignored, as the protocol has it, and so is what it reserves."""

    precision: Annotated[Precision | None, Field(description=PRECISION)] = None
    kernel: Annotated[Name | None, Field(description="Force one kernel, such as naive or vendor.")] = None
    trans_a: TransA = False
    trans_b: TransB = False
    device: DeviceId = None
    convert: Convert = None
    binary_data_output: Annotated[bool, Field(description="Answer in bytes where the output does not say.")] = False
    priority: Annotated[Integer, Field(description="Not weighed.")] = 0
    timeout: Annotated[Integer | None, Field(description="Microseconds; not weighed.")] = None
    sequence_id: Annotated[int | str, Field(description="Not weighed.")] = 0
    sequence_start: bool = False
    sequence_end: bool = False


class InferInput(_Open):
    """One operand, as stored: with one of data and the parameters binary_data_size and shared_memory_region."""

    name: Literal["A", "B"]
    datatype: Datatype
    shape: Annotated[list[Extent], Field(min_length=1, max_length=8, examples=[[2, 2]])]
    parameters: InputParameters = InputParameters()
    data: Annotated[Any, WithJsonSchema(_DATA)] = None


class InferOutput(_Open):
    """The product, and how it is wanted."""

    name: Literal["C"]
    parameters: OutputParameters = OutputParameters()


class InferRequest(_Open):
    """The JSON part of an inference request."""

    id: Annotated[str | None, Field(max_length=1000, description="Is answered as it is.")] = None
    parameters: RequestParameters = RequestParameters()
    inputs: Annotated[
        list[InferInput],
        BeforeValidator(_few),
        Field(min_length=2, max_length=2, description="One A and one B, in any order."),
    ]
    outputs: Annotated[
        tuple[InferOutput, ...],
        BeforeValidator(_few),
        Field(max_length=1, strict=False, description="C, or nothing."),
    ] = ()


@dataclass(frozen=True, slots=True)
class RegionRef:
    """Bytes of a registered region."""

    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Listed:
    """Numbers that came in the JSON text."""

    data: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Binary:
    """Bytes that follow the JSON text."""

    nbytes: int


TensorSource: TypeAlias = Listed | Binary | RegionRef


@dataclass(frozen=True, slots=True)
class Tensor:
    """An operand, and where its numbers come from."""

    described: TensorSpec
    source: TensorSource


@dataclass(frozen=True, slots=True)
class Inference:
    """A request that was understood; `inputs` are in the order in which their bytes follow."""

    id: str | None
    inputs: tuple[Tensor, Tensor]
    problem: Problem
    stacked: bool
    binary: bool
    region: RegionRef | None
    device: str | None
    kernel: str | None

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """A, then B."""
        return tuple(sorted(self.inputs, key=lambda each: each.described.name))

    @property
    def following(self) -> int:
        """Bytes that follow the JSON text."""
        return sum(each.source.nbytes for each in self.inputs if isinstance(each.source, Binary))


def understood(text: memoryview) -> Inference:
    """Read the JSON part; raises Malformed, Invalid, InvalidMatrix, Unsupported."""
    split = split_text(text)
    members = split.value
    if not isinstance(members, dict):
        raise Malformed("the request is no JSON object")
    request = validated(InferRequest, members)
    asked, output = request.parameters, (request.outputs or (InferOutput(name="C"),))[0].parameters
    first, second = (_tensor(each, split, asked.convert) for each in request.inputs)
    if first.described.name == second.described.name:
        raise Invalid(f"the inputs are {first.described.name} twice: send A and B", member="inputs")
    if output.classification:
        raise Unsupported("the product's elements are no classes: leave classification out")
    wanted = ProductOptions(precision=asked.precision, trans_a=asked.trans_a, trans_b=asked.trans_b)
    a, b = sorted((first.described, second.described), key=lambda each: each.name)
    binary = asked.binary_data_output if output.binary_data is None else output.binary_data
    problem, region = problem_of(a, b, wanted), output.region("C")
    if region is not None and region.nbytes < problem.c_bytes:
        facts = {"member": "C", "expected": problem.c_bytes, "size": region.nbytes}
        raise Invalid(f"C takes {problem.c_bytes} bytes, the memory for it has {region.nbytes}", **facts)
    if region is None and not binary:
        check_answer(problem, asked.convert)
    return Inference(request.id, (first, second), problem, is_stacked(a), binary, region, asked.device, asked.kernel)


def _tensor(given: InferInput, split: SplitText, convert: bool | None) -> Tensor:
    name = given.name
    if given.datatype not in DTYPES:
        raise Unsupported(f"{name} is {given.datatype}: send {', '.join(DTYPES)}", operand=name)
    described = TensorSpec(name, DTYPES[given.datatype], tuple(given.shape))
    region, size = given.parameters.region(name), given.parameters.binary_data_size
    if sum(way is not None for way in (given.data, region, size)) != 1:
        raise Invalid(f"{name} needs one of data, binary_data_size and shared_memory_region", member=name)
    if size is None and region is None:
        check_dtype(described.dtype, convert)
        return Tensor(described, Listed(split.list_of(given.data)))
    source = region or Binary(size or 0)
    expected = prod(described.shape) * ITEMSIZE[described.dtype]
    if source.nbytes != expected:
        message = f"{name} of {given.datatype} and shape {given.shape} takes {expected} bytes, not {source.nbytes}"
        raise Invalid(message, member=name, expected=expected, size=source.nbytes)
    return Tensor(described, source)
