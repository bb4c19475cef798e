"""ONNX models: MatMul and Gemm of the graph, by shapes that the model tells and what follows of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from math import prod
from typing import BinaryIO, Final

from app.workloads.counted import ProductCounter, Workload, problem_of
from app.workloads.onnx_shapes import Graph, GraphValue, Node, output_shapes
from app.workloads.options import ReadOptions
from app.workloads.protobuf import BYTES, VARINT, MessageField, MessageReader
from kernels.problem import Problem

_GRAPH, _NODE, _INITIALIZER, _INPUT, _OUTPUT, _VALUE = 7, 1, 5, 11, 12, 13
_LONGEST: Final = 2**20  # bytes of a node or a value, and of weights that are read as a shape a thousandth of it
_SHAPE_BYTES: Final = 512
_MOST_NODES: Final = 500_000
_DTYPES: Final = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
_INT64: Final = 7
_Dims = tuple[int | str | None, ...]
_OTHERS: Final = ("MatMulInteger", "QLinearMatMul", "MatMulNBits", "FusedMatMul")
_OPEN: Final = (
    "the shapes of its operands are not told: write them with onnx.shape_inference.infer_shapes, and give the size of "
    "dimensions that have names as free"
)


def read_onnx(stream: BinaryIO, options: ReadOptions) -> Workload:
    """The products of a model, of which weights are not read; raises InvalidWorkload."""
    counter, graph = ProductCounter("onnx"), Graph(options.free)
    reader = MessageReader(stream)
    nodes: list[Node] = []
    for part in reader.fields():
        if part.kind == BYTES and part.number == _GRAPH:
            _read_graph(reader.within(part.value), graph, nodes)
        elif part.kind == BYTES:
            reader.skip(part.value)
    for node in nodes:
        if node.operation in {"MatMul", "Gemm", *_OTHERS} and not node.domain:
            _count(counter, node, graph, options)
        output_shapes(node, graph)
    return counter.workload()


def _count(counter: ProductCounter, node: Node, graph: Graph, options: ReadOptions) -> None:
    try:
        counter.add(_problem(node, graph, options))
    except ValueError as error:
        counter.skip(node.operation, str(error))


def _problem(node: Node, graph: Graph, options: ReadOptions) -> Problem:
    """The problem of a node; raises ValueError with the reason why it is none here."""
    if node.operation in _OTHERS:
        raise ValueError("products of integers, or with scales, are no problem here")
    a, b = (graph.shapes.get(name) for name in node.inputs[:2]) if len(node.inputs) > 1 else (None, None)
    if a is None or b is None or None in a or None in b or len(a) < 2 or len(b) < 2:  # noqa: PLR2004
        raise ValueError(_OPEN)
    kind = next((graph.kinds[name] for name in node.inputs[:2] if name in graph.kinds), 1)
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise ValueError(f"elements of type {kind} of TensorProto.DataType are no problem here")
    first, second = [int(size or 0) for size in a], [int(size or 0) for size in b]
    trans = bool(node.numbers.get("transA")), bool(node.numbers.get("transB"))
    if node.operation == "Gemm":
        m, k = first[::-1] if trans[0] else first
        return problem_of((m, second[0 if trans[1] else 1], k), 1, dtype, options.precision, *trans)
    if len(second) == 2:  # noqa: PLR2004 - one B for all: the batches of A are rows
        return problem_of((prod(first[:-1]), second[-1], first[-1]), 1, dtype, options.precision, False, False)
    batch = prod(max(pair) for pair in zip(*_aligned(first[:-2], second[:-2]), strict=True))
    return problem_of((first[-2], second[-1], first[-1]), batch, dtype, options.precision, False, False)


def _aligned(one: list[int], other: list[int]) -> tuple[list[int], list[int]]:
    rank = max(len(one), len(other))
    return [1] * (rank - len(one)) + one, [1] * (rank - len(other)) + other


def _read_graph(reader: MessageReader, graph: Graph, nodes: list[Node]) -> None:
    for part in reader.fields():
        if part.kind != BYTES:
            continue
        if part.number == _INITIALIZER:
            graph.keep(_tensor(reader.within(part.value)))
        elif part.number not in {_NODE, _INPUT, _OUTPUT, _VALUE} or part.value > _LONGEST:
            reader.skip(part.value)
        elif part.number == _NODE:
            if len(nodes) >= _MOST_NODES:
                reader.refuse(f"it has more than {_MOST_NODES} nodes")
            nodes.append(_node(_message(reader, part)))
        else:
            value = _value(_message(reader, part))
            if value.name not in graph.shapes:
                graph.keep(value, is_input=part.number == _INPUT)


def _message(reader: MessageReader, part: MessageField) -> MessageReader:
    """A short message, which is read at once."""
    start = reader.at
    return MessageReader(BytesIO(reader.read(part.value)), part.value, start)


def _text(reader: MessageReader, part: MessageField) -> str:
    return reader.read(part.value).decode("utf-8", "replace")


@dataclass(slots=True)
class _Attribute:
    name: str = ""
    number: int = 0
    numbers: list[int] = field(default_factory=list)
    tensor: GraphValue | None = None


def _node(reader: MessageReader) -> Node:
    node = Node()
    for part in reader.fields():
        if part.kind != BYTES:
            continue
        if part.number in {1, 2}:
            (node.inputs if part.number == 1 else node.outputs).append(_text(reader, part))
        elif part.number == 4:  # noqa: PLR2004 - onnx.proto numbers the fields
            node.operation = _text(reader, part)
        elif part.number == 7:  # noqa: PLR2004 - the same
            node.domain = _text(reader, part).replace("ai.onnx", "")
        elif part.number == 5:  # noqa: PLR2004 - the same
            one = _attribute(_message(reader, part))
            node.numbers[one.name], node.lists[one.name] = one.number, one.numbers
            node.tensor = one.tensor or node.tensor
        else:
            reader.skip(part.value)
    return node


def _attribute(reader: MessageReader) -> _Attribute:
    found = _Attribute()
    for part in reader.fields():
        if part.number == 1 and part.kind == BYTES:
            found.name = _text(reader, part)
        elif part.number == 3 and part.kind == VARINT:  # noqa: PLR2004 - onnx.proto numbers the fields
            found.number = _signed(part.value)
        elif part.number == 8:  # noqa: PLR2004 - the same
            found.numbers += _numbers(reader, part)
        elif part.number == 5 and part.kind == BYTES:  # noqa: PLR2004 - the same
            found.tensor = _tensor(reader.within(part.value))
        elif part.kind == BYTES:
            reader.skip(part.value)
    return found


def _tensor(reader: MessageReader) -> GraphValue:
    """A tensor's name, kind and shape, and its numbers if it may be a shape itself."""
    dims: list[int | str | None] = []
    name, kind, values, raw = "", 0, list[int](), b""
    for part in reader.fields():
        if part.number == 1:
            dims += _numbers(reader, part)
        elif part.number == 2 and part.kind == VARINT:  # noqa: PLR2004 - onnx.proto numbers the fields
            kind = part.value
        elif part.number == 8 and part.kind == BYTES and part.value <= _LONGEST:  # noqa: PLR2004 - the same
            name = _text(reader, part)
        elif part.number == 7 and part.value <= _SHAPE_BYTES:  # noqa: PLR2004 - the same
            values += _numbers(reader, part)
        elif part.number == 9 and part.kind == BYTES and part.value <= _SHAPE_BYTES:  # noqa: PLR2004 - the same
            raw = reader.read(part.value)
        elif part.kind == BYTES:
            reader.skip(part.value)
    if kind == _INT64 and raw:
        values = [int.from_bytes(raw[at : at + 8], "little", signed=True) for at in range(0, len(raw) - 7, 8)]
    return GraphValue(name, kind, tuple(dims), tuple(values) if kind == _INT64 else None)


