"""Problem: what is to be computed, in BLAS's letters."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """C[m,n] = op(A)[m,k] x op(B)[k,n], row-major, for `batch` independent pairs.

    m, n and k describe op(A) and op(B); operands are stored as they arrive, so with `trans_a` A is k x m.
    Raises ValueError where a size is below 1 or a dtype or precision is unknown.
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
        """What decides which kernels and configs may answer: dtype, precision and transpositions."""
        return f"{self.dtype}/{self.precision}/{'t' if self.trans_a else 'n'}{'t' if self.trans_b else 'n'}"

    @property
    def key(self) -> str:
        """One line that names the problem, such as float32/strict/nn/1x1024x1024x1024 (batch first)."""
        return f"{self.family}/{self.batch}x{self.m}x{self.n}x{self.k}"
