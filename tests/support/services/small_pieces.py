"""Pieces of a quarter of the bytes, so that products of tests have some."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from app.api.body import upload_overlap
from app.services.matmul import chunked_transfer

PIECE: Final = chunked_transfer.PIECE // 4


@contextmanager
def used() -> Iterator[None]:
    """Copy pieces of so many bytes inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_transfer, "PIECE", PIECE)
        patch.setattr(upload_overlap, "PIECE", PIECE)
        patch.setattr(chunked_transfer, "_FIRST", PIECE // 4)
        patch.setattr(chunked_transfer, "_LAST", PIECE // 4)
        yield
