"""The launches of Freivalds' check: a matrix's projection, the peaks of its rows, and the sums of its words.

Each takes its arguments as a product does: A and C are the factors and what is found, B is the matrix. Of the sums of
words A is the matrix, of the peaks A is not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from kernels.launch import COUNTERS, Build, Launch, Step
from kernels.problem import Problem
from kernels.sources import source
from kernels.space import Config

VECTORS: Final = 16
# A row's factors: an element of each vector, its weight, and a place for what a projection says of a column beside.
WIDTH: Final = VECTORS + 2
CHUNK: Final = 256  # rows that are added up at once: of m rows, a sum goes through 256 + m / 256 roundings
SAMPLE: Final = 256  # elements by which a row's size is told
BLOCK_BYTES: Final = 2**16  # bytes of a matrix whose words have one sum
_SUMS: Final = VECTORS + 1  # of a column: each vector's, and its squared norm
_THREADS: Final = 128
_COLUMNS: Final = 2 * _THREADS  # of a block that projects
_ROWS: Final = 4  # of a block that looks for peaks
_WORD_THREADS: Final = 256
_DOUBLE: Final = 8
_KNOWN: Final = 512  # launches that are remembered


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """`batch` matrices of `rows` by `columns`; stored columns by rows where they are `turned`."""

    rows: int
    columns: int
    batch: int
    dtype: str
    turned: bool = False

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return Problem(1, self.columns, self.rows, self.batch, self.dtype).b_bytes

    @property
    def sketch_shape(self) -> tuple[int, int, int]:
        """The shape of its projection: WIDTH doubles of each column."""
        return self.batch, self.columns, WIDTH


@lru_cache(_KNOWN)
def project(matrix: StoredMatrix) -> Launch:
    """The launch that multiplies factors [batch, rows, WIDTH] by a matrix; it finds [batch, columns, WIDTH] doubles."""
    chunks = -(-matrix.rows // CHUNK)
    macros = (("CHUNK", str(CHUNK)),)
    step = Build("add_chunks", source("freivalds/add_chunks.cu"), "add_chunks", (("DTYPE_FLOAT64", "1"), *macros))
    sums = matrix.batch * _SUMS * matrix.columns
    return _launch(
        Build("project", source("freivalds/project.cu"), "project", (*_stored(matrix), *macros)),
        matrix,
        chunks * matrix.batch * -(-matrix.columns // _COLUMNS),
        workspace_bytes=4 * COUNTERS + chunks * sums * _DOUBLE,
        scalars=(matrix.batch,),
        after=(Step(step, -(-sums // _THREADS), (_THREADS, 1)),),
    )


@lru_cache(_KNOWN)
def row_peaks(matrix: StoredMatrix) -> Launch:
    """The launch that finds, as doubles [batch, rows], the largest magnitude among some elements of each row."""
    macros = (*_stored(matrix), ("SAMPLE", str(SAMPLE)))
    build = Build("row_peaks", source("freivalds/row_peaks.cu"), "row_peaks", macros)
    return _launch(build, matrix, matrix.batch * -(-matrix.rows // _ROWS))


@lru_cache(_KNOWN)
def word_sums(nbytes: int) -> Launch:
    """The launch that finds the sum of the 64-bit words of each BLOCK_BYTES of a matrix, modulo 2^64."""
    macros = (("DTYPE_FLOAT64", "1"), ("BLOCK_BYTES", str(BLOCK_BYTES)))
    build = Build("word_sums", source("freivalds/word_sums.cu"), "word_sums", macros)
    problem, grid = Problem(1, 1, 1, dtype="float64"), -(-nbytes // BLOCK_BYTES)
    return Launch("freivalds", Config.of({}), problem, build, grid, (_WORD_THREADS, 1), 0, scalars=(nbytes,))


def _launch(
    build: Build,
    matrix: StoredMatrix,
    grid: int,
    *,
    workspace_bytes: int = 0,
    scalars: tuple[int, ...] = (),
    after: tuple[Step, ...] = (),
) -> Launch:
    problem = Problem(1, matrix.columns, matrix.rows, matrix.batch, matrix.dtype)
    return Launch(
        "freivalds", Config.of({}), problem, build, grid, (_THREADS, 1), 0, workspace_bytes, scalars, after=after
    )


def _stored(matrix: StoredMatrix) -> tuple[tuple[str, str], ...]:
    return ("DTYPE_" + matrix.dtype.upper(), "1"), ("TURNED", str(int(matrix.turned)))
