"""What callers send: query strings and JSON bodies, strict, with their domain values."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from app.api.query import Asked
from app.services.matrices import NAME
from app.services.tuning import TuneOrder
from kernels.problem import Problem

LARGEST: Final = 2**31 - 1
_LAST: Final = 2**63 - 1

Size = Annotated[int, Field(ge=1, le=LARGEST)]
Name = Annotated[str, StringConstraints(pattern=r"^[ -~]{1,200}$")]  # what an id or a key is made of
MatrixName = Annotated[str, StringConstraints(pattern=f"^{NAME}$"), Field(examples=["weights"])]
Dtype = Literal["float32", "float64", "float16", "bfloat16"]
Precision = Literal["strict", "emulated", "tf32"]

Rows = Annotated[Size, Field(description="Rows of op(A) and C.", examples=[256])]
Columns = Annotated[Size, Field(description="Columns of op(B) and C.", examples=[256])]
Depth = Annotated[Size, Field(description="Columns of op(A), rows of op(B).", examples=[256])]
Batch = Annotated[Size, Field(description="Independent products of this shape.")]
DtypeField = Annotated[Dtype, Field(description="Element type of A, B and C.")]
PrecisionField = Annotated[Precision, Field(description="Which arithmetic may be used; strict is fused multiply-adds.")]
TransA = Annotated[bool, Field(description="A is stored as k x m.")]
TransB = Annotated[bool, Field(description="B is stored as n x k.")]
Convert = Annotated[
    bool | None,
    Field(
        description="Read and write float16 and bfloat16 as JSON numbers, which are refused otherwise: rounded to the "
        "nearest on their way in, exact on their way out. Binary forms need no conversion."
    ),
]
DeviceId = Annotated[Name | None, Field(description="A device's id, such as cuda:0; by default the first that suits.")]


class Nothing(Asked):
    """A query string with nothing in it: a parameter that means nothing is a mistake."""


class ProblemQuery(Asked):
    """A problem, in BLAS's letters."""

    m: Rows
    n: Columns
    k: Depth
    batch: Batch = 1
    dtype: DtypeField = "float32"
    precision: PrecisionField = "strict"
    trans_a: TransA = False
    trans_b: TransB = False

    def problem(self) -> Problem:
        """The domain's value."""
        return Problem(self.m, self.n, self.k, self.batch, self.dtype, self.precision, self.trans_a, self.trans_b)


class BestsQuery(Asked):
    """Which of the stored bests."""

    device: DeviceId = None
    dtype: Annotated[Dtype | None, Field(description="Only problems of this element type.")] = None


class WantsQuery(Asked):
    """How many of the shapes that were asked for and not tuned."""

    device: DeviceId = None
    limit: Annotated[int, Field(ge=1, le=1000, description="Shapes at most, those asked for most first.")] = 100


class BestQuery(ProblemQuery):
    """Which problem the best config is asked for, where, and how exact the answer must be."""

    device: DeviceId = None
    match: Annotated[
        Literal["exact"] | None, Field(description="`exact`: 404 rather than a stale, near or default config.")
    ] = None


class Shape(Asked):
    """Sizes of op(A)[m,k] x op(B)[k,n], for `batch` independent pairs."""

    m: Rows
    n: Columns
    k: Depth
    batch: Batch = 1


class Budget(Asked):
    """How much a job may try, shared evenly among its shapes; it ends where the first of its limits is reached.

    Null means 64 trials a kernel and 20 s a shape; beside a gain_percent it means no limit.
    """

    trials: Annotated[Size | None, Field(description="Trials of all shapes together.")] = None
    seconds: Annotated[
        float | None, Field(gt=0, le=604_800, allow_inf_nan=False, description="Seconds of all shapes together.")
    ] = None
    gain_percent: Annotated[
        float | None,
        Field(
            gt=0,
            lt=100,
            allow_inf_nan=False,
            description="A kernel's search ends once its best is expected to be beaten by less than this.",
        ),
    ] = None


class TuneRequest(Asked):
    """What to tune."""

    shapes: Annotated[
        list[Shape],
        Field(min_length=1, max_length=256, description="What to tune.", examples=[[{"m": 256, "n": 256, "k": 256}]]),
    ]
    dtype: DtypeField = "float32"
    precision: PrecisionField = "strict"
    trans_a: TransA = False
    trans_b: TransB = False
    device: Annotated[Name | None, Field(description="A device's id; null tunes the first of each model.")] = None
    kernels: Annotated[
        list[Name] | None, Field(min_length=1, max_length=64, description="Kernels to try; null tries all.")
    ] = None
    strategy: Annotated[
        Literal["auto", "exhaustive", "genetic", "random"],
        Field(description="How configs are chosen. `auto` learns from the model of tiling and from what was measured."),
    ] = "auto"
    budget: Budget = Budget()
    retune: Annotated[bool, Field(description="Measure again what has been tuned already.")] = False

    def order(self) -> TuneOrder:
        """The domain's value."""
        kind = (self.dtype, self.precision, self.trans_a, self.trans_b)
        return TuneOrder(
            problems=tuple(Problem(each.m, each.n, each.k, each.batch, *kind) for each in self.shapes),
            device=self.device,
            kernels=None if self.kernels is None else tuple(self.kernels),
            strategy=self.strategy,
            trials=self.budget.trials,
            seconds=self.budget.seconds,
            gain_percent=self.budget.gain_percent,
            retune=self.retune,
        )


