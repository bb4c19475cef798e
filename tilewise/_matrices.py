"""MatrixMethods: matrices that stay with the service, so that a product need not send them again."""

from __future__ import annotations

from urllib.parse import quote

from tilewise import _npy
from tilewise._http1 import HttpRequest, target
from tilewise._operands import Array, Operand, arrayed
from tilewise._requests import Page, RequestMethods
from tilewise._sansio import Flow, Operation, Work
from tilewise.models import Matrix


class MatrixMethods(RequestMethods):
    """Resident matrices. Every method raises ClientError if the service refuses."""

    @Operation
    def put(self, name: str, a: Operand, *, evictable: bool = False) -> Flow[Matrix]:
        """Leave a matrix, or a batch of them, with the service under `name`; what had that name is replaced.

        An `evictable` one may be dropped where the service needs room: a product that names it is then MatrixGone.
        """
        array = arrayed(a)
        if isinstance(a, Matrix) or array.ndim not in {2, 3} or not array.size:
            raise ValueError(f"what the service keeps is a matrix or a batch of them, not empty, got {array.shape}")
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        body: list[memoryview] = yield Work(lambda: _npy.written(native))
        where = target(_place(name), {"evictable": evictable or None, "dtype": native.dtype.name})
        ask = HttpRequest("PUT", where, body, {"Content-Type": _npy.MEDIA}, again=True)
        return self._as(Matrix, (yield from self.transport.exchange(ask)))

    @Operation
    def get(self, matrix: Matrix | str, out: Array | None = None) -> Flow[Array]:
        """Fetch a resident matrix's numbers, into `out` where given (C-contiguous, of its shape and dtype)."""
        name, transposed = (matrix.name, matrix.transposed) if isinstance(matrix, Matrix) else (matrix, False)
        if out is not None and (transposed or not out.flags.c_contiguous or not out.flags.writeable):
            raise ValueError("out is a writeable C-contiguous array, and of the matrix, not of its transpose")
        ask = HttpRequest("GET", _place(name), (), {"Accept": _npy.MEDIA}, again=True)
        array = yield from self.transport.read_answer(ask, _npy.read(out))
        return array.swapaxes(-1, -2) if transposed else array

    @Operation
    def matrix(self, name: str) -> Flow[Matrix]:
        """Give the resident matrix of a name, as an operand."""
        ask = HttpRequest("GET", _place(name), (), {"Accept": "application/json"}, again=True)
        return self._as(Matrix, (yield from self.transport.exchange(ask)))

    @Operation
    def delete(self, matrix: Matrix | str) -> Flow[None]:
        """Have the service forget a resident matrix."""
        name = matrix.name if isinstance(matrix, Matrix) else matrix
        yield from self.transport.exchange(HttpRequest("DELETE", _place(name), again=True, done=404))

    @Operation
    def matrices(self, *, cursor: str | None = None, limit: int = 100) -> Flow[Page[Matrix]]:
        """List at most `limit` resident matrices by name. The page's `next` is the `cursor` of the page after it."""
        return (yield from self._page(Matrix, "matrices", {"cursor": cursor, "limit": limit}))


def _place(name: str) -> str:
    return f"/matrices/{quote(name, safe='')}"
