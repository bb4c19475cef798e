"""What callers send: query strings and JSON bodies, strict, with their domain values."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from app.api.body.operand_files import NAME as FILE_NAME
from app.api.formats.operand_spec import ProductOptions
from app.api.params import WHOLE, PageQuery, StrictModel
from app.errors import Invalid
from app.services.matmul.resident_matrices import NAME
from app.services.tuning.request import TuneSpec
from app.tuning import budget
from kernels.problem import LARGEST, Problem, parse_dtype, parse_shape

_SHAPE_PATTERN: Final = "^[1-9][0-9]{0,8}((x[1-9][0-9]{0,8}){2,3})?$"
_SIZES: Final = ("m", "n", "k", "batch")
_FILE: Final = "The operand is this .npy in the service's folder of operands; the body does not have it."


def _dtype(value: object) -> object:
    """A usual name of an element type as the service's own; what is none is left to be refused."""
    with suppress(ValueError):
        return parse_dtype(value) if isinstance(value, str) else value
    return value


def config_of(text: str) -> dict[str, int]:
    """The parameters that the text of a config gives."""
    return {name: int(value) for name, value in (pair.split("=") for pair in text.split(","))}


def _readable(text: str) -> str:
    """The text of a shape; raises ValueError."""
    parse_shape(text)
    return text


def _sizes(value: object) -> object:
    """A shape's text or list of sizes as its members; raises ValueError for a text that is none."""
    if isinstance(value, str):
        return dict(zip(_SIZES, parse_shape(value), strict=True))
    if isinstance(value, list):
        if len(value) not in {3, 4}:
            raise ValueError(f"a shape is [m, n, k] or [m, n, k, batch], got {len(value)} sizes")
        return dict(zip(_SIZES, value, strict=False))
    return value


Size = Annotated[int, Field(ge=1, le=LARGEST), WHOLE]
ConfigText = Annotated[str, StringConstraints(pattern=r"^[A-Z_]{1,16}=[0-9]{1,9}(,[A-Z_]{1,16}=[0-9]{1,9}){0,15}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[ -~]{1,200}$")]  # what an id or a key is made of
FileName = Annotated[
    str, StringConstraints(pattern=f"^{FILE_NAME}$", max_length=512), Field(examples=["models/weights.npy"])
]
MatrixName = Annotated[str, StringConstraints(pattern=f"^{NAME}$"), Field(examples=["weights"])]
Dtype = Annotated[Literal["float32", "float64", "float16", "bfloat16"], BeforeValidator(_dtype)]
Precision = Literal["strict", "emulated", "tf32"]

Rows = Annotated[Size, Field(description="Rows of op(A) and C.", examples=[256])]
Columns = Annotated[Size, Field(description="Columns of op(B) and C.", examples=[256])]
Depth = Annotated[Size, Field(description="Columns of op(A), rows of op(B).", examples=[256])]
Batch = Annotated[Size, Field(description="Independent products of this shape.")]
DtypeField = Annotated[Dtype, Field(description="Element type of A, B and C.")]
_SIZED: Final = "{}: plain bytes need it, what others say agrees with it."
PRECISION: Final = "Which arithmetic may be used: `emulated` of float32 and float64 alone, `tf32` of float32 alone."
PrecisionField = Annotated[Precision, Field(description=PRECISION)]
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


class Nothing(StrictModel):
    """A query string with nothing in it: a parameter that means nothing is a mistake."""


class Cordoning(StrictModel):
    """Why a device is cordoned."""

    reason: Annotated[
        str, Field(min_length=1, max_length=200, description="What those are told whom the device refuses.")
    ]


class ProblemFilter(StrictModel):
    """Which problems: each member that is given narrows them down."""

    MEANT = {"problem": "shape"}  # noqa: RUF012 - it is a ClassVar in Asked

    shape: Annotated[
        str | None,
        AfterValidator(_readable),
        Field(
            description="Only this shape, m x n x k (x batch); sizes that are given beside it agree with it.",
            examples=["512x512x512"],
            json_schema_extra={"pattern": _SHAPE_PATTERN},
        ),
    ] = None
    m: Annotated[Size | None, Field(description="Only problems of so many rows of C.")] = None
    n: Annotated[Size | None, Field(description="Only problems of so many columns of C.")] = None
    k: Annotated[Size | None, Field(description="Only problems of so many columns of op(A).")] = None
    batch: Annotated[Size | None, Field(description="Only problems of so many products.")] = None
    dtype: Annotated[Dtype | None, Field(description="Only problems of this element type.")] = None
    precision: Annotated[Precision | None, Field(description="Only problems of this precision.")] = None
    trans_a: Annotated[bool | None, Field(description="Only problems whose A is stored so.")] = None
    trans_b: Annotated[bool | None, Field(description="Only problems whose B is stored so.")] = None

    def members(self) -> dict[str, Any]:
        """The members of a problem that are asked for; raises Invalid where the shape and a size disagree."""
        said = self.model_dump(include=set(ProblemQuery.model_fields), exclude_none=True)
        sizes = {} if self.shape is None else dict(zip(_SIZES, parse_shape(self.shape), strict=True))
        for name, size in sizes.items():
            if said.get(name, size) != size:
                raise Invalid(f"{name} is {said[name]}, and {size} in the shape {self.shape}", member=name)
        return sizes | said


