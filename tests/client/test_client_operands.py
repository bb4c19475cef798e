"""How operands travel: from where they lie, in the orientation in which they lie, each byte once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewise import Matrix
from tilewise._operands import WORTHWHILE, OperandPlan, is_room, plan

Array = NDArray[Any]
SIDE = 256  # a float32 matrix of so many rows and columns is worth a piece of its own


def sent(asked: OperandPlan) -> list[memoryview]:
    return [*asked.a.pieces(), *asked.b.pieces()]


def lies_in(piece: memoryview, array: Array) -> bool:
    return bool(np.shares_memory(np.frombuffer(piece, np.uint8), array))


def sizes(asked: OperandPlan) -> tuple[int, ...]:
    problem = asked.problem
    assert problem is not None
    return (problem.batch, problem.m, problem.n, problem.k)


def test_contiguous_and_transposed_matrices_are_sent_from_where_they_lie() -> None:
    a, b = np.ones((3, 5), np.float32), np.ones((7, 5), np.float32)
    asked = plan(a, b.T)
    assert asked.problem is not None
    assert (asked.problem.trans_a, asked.problem.trans_b) == (False, True)
    assert all(lies_in(piece, array) for piece, array in zip(sent(asked), (a, b), strict=True))
    fortran = plan(np.asfortranarray(a), b.T).problem
    assert fortran is not None
    assert fortran.trans_a


def test_a_vector_and_a_single_row_are_not_called_transposed() -> None:
    asked = plan(np.ones(5), np.ones((5, 1)))
    assert asked.problem is not None
    assert (asked.problem.trans_a, asked.problem.trans_b) == (False, False)


def test_a_batch_of_transposed_matrices_is_sent_from_where_it_lies() -> None:
    a, b = np.ones((4, 3, 5)), np.ones((4, 3, 7))
    asked = plan(a.swapaxes(-1, -2), b)
    assert sizes(asked) == (4, 5, 7, 3)
    assert [lies_in(piece, array) for piece, array in zip(sent(asked), (a, b), strict=True)] == [True, True]


def test_large_gapped_matrices_are_views_and_small_ones_a_copy() -> None:
    stack = np.ones((6, SIDE, SIDE), np.float32)
    pieces = plan(stack[::2], stack[::2]).a.pieces()
    assert [piece.nbytes for piece in pieces] == [SIDE * SIDE * 4] * 3
    assert all(lies_in(piece, stack) for piece in pieces)
    small = np.ones((6, 4, 4), np.float32)
    pieces = plan(small[::2], small[::2]).a.pieces()
    assert [piece.nbytes for piece in pieces] == [3 * 4 * 4 * 4]
    assert WORTHWHILE <= SIDE * SIDE * 4


def test_a_matrix_that_meets_a_batch_is_sent_once() -> None:
    one, many = np.ones((5, 6)), np.ones((10, 6, 7))
    asked = plan(many.swapaxes(-1, -2), one.T)
    assert sizes(asked) == (1, 70, 5, 6)
    assert sum(piece.nbytes for piece in sent(asked)) == (one.size + many.size) * 8
    mirrored = plan(np.ones((50, 60)), np.ones((10, 60, 2)))
    assert sizes(mirrored) == (1, 20, 50, 60)
    assert (mirrored.made, mirrored.shape) == ((10, 2, 50), (10, 50, 2))


def test_batches_of_vectors_against_a_large_matrix_copy_nothing() -> None:
    weights, vectors = np.ones((50, 60)), np.ones((10, 60, 1))
    asked = plan(weights, vectors)
    assert asked.straight
    assert all(lies_in(piece, array) for piece, array in zip(sent(asked), (vectors, weights), strict=True))


def test_a_broadcast_batch_names_the_same_memory_again() -> None:
    a, b = np.ones((3, 1, SIDE, SIDE), np.float32), np.ones((1, 2, SIDE, SIDE), np.float32)
    pieces = sent(plan(a, b))
    assert len(pieces) == 6 + 3  # both of b's lie one behind the other
    assert all(lies_in(piece, array) for piece, array in zip(pieces, [a] * 6 + [b] * 3, strict=True))


def test_answer_comes_straight_into_out_where_bytes_match() -> None:
    a, b = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
    asked, room = plan(a, b), np.empty((3, 5), np.float32)
    assert is_room(room, asked)
    assert not is_room(room.astype(np.float64), asked)
    assert not is_room(np.empty((5, 3), np.float32).T, asked)
    whole = np.ones(100, np.float32)
    assert not is_room(whole[:15].reshape(3, 5), plan(whole[:12].reshape(3, 4), b))


def test_a_resident_operand_is_named_and_its_transpose_is_a_flag() -> None:
    kept = Matrix("w", (6, 5), "float64")
    asked = plan(np.ones((3, 6)), kept)
    assert (asked.a.name, asked.b.name, len(sent(asked))) == (None, "w", 1)
    turned = plan(np.ones((3, 5)), kept.T).problem
    assert turned is not None
    assert turned.trans_b
    mirrored = plan(kept, np.ones((9, 5, 1)))
    assert mirrored.problem is not None
    assert (mirrored.a.name, mirrored.b.name, mirrored.problem.trans_b) == (None, "w", True)


def test_a_resident_operand_is_neither_converted_nor_repeated() -> None:
    kept = Matrix("w", (3, 6, 5), "float32")
    with pytest.raises(TypeError, match="w is float32 where the other operand makes the product float64"):
        plan(np.ones((2, 6)), kept)
    with pytest.raises(ValueError, match="w is resident and has 3 matrices for 6"):
        plan(np.ones((2, 1, 4, 6), np.float32), kept)
    assert sizes(plan(np.ones((4, 6), np.float32), kept)) == (3, 4, 5, 6)
