"""A fixture by which models and rules alone choose, whatever was learnt of what they miss."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernels import CATALOGUE


@pytest.fixture
def uncorrected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No estimate is corrected; choices that were kept are forgotten, before and after."""
    monkeypatch.setattr("kernels.residuals._tables", dict)
    _forget()
    yield
    _forget()


def _forget() -> None:
    for kernel in CATALOGUE.values():
        for chosen in (kernel.default, kernel.seeds):
            getattr(chosen, "cache_clear", lambda: None)()