def _value(reader: MessageReader) -> GraphValue:
    """A value's name, kind and shape; dimensions without a number are None."""
    name, kind, dims = "", 0, None
    for part in reader.fields():
        if part.number == 1 and part.kind == BYTES:
            name = _text(reader, part)
        elif part.number == 2 and part.kind == BYTES:  # noqa: PLR2004 - onnx.proto numbers the fields
            kind, dims = _type(reader.within(part.value))
        elif part.kind == BYTES:
            reader.skip(part.value)
    return GraphValue(name, kind, dims)


def _type(reader: MessageReader) -> tuple[int, _Dims | None]:
    kind, dims = 0, None
    for part in reader.fields():
        if part.number == 1 and part.kind == BYTES:  # a tensor
            inner = reader.within(part.value)
            for one in inner.fields():
                if one.number == 1 and one.kind == VARINT:
                    kind = one.value
                elif one.number == 2 and one.kind == BYTES:  # noqa: PLR2004 - onnx.proto numbers the fields
                    dims = _dimensions(inner.within(one.value))
                elif one.kind == BYTES:
                    inner.skip(one.value)
        elif part.kind == BYTES:
            reader.skip(part.value)
    return kind, dims


def _dimensions(reader: MessageReader) -> _Dims:
    dims: list[int | str | None] = []
    for part in reader.fields():
        if part.number != 1 or part.kind != BYTES:
            reader.skip(part.value if part.kind == BYTES else 0)
            continue
        inner = reader.within(part.value)
        size: int | str | None = None
        for one in inner.fields():
            if one.number == 1 and one.kind == VARINT:
                size = one.value
            elif one.number == 2 and one.kind == BYTES:  # noqa: PLR2004 - onnx.proto numbers the fields
                size = _text(inner, one)
            elif one.kind == BYTES:
                inner.skip(one.value)
        dims.append(size)
    return tuple(dims)


def _numbers(reader: MessageReader, part: MessageField) -> list[int]:
    """A repeated number: one, or many in one field."""
    if part.kind == VARINT:
        return [_signed(part.value)]
    if part.kind != BYTES:
        return []
    data, found = reader.read(part.value) if part.value <= _LONGEST else reader.refuse("a shape is too long"), []
    value = place = 0
    for byte in data:
        value |= (byte & 127) << (7 * place)
        place = place + 1 if byte > 127 else 0  # noqa: PLR2004 - the upper bit says that another follows
        if place > 9:  # noqa: PLR2004 - a number has ten bytes at most
            reader.refuse("a number of more than ten bytes")
        if not place:
            found.append(_signed(value))
            value = 0
    return found


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value