class ProblemQuery(StrictModel):
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


class BestsQuery(ProblemFilter, PageQuery):
    """Which of the stored bests."""

    device: DeviceId = None


class MissesQuery(ProblemFilter, PageQuery):
    """Which of the shapes that were asked for and not tuned, those asked for most first."""

    device: DeviceId = None


class OneBestQuery(ProblemQuery):
    """Which problem's best, on which device's model."""

    device: DeviceId = None


class OneMissQuery(ProblemQuery):
    """Which problem that was asked for and not tuned, on which device's model."""

    device: DeviceId = None


class BestQuery(ProblemQuery):
    """Which problem the best config is asked for, where, and how exact the answer must be."""

    device: DeviceId = None
    match: Annotated[
        Literal["exact"] | None, Field(description="`exact`: 404 rather than a stale, near or default config.")
    ] = None


class Shape(StrictModel):
    """Sizes of op(A)[m,k] x op(B)[k,n], for `batch` independent pairs."""

    m: Rows
    n: Columns
    k: Depth
    batch: Batch = 1


_ShapeText = Annotated[str, Field(pattern=_SHAPE_PATTERN, examples=["512x512x512"])]
_ShapeSizes = Annotated[list[Size], Field(min_length=3, max_length=4)]


class Budget(StrictModel):
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


class TuneRequest(StrictModel):
    """What to tune."""

    MEANT = {name: f"budget.{name}" for name in ("trials", "seconds", "gain_percent")} | {"shape": "shapes"}

    shapes: Annotated[
        list[Annotated[Shape, BeforeValidator(_sizes, json_schema_input_type=Shape | _ShapeSizes | _ShapeText)]],
        Field(
            min_length=1,
            max_length=256,
            description="What to tune: objects, [m, n, k] with the batch after them where there is one, or texts.",
            examples=[[{"m": 256, "n": 256, "k": 256}, "512x512x512"]],
        ),
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
        Literal["auto", "exhaustive", "genetic", "random", "known"],
        Field(
            description="How configs are chosen. `auto` learns from the model of tiling and from what was measured; "
            "`known` searches nothing and measures again the best that is known, the default and the baselines."
        ),
    ] = "auto"
    budget: Budget = Budget()
    retune: Annotated[bool, Field(description="Measure again what has been tuned already.")] = False

    def spec(self) -> TuneSpec:
        """The domain's value."""
        kind = (self.dtype, self.precision, self.trans_a, self.trans_b)
        return TuneSpec(
            problems=tuple(Problem(each.m, each.n, each.k, each.batch, *kind) for each in self.shapes),
            devices=() if self.device is None else (self.device,),
            kernels=None if self.kernels is None else tuple(self.kernels),
            strategy=self.strategy,
            budget=budget.Budget(self.budget.trials, self.budget.seconds, self.budget.gain_percent),
            retune=self.retune,
        )


class ProductMembers(StrictModel):
    """What a product may be told beside its operands: in the query of every form, or in a JSON body."""

    MEANT = {"A": "a", "B": "b"}  # noqa: RUF012 - it is a ClassVar in Asked

    dtype: Annotated[Dtype | None, Field(description="Element type; what binary operands say agrees.")] = None
    precision: Annotated[Precision | None, Field(description=PRECISION)] = None
    trans_a: Annotated[bool | None, Field(description="A is stored as k x m.")] = None
    trans_b: Annotated[bool | None, Field(description="B is stored as n x k.")] = None
    batch: Annotated[Size | None, Field(description="Independent products; operands are three-dimensional.")] = None
    device: Annotated[Name | None, Field(description="A device's id; by default the one that is free first.")] = None
    kernel: Annotated[
        Name | None, Field(description="Force one kernel, such as naive or vendor; by default the best config's.")
    ] = None
    convert: Convert = None
    verify: Annotated[
        Literal["freivalds"] | None,
        Field(description="Certify C by Freivalds' check before it is answered; what fails is 500 certificate_failed."),
    ] = None
    placement: Annotated[
        Literal["auto", "one", "all"] | None,
        Field(
            description="The devices that make it: `one`; `all` that compute its class alike, in tiles; or `auto`, all "
            "where it is made in tiles anyway, or one is expected to take 0.25 s. `all` excludes `device`."
        ),
    ] = None


