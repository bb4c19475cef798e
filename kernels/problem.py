"""Problems: sizes, dtype, precision and transpositions of a product, in BLAS's letters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

ITEMSIZE: Final = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
PRECISIONS: Final = ("strict", "emulated", "tf32")
# The precisions that mean something for a dtype: tf32 and split products are ways to multiply wider elements.
CLASSES: Final = {
    "float32": PRECISIONS,
    "float64": ("strict", "emulated"),
    "float16": ("strict",),
    "bfloat16": ("strict",),
}
LARGEST: Final = 2**31 - 1  # of m, n, k and batch: what a kernel's 32-bit arguments hold
_ALIASES: Final = {
    "float32": ("fp32", "f32", "float", "single"),
    "float64": ("fp64", "f64", "double"),
    "float16": ("fp16", "f16", "half"),
    "bfloat16": ("bf16",),
}
_DTYPES: Final = {alias: name for name, aliases in _ALIASES.items() for alias in (name, *aliases)}
_SHAPE: Final = re.compile(r"[0-9]+(?:\s*[x\u00d7]\s*[0-9]+){0,3}", re.IGNORECASE)


def parse_shape(text: str) -> tuple[int, int, int, int]:
    """Read m, n, k and batch from 512 (a cube), 512x512x512 or 4096x16x4096x8 (a batch of 8).

    Blanks may stand around each x. Raises ValueError if the text is no shape or a size is out of range.
    """
    sizes = [size.lstrip("0") or "0" for size in re.findall("[0-9]+", text)]
    if not _SHAPE.fullmatch(text.strip()) or len(sizes) == 2:  # noqa: PLR2004 - two sizes leave the third open
        raise ValueError(f"a shape is 512 (a cube), 512x512x512 (MxNxK) or 512x512x512x8 (a batch), got {text!r}")
    if not all(len(size) <= len(str(LARGEST)) and 1 <= int(size) <= LARGEST for size in sizes):
        raise ValueError(f"a size is at least 1 and at most {LARGEST}, got {text!r}")
    m, n, k, *batch = map(int, sizes * 3 if len(sizes) == 1 else sizes)
    return m, n, k, batch[0] if batch else 1


def smaller(one: int, other: int) -> int:
    """The smaller of two sizes: of traced ones (app.exports) its expression, where min() would decide which it is."""
    return min(one, other) if _are_plain(one, other) else _traced("smaller", one, other)


def larger(one: int, other: int, *more: int) -> int:
    """The largest of sizes, as `smaller`."""
    found = max(one, other) if _are_plain(one, other) else _traced("larger", one, other)
    return larger(found, *more) if more else found


def _are_plain(one: int, other: int) -> bool:
    return isinstance(one, int) and isinstance(other, int)


def _traced(which: str, one: int, other: int) -> int:
    traced, plain = (one, other) if hasattr(one, which) else (other, one)
    found: int = getattr(traced, which)(plain)
    return found


def shape_text(m: int, n: int, k: int, batch: int = 1) -> str:
    """Write a shape as parse_shape reads it: 512x512x512, or 4096x16x4096 x 8 for a batch."""
    return f"{m}x{n}x{k}" if batch == 1 else f"{m}x{n}x{k} x {batch}"


def problem_text(shape: str, dtype: str, precision: str, trans_a: bool, trans_b: bool) -> str:
    """Write a problem for people: its shape and dtype, and its precision and transpositions if not the default."""
    words = [shape, dtype]
    words += [precision] if precision != "strict" else []
    words += ["".join("t" if transposed else "n" for transposed in (trans_a, trans_b))] if trans_a or trans_b else []
    return " ".join(words)


def parse_dtype(text: str) -> str:
    """Read float32, float64, float16, bfloat16 or another usual name of one; raises ValueError for anything else."""
    if (name := _DTYPES.get(text.strip().lower())) is None:
        usual = ", ".join(f"{name} ({', '.join(aliases)})" for name, aliases in _ALIASES.items())
        raise ValueError(f"dtype must be one of {usual}, got {text!r}")
    return name


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """C[m,n] = op(A)[m,k] x op(B)[k,n], row-major, for `batch` independent pairs.

    m, n and k describe op(A) and op(B); operands are stored as they arrive, so with `trans_a` A is k x m.
    Raises ValueError if a size is below 1 or a dtype or precision is unknown.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "float32"
    precision: str = "strict"
    trans_a: bool = False
    trans_b: bool = False

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.dtype not in ITEMSIZE:
            raise ValueError(f"dtype must be one of {', '.join(ITEMSIZE)}, got {self.dtype!r}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")

    @property
    def itemsize(self) -> int:
        """Bytes of one element of A, B or C."""
        return ITEMSIZE[self.dtype]

    @property
    def a_shape(self) -> tuple[int, int]:
        """Rows and columns of one A as stored."""
        return (self.k, self.m) if self.trans_a else (self.m, self.k)

    @property
    def b_shape(self) -> tuple[int, int]:
        """Rows and columns of one B as stored."""
        return (self.n, self.k) if self.trans_b else (self.k, self.n)

    @property
    def a_bytes(self) -> int:
        """Bytes of all batches of A."""
        return self.batch * self.m * self.k * self.itemsize

    @property
    def b_bytes(self) -> int:
        """Bytes of all batches of B."""
        return self.batch * self.k * self.n * self.itemsize

    @property
    def c_bytes(self) -> int:
        """Bytes of all batches of C."""
        return self.batch * self.m * self.n * self.itemsize

    @property
    def bytes(self) -> int:
        """The fewest bytes any kernel moves: A and B read once, C written once."""
        return self.a_bytes + self.b_bytes + self.c_bytes

    @property
    def flops(self) -> int:
        """Multiplications and additions: 2 m n k for each batch."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def family(self) -> str:
        """Dtype, precision and transpositions: problems of one family share kernels and transfer configs."""
        return f"{self.dtype}/{self.precision}/{'t' if self.trans_a else 'n'}{'t' if self.trans_b else 'n'}"

    def __str__(self) -> str:
        """The problem for people, such as 512x512x512 float32, or 4096x16x4096 x 8 bfloat16 nt."""
        shape = shape_text(self.m, self.n, self.k, self.batch)
        return problem_text(shape, self.dtype, self.precision, self.trans_a, self.trans_b)

    @property
    def key(self) -> str:
        """One line that names the problem, such as float32/strict/nn/1x1024x1024x1024 (batch first)."""
        return f"{self.family}/{self.batch}x{self.m}x{self.n}x{self.k}"

    @classmethod
    def of_key(cls, key: str) -> Problem:
        """Parse a key; raises ValueError if it is not one."""
        dtype, precision, letters, sizes = key.split("/")
        batch, m, n, k = map(int, sizes.split("x"))
        return cls(m, n, k, batch, dtype, precision, letters[0] == "t", letters[1] == "t")
