"""Shapes of an ONNX graph's values, as far as they follow from inputs and weights by a few usual operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Final

Shape = tuple[int | None, ...]

_SAME: Final = frozenset(
    [
        "Relu",
        "Gelu",
        "Tanh",
        "Sigmoid",
        "Erf",
        "Softmax",
        "LogSoftmax",
        "LayerNormalization",
        "RMSNormalization",
        "Dropout",
        "Identity",
        "Cast",
        "Elu",
        "LeakyRelu",
        "Selu",
        "Softplus",
        "HardSwish",
        "HardSigmoid",
        "Exp",
        "Log",
        "Sqrt",
        "Neg",
        "Abs",
        "Clip",
        "BatchNormalization",
        "Reciprocal",
    ]
)
_BROADCAST: Final = frozenset(["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu"])
_MOST_DIMS: Final = 16
_MOST_SIZE: Final = 2**40


@dataclass(frozen=True, slots=True)
class GraphValue:
    """A value's name, kind and shape, of numbers or names; `values` of whole numbers that may themselves be a shape."""

    name: str
    kind: int
    shape: tuple[int | str | None, ...] | None
    values: tuple[int, ...] | None = None


@dataclass(slots=True)
class Node:
    """An operation of the graph: its values by name, and its attributes that are whole numbers."""

    operation: str = ""
    domain: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    lists: dict[str, list[int]] = field(default_factory=dict)
    tensor: GraphValue | None = None


class Graph:
    """What is known of a graph's values; what inputs have a name for is `free`, None: not known."""

    def __init__(self, free: int | None) -> None:
        self.shapes: dict[str, Shape] = {}
        self.kinds: dict[str, int] = {}
        self.values: dict[str, tuple[int, ...]] = {}
        self._free, self._names = free, set[str]()

    def keep(self, tensor: GraphValue, *, is_input: bool = False) -> None:
        """Keep what is told of a value."""
        if is_input:
            self._names.update(size for size in tensor.shape or () if isinstance(size, str))
        if tensor.kind:
            self.kinds[tensor.name] = tensor.kind
        if tensor.shape is not None and len(tensor.shape) <= _MOST_DIMS:
            self.shapes[tensor.name] = tuple(self._size(size) for size in tensor.shape)
        if tensor.values is not None:
            self.values[tensor.name] = tensor.values

    def _size(self, size: int | str | None) -> int | None:
        if isinstance(size, str):
            return self._free if size in self._names else None
        return size if size is not None and 0 <= size < _MOST_SIZE else None


def output_shapes(node: Node, graph: Graph) -> None:
    """Keep the shape of a node's first output, if it follows from its inputs and was not told."""
    if not node.outputs or node.domain:
        return
    name = node.outputs[0]
    if node.operation == "Constant" and node.tensor is not None:
        graph.keep(GraphValue(name, node.tensor.kind, node.tensor.shape, node.tensor.values))
        return
    kind = next((graph.kinds[each] for each in node.inputs if each in graph.kinds), 0)
    if kind and name not in graph.kinds and node.operation != "Cast":
        graph.kinds[name] = kind
    if name in graph.shapes and None not in graph.shapes[name]:
        return
    shapes = [graph.shapes.get(each) for each in node.inputs]
    found = _shape(node, shapes, graph)
    if found is not None and len(found) <= _MOST_DIMS and all(size is None or size < _MOST_SIZE for size in found):
        graph.shapes[name] = found


def _shape(node: Node, shapes: list[Shape | None], graph: Graph) -> Shape | None:
    first, second = ([*shapes, None, None])[:2]
    if first is None:
        return None
    if node.operation in _SAME:
        return first
    if node.operation == "Transpose":
        order = node.lists.get("perm") or [*range(len(first))][::-1]
        return tuple(first[at] for at in order) if sorted(order) == [*range(len(first))] else None
    if node.operation == "Reshape" and len(node.inputs) > 1:
        return _reshaped(first, graph.values.get(node.inputs[1]))
    return None if second is None else _of_two(node, first, second)


def _of_two(node: Node, first: Shape, second: Shape) -> Shape | None:
    if node.operation in _BROADCAST:
        return _broadcast(first, second)
    if node.operation == "MatMul" and min(len(first), len(second)) > 1:
        batches = _broadcast(first[:-2], second[:-2])
        return None if batches is None else (*batches, first[-2], second[-1])
    if node.operation == "Gemm" and len(first) == len(second) == 2:  # noqa: PLR2004 - matrices
        return first[1 if node.numbers.get("transA") else 0], second[0 if node.numbers.get("transB") else 1]
    return None


def _broadcast(one: Shape, other: Shape) -> Shape | None:
    """NumPy's rule; None where shapes do not fit."""
    rank = max(len(one), len(other))
    pairs = zip((1,) * (rank - len(one)) + one, (1,) * (rank - len(other)) + other, strict=True)
    sizes: list[int | None] = []
    for a, b in pairs:
        if a != b and 1 not in {a, b}:
            return None
        sizes.append(b if a == 1 else a)
    return tuple(sizes)


def _reshaped(shape: Shape, wanted: tuple[int, ...] | None) -> Shape | None:
    """ONNX's rule: 0 keeps a dimension, -1 takes what is left."""
    if wanted is None or None in shape or len(wanted) > _MOST_DIMS or wanted.count(-1) > 1:
        return None
    sizes = [int(shape[at] or 0) if size == 0 and at < len(shape) else size for at, size in enumerate(wanted)]
    rest, total = prod(size for size in sizes if size != -1), prod(int(size or 0) for size in shape)
    if -1 in sizes:
        if rest <= 0 or total % rest:
            return None
        sizes[sizes.index(-1)] = total // rest
    return tuple(sizes) if all(size >= 0 for size in sizes) else None
