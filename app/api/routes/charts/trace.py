"""GET /trace: a tile of a small product, step by step along k."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.params import StrictModel, read_query
from app.api.responses import Answer
from app.api.routes.charts.tables import TABLE, told
from app.errors import Invalid
from kernels import cost_model

router = DirectRouter("kernels")

Side = Annotated[int, Field(ge=1, le=32)]
Rows = list[list[int]]


class TraceQuery(StrictModel):
    """A product that can be looked at, and one tile of its C."""

    m: Annotated[Side, Field(description="Rows of A and C.", examples=[8])] = 8
    n: Annotated[Side, Field(description="Columns of B and C.", examples=[8])] = 8
    k: Annotated[Side, Field(description="Columns of A, rows of B.", examples=[8])] = 8
    tile: Annotated[Side, Field(description="The tile's side.", examples=[4])] = 4
    row: Annotated[int, Field(ge=0, le=31, description="Which tile of C, from the top.")] = 0
    column: Annotated[int, Field(ge=0, le=31, description="Which tile of C, from the left.")] = 0
    operands: Annotated[
        Literal["counted", "article"],
        Field(
            description="`counted`: 1, 2, 3 and on, row by row. `article`: those of a well-known article on tiling, A "
            "counted tile by tile and B its transpose, for which m and n are equal."
        ),
    ] = "counted"


class Phase(Answer):
    """One step of a block: a tile of A and one of B are loaded, then every thread adds their products to its sum."""

    number: int
    k_from: int
    k_to: Annotated[int, Field(description="The first k that is not of this step.")]
    a: Annotated[Rows, Field(description="The tile of A, cut off at the edge.")]
    b: Annotated[Rows, Field(description="The tile of B, cut off at the edge.")]
    sums: Annotated[Rows, Field(description="Each thread's sum after the step.")]
    reads_naive: Annotated[int, Field(description="Elements that this block has read by now without tiles.")]
    reads_tiled: Annotated[int, Field(description="Elements that it has read by now with them.")]
    printed: Annotated[
        Rows | None,
        Field(description="What the article prints for these sums, where it does: its last step has slips."),
    ] = None


class Trace(Answer):
    """A product of small whole numbers, and how one block makes its tile of C."""

    m: int
    n: int
    k: int
    tile: int
    row: int
    column: int
    operands: Literal["counted", "article"]
    a: Annotated[Rows, Field(description="A, of small whole numbers.")]
    b: Annotated[Rows, Field(description="B, likewise.")]
    c: Annotated[Rows, Field(description="The whole product.")]
    phases: list[Phase]
    reads_naive: Annotated[int, Field(description="Elements that all blocks read without tiles: 2 m n k.")]
    reads_tiled: Annotated[int, Field(description="Elements that all blocks read with them.")]


# The article's example, and what it prints of the sums of block (0,0). In its second step it adds 1370 for the squares
# of 17 to 20, which are 1374, and goes on in even steps; `sums` has the sums as they are.
_ARTICLE: Final = {"m": 8, "n": 8, "k": 8, "tile": 4, "row": 0, "column": 0, "operands": "article"}
_PRINTED: Final = (
    [[30, 70, 110, 150], [70, 174, 278, 382], [110, 278, 446, 614], [150, 382, 614, 846]],
    [[1400, 1760, 2120, 2480], [1760, 2220, 2680, 3140], [2120, 2680, 3240, 3800], [2480, 3140, 3800, 4460]],
)
_PHASE: Final = {"number": 0, "k_from": 0, "k_to": 2, "a": [[1, 2], [3, 4]], "b": [[1, 2], [3, 4]]}
_READS: Final = {"reads_naive": 16, "reads_tiled": 8}
EXAMPLES: Final[dict[str, Any]] = {
    "Trace": {
        "m": 2,
        "n": 2,
        "k": 2,
        "tile": 2,
        "row": 0,
        "column": 0,
        "operands": "counted",
        "a": [[1, 2], [3, 4]],
        "b": [[1, 2], [3, 4]],
        "c": [[7, 10], [15, 22]],
        "phases": [_PHASE | {"sums": [[7, 10], [15, 22]]} | _READS],
        **_READS,
    }
}


@router.get(
    "/trace",
    summary="One tile of a small product, step by step",
    response_model=Trace,
    responses=TABLE | documented(errors.NotAcceptable, errors.Invalid),
    query=TraceQuery,
)
async def trace(request: Request) -> Response:
    """What a block loads and adds at each step along k, and how many elements it reads with tiles and without."""
    return told(request, _traced(read_query(TraceQuery, request)), "phases")


def _traced(asked: TraceQuery) -> Trace:
    top, left, tile = asked.row * asked.tile, asked.column * asked.tile, asked.tile
    for name, first, size in (("row", top, asked.m), ("column", left, asked.n)):
        if first >= size:
            last = -(-size // tile) - 1
            raise Invalid(f"{name} is at most {last}: C has {last + 1} tiles that way", member=name)
    a, b = _operands(asked)
    own_a, own_b = a[top : top + tile], [line[left : left + tile] for line in b]
    blocks = (-(-asked.m // tile), -(-asked.n // tile))
    phases = _phases(own_a, own_b, tile)
    if asked.model_dump() == _ARTICLE:
        phases = [one.model_copy(update={"printed": sums}) for one, sums in zip(phases, _PRINTED, strict=True)]
    return Trace(
        a=a,
        b=b,
        c=_product(a, b),
        phases=phases,
        reads_naive=2 * asked.m * asked.n * asked.k,
        reads_tiled=asked.k * (asked.m * blocks[1] + asked.n * blocks[0]),
        **asked.model_dump(),
    )


def _phases(a: Rows, b: Rows, tile: int) -> list[Phase]:
    found = []
    for number, sums in enumerate(cost_model.trace(a, b, tile)):
        start, end = number * tile, min((number + 1) * tile, len(b))
        phase = Phase(
            number=number,
            k_from=start,
            k_to=end,
            a=[line[start:end] for line in a],
            b=b[start:end],
            sums=sums,
            reads_naive=2 * len(a) * len(b[0]) * end,
            reads_tiled=(len(a) + len(b[0])) * end,
        )
        found.append(phase)
    return found


def _operands(asked: TraceQuery) -> tuple[Rows, Rows]:
    """A and B; raises Invalid where the article's B, which is A's transpose, would have other sizes."""
    if asked.operands == "counted":
        return _counted(asked.m, asked.k), _counted(asked.k, asked.n)
    if asked.m != asked.n:
        raise Invalid(f"the article's B is A's transpose: m and n are equal, got {asked.m} and {asked.n}", member="n")
    tile, across = asked.tile, -(-asked.k // asked.tile)
    a = [
        [
            (row // tile * across + column // tile) * tile * tile + row % tile * tile + column % tile + 1
            for column in range(asked.k)
        ]
        for row in range(asked.m)
    ]
    return a, [list(line) for line in zip(*a, strict=True)]


def _counted(rows: int, columns: int) -> Rows:
    return [[row * columns + column + 1 for column in range(columns)] for row in range(rows)]


def _product(a: Rows, b: Rows) -> Rows:
    return [[sum(x * y for x, y in zip(line, column, strict=True)) for column in zip(*b, strict=True)] for line in a]