class ProductQuery(ProductMembers):
    """The query of a product. Sizes are needed for application/octet-stream, and must agree elsewhere."""

    m: Annotated[Size | None, Field(description=_SIZED.format("Rows of op(A) and C"))] = None
    n: Annotated[Size | None, Field(description=_SIZED.format("Columns of op(B) and C"))] = None
    k: Annotated[Size | None, Field(description=_SIZED.format("Columns of op(A), rows of op(B)"))] = None
    a: Annotated[MatrixName | None, Field(description="A is this resident matrix; the body does not have it.")] = None
    b: Annotated[MatrixName | None, Field(description="B is this resident matrix; the body does not have it.")] = None
    a_file: Annotated[FileName | None, Field(description=_FILE)] = None
    b_file: Annotated[FileName | None, Field(description=_FILE)] = None
    c: Annotated[MatrixName | None, Field(description="Leave C resident, called so.")] = None
    evictable: Annotated[bool | None, Field(description="C may be dropped for room; with `c` alone.")] = None

    def options(self) -> ProductOptions:
        """The domain's value; raises Invalid."""
        if self.evictable is not None and self.c is None:
            raise Invalid("evictable is about a result that is left resident, and c names none", member="evictable")
        for name, file in (("a", self.a_file), ("b", self.b_file)):
            if file is not None and getattr(self, name) is not None:
                raise Invalid(f"{name} names a resident matrix, and {name}_file a file", member=f"{name}_file")
        return ProductOptions(**self.model_dump())


class MatrixQuery(StrictModel):
    """How a matrix arrives, and whether it must stay. Its shape is needed for application/octet-stream."""

    MEANT = {"rows": "shape", "columns": "shape", "batch": "shape"}  # noqa: RUF012 - it is a ClassVar in Asked

    shape: Annotated[
        str | None,
        Field(
            pattern=r"^[1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){1,2}$",
            description="Rows x columns as stored, of a batch count x rows x columns; plain bytes need it.",
            examples=["256x128"],
        ),
    ] = None
    dtype: Annotated[Dtype | None, Field(description="Element type; what binary matrices say must agree.")] = None
    convert: Convert = None
    evictable: Annotated[bool, Field(description="It may be dropped where room is needed.")] = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that the shape says."""
        return tuple(map(int, (self.shape or "").split("x")))


class MatricesQuery(PageQuery):
    """Which page of the resident matrices, by name."""


class ResultQuery(StrictModel):
    """How a result is wanted."""

    convert: Convert = None


class JobsQuery(PageQuery):
    """Which jobs, newest first."""

    state: Annotated[
        Literal["queued", "running", "cancelling", "succeeded", "failed", "cancelled"] | None,
        Field(description="Only these."),
    ] = None
    kind: Annotated[
        Literal["tune", "matmul", "profile"] | None,
        Field(description="Only these: a product made later is a matmul."),
    ] = None


class TrialsQuery(ProblemFilter, PageQuery):
    """Which trials, oldest first."""

    device: Annotated[Name | None, Field(description="Only those measured on this device's model.")] = None
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


class KernelQuery(StrictModel):
    """A problem to hold a kernel's space against; all of m, n and k, or none."""

    m: Annotated[Size | None, Field(description="Rows of op(A) and C; with `n` and `k`.")] = None
    n: Annotated[Size | None, Field(description="Columns of op(B) and C; with `m` and `k`.")] = None
    k: Annotated[Size | None, Field(description="Columns of op(A), rows of op(B); with `m` and `n`.")] = None
    batch: Batch = 1
    dtype: DtypeField = "float32"
    precision: PrecisionField = "strict"
    trans_a: TransA = False
    trans_b: TransB = False
    device: DeviceId = None
    config: Annotated[
        ConfigText | None,
        Field(
            description="One config, with `m`, `n` and `k`: how it is launched, or what refuses it.",
            examples=["BM=16,BN=16,BK=16"],
        ),
    ] = None
