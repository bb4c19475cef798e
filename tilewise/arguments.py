"""The arguments of products and of tune jobs, each as one value."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tilewise.shapes import Shape


@dataclass(frozen=True, slots=True)
class ProductArguments:
    """How a product is to be made: on which device, by which kernel, in which precision, of which transposes."""

    device: str | None = None
    kernel: str | None = None
    precision: str = "strict"
    trans_a: bool = False
    trans_b: bool = False


@dataclass(frozen=True, slots=True)
class TuneArguments:
    """What a tune job searches, and its budget; with `retune` what is known already is measured again."""

    shapes: tuple[Shape, ...]
    dtype: str = "float32"
    precision: str = "strict"
    trans_a: bool = False
    trans_b: bool = False
    device: str | None = None
    kernels: tuple[str, ...] | None = None
    strategy: str = "auto"
    trials: int | None = None
    seconds: float | None = None
    gain_percent: float | None = None
    retune: bool = False

    def body(self) -> dict[str, Any]:
        """The body of POST /tune."""
        members = asdict(self)
        members["budget"] = {name: members.pop(name) for name in ("trials", "seconds", "gain_percent")}
        return members
