"""What is asked of a ladder over m, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from app.api.params import StrictModel
from app.api.responses import Answer, Config
from app.api.schemas import Batch, Columns, Depth, DeviceId, DtypeField, PrecisionField, Size, TransA, TransB
from app.services.best.ladder import UNMEASURED, LadderRung
from kernels.problem import LARGEST, Problem


class LadderQuery(StrictModel):
    """A problem whose m may be any of a range."""

    n: Columns
    k: Depth
    m_from: Annotated[Size, Field(description="The least m.")] = 1
    m_to: Annotated[Size, Field(description="The largest m.")] = LARGEST
    batch: Batch = 1
    dtype: DtypeField = "float32"
    precision: PrecisionField = "strict"
    trans_a: TransA = False
    trans_b: TransB = False
    loss: Annotated[float, Field(ge=0, le=10, description="What a rung may lose at a tuned m: 0.03 is 3 %.")] = 0.0
    device: DeviceId = None

    def problem(self) -> Problem:
        """The domain's value, of the least m."""
        return Problem(self.m_from, self.n, self.k, self.batch, self.dtype, self.precision, self.trans_a, self.trans_b)


class Rung(Answer):
    """One config, for every m from `m_from` to `m_to`."""

    m_from: int
    m_to: int
    kernel: str
    config: Config
    worst_loss: Annotated[float, Field(description="Of what was measured: 0.03 is three per cent longer.")]
    worst_loss_at: Annotated[int, Field(description="The m at which it was.")]
    tuned: Annotated[int, Field(description="For how many m the exact winner is known, and the loss was measured.")]
    untuned: Annotated[int, Field(description="For how many there is no loss.")]
    untuned_reason: Annotated[str | None, Field(description="Why there is none.")]

    @classmethod
    def of(cls, value: LadderRung) -> Rung:
        """Take the domain's value."""
        return cls(
            m_from=value.m_from,
            m_to=value.m_to,
            kernel=value.config[0],
            config=dict(value.config[1]),
            worst_loss=value.worst[1],
            worst_loss_at=value.worst[0],
            tuned=len(value.tuned),
            untuned=value.untuned,
            untuned_reason=UNMEASURED if value.untuned else None,
        )


class Ladder(Answer):
    """Which configs a program needs over m, the smallest m first."""

    device: str
    rungs: list[Rung]

    @classmethod
    def of(cls, device: str, found: Sequence[LadderRung]) -> Ladder:
        """Take the domain's values."""
        return cls(device=device, rungs=[Rung.of(each) for each in found])