class ProductMembers(Asked):
    """What a product may be told beside its operands: in the query of every form, or in a JSON body."""

    dtype: Annotated[Dtype | None, Field(description="Element type; what binary operands say must agree.")] = None
    precision: Annotated[Precision | None, Field(description="Which arithmetic may be used; strict by default.")] = None
    trans_a: Annotated[bool | None, Field(description="A is stored as k x m.")] = None
    trans_b: Annotated[bool | None, Field(description="B is stored as n x k.")] = None
    batch: Annotated[Size | None, Field(description="Independent products; operands are three-dimensional.")] = None
    device: Annotated[Name | None, Field(description="A device's id; by default the one that is free first.")] = None
    kernel: Annotated[
        Name | None, Field(description="Force one kernel, such as naive or vendor; by default the best config's.")
    ] = None
    convert: Convert = None


class ProductQuery(ProductMembers):
    """The query of a product. Sizes are needed for application/octet-stream, and must agree elsewhere."""

    m: Annotated[Size | None, Field(description="Rows of op(A) and C.")] = None
    n: Annotated[Size | None, Field(description="Columns of op(B) and C.")] = None
    k: Annotated[Size | None, Field(description="Columns of op(A), rows of op(B).")] = None
    a: Annotated[MatrixName | None, Field(description="A is this resident matrix; the body does not have it.")] = None
    b: Annotated[MatrixName | None, Field(description="B is this resident matrix; the body does not have it.")] = None
    c: Annotated[MatrixName | None, Field(description="Leave C resident, called so.")] = None
    evictable: Annotated[bool | None, Field(description="C may be dropped where room is needed.")] = None

    def wanted(self) -> dict[str, Any]:
        """What is said of the product itself, by name."""
        return self.model_dump(exclude={"a", "b", "c", "evictable"})


class MatrixQuery(Asked):
    """How a matrix arrives, and whether it must stay. Sizes are needed for application/octet-stream."""

    rows: Annotated[Size | None, Field(description="Its rows, as stored.")] = None
    columns: Annotated[Size | None, Field(description="Its columns, as stored.")] = None
    batch: Annotated[Size | None, Field(description="How many there are: the matrix is three-dimensional.")] = None
    dtype: Annotated[Dtype | None, Field(description="Element type; what binary matrices say must agree.")] = None
    convert: Convert = None
    evictable: Annotated[bool, Field(description="It may be dropped where room is needed.")] = False


class MatricesQuery(Asked):
    """Which resident matrices, by name."""

    after: Annotated[MatrixName | None, Field(description="The `next` of the page before this one.")] = None
    limit: Annotated[int, Field(ge=1, le=1000, description="Matrices a page.")] = 100


class ResultQuery(Asked):
    """How a result is wanted."""

    convert: Convert = None


class JobsQuery(Asked):
    """Which jobs, newest first."""

    state: Annotated[
        Literal["queued", "running", "succeeded", "failed", "cancelled"] | None, Field(description="Only these.")
    ] = None
    kind: Annotated[Literal["tune", "matmul"] | None, Field(description="Only these.")] = None
    before: Annotated[Name | None, Field(description="The `next` of the page before this one.")] = None
    limit: Annotated[int, Field(ge=1, le=1000, description="Jobs a page.")] = 50


class TrialsQuery(Asked):
    """Which trials, oldest first."""

    device: Annotated[Name | None, Field(description="Only those measured on this device's model.")] = None
    problem: Annotated[
        Name | None, Field(description="Only this problem's key.", examples=["float32/strict/nn/1x256x256x256"])
    ] = None
    kernel: Annotated[Name | None, Field(description="Only this kernel's; vendor is the vendor's library.")] = None
    state: Annotated[Literal["measured", "rejected"] | None, Field(description="Only these.")] = None
    job_id: Annotated[Name | None, Field(description="Only this job's.")] = None
    round: Annotated[
        Literal["search", "final", "report"] | None,
        Field(description="Only these: `final` chose the winner, `report` was measured after the choice."),
    ] = None
    samples: Annotated[bool, Field(description="With every sample, in milliseconds.")] = False
    format: Annotated[
        Literal["json", "replay"],
        Field(description="`replay`: all that the filters name as a recording to replay, in lines; no pages."),
    ] = "json"
    after: Annotated[int, Field(ge=0, le=_LAST, description="The `next` of the page before this one.")] = 0
    limit: Annotated[int, Field(ge=1, le=1000, description="Trials a page.")] = 100


class AnalysisQuery(Asked):
    """Whose traffic and arithmetic to work out: a shape and a square tile, BM = BN = BK = tile."""

    m: Rows
    n: Columns
    k: Depth
    tile: Annotated[Size, Field(description="The tile's side; any will do, legal or not.", examples=[16])]
    batch: Batch = 1
    dtype: DtypeField = "float32"
    kernel: Annotated[Literal["tiled", "naive"], Field(description="Whose memory traffic.")] = "tiled"
    device: DeviceId = None

    def problem(self) -> Problem:
        """The domain's value."""
        return Problem(self.m, self.n, self.k, self.batch, self.dtype)


class KernelQuery(Asked):
    """A problem to hold a kernel's space against; all of m, n and k, or none."""

    m: Annotated[Size | None, Field(description="Rows of op(A) and C.")] = None
    n: Annotated[Size | None, Field(description="Columns of op(B) and C.")] = None
    k: Annotated[Size | None, Field(description="Columns of op(A), rows of op(B).")] = None
    batch: Batch = 1
    dtype: DtypeField = "float32"
    precision: PrecisionField = "strict"
    trans_a: TransA = False
    trans_b: TransB = False
    device: DeviceId = None
    config: Annotated[
        str | None,
        StringConstraints(pattern=r"^[A-Z_]{1,16}=[0-9]{1,9}(,[A-Z_]{1,16}=[0-9]{1,9}){0,15}$"),
        Field(
            description="One config: how it is launched, or the rule that refuses it.", examples=["BM=16,BN=16,BK=16"]
        ),
    ] = None
