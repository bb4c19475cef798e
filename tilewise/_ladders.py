"""LadderMethods: which configs a program needs over m."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewise._requests import RequestMethods
from tilewise._sansio import Flow, Operation


@dataclass(frozen=True, slots=True)
class Rung:
    """One config for every m from `m_from` to `m_to`, and the worst loss of what was measured: 0.03 is three per cent.

    For `untuned` of these m the exact winner is not known, and so no loss: `untuned_reason` says why.
    """

    m_from: int
    m_to: int
    kernel: str
    config: Mapping[str, int]
    worst_loss: float
    worst_loss_at: int
    tuned: int
    untuned: int
    untuned_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs of a product over m, the smallest m first."""

    device: str
    rungs: tuple[Rung, ...]


class LadderMethods(RequestMethods):
    """Ladders. Every method raises ClientError if the service refuses."""

    @Operation
    def ladder(
        self,
        n: int,
        k: int,
        *,
        m_from: int = 1,
        m_to: int = 2**31 - 1,
        batch: int = 1,
        dtype: str = "float32",
        precision: str = "strict",
        trans_a: bool = False,
        trans_b: bool = False,
        loss: float = 0.0,
        device: str | None = None,
    ) -> Flow[Ladder]:
        """Give the fewest configs for all m of a range that lose no more than `loss` at any m that was tuned."""
        flags = {"trans_a": str(trans_a).lower(), "trans_b": str(trans_b).lower()}
        sizes = {"n": n, "k": k, "m_from": m_from, "m_to": m_to, "batch": batch}
        query = {**sizes, "dtype": dtype, "precision": precision, **flags, "loss": loss, "device": device}
        return self._as(Ladder, (yield from self._get("/best-config/ladder", query)))
