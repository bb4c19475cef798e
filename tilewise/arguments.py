"""The arguments of products, tune jobs, workloads and exports, each as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tilewise.shapes import Problem, Shape

Placement = Literal["auto", "one", "all"]


@dataclass(frozen=True, slots=True)
class ProductArguments:
    """How a product is to be made, verified and placed: the device, the kernel, the precision, the transposes."""

    device: str | None = None
    kernel: str | None = None
    precision: str = "strict"
    trans_a: bool = False
    trans_b: bool = False
    verify: str | None = None
    placement: Placement | None = None


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


@dataclass(frozen=True, slots=True)
class WorkloadArguments:
    """How a file of products is read, what its list calls it, and for how many seconds it is tuned on which device.

    `dtype`, `precision` and `free`, the size of dimensions that have names, are for what the file leaves open.
    """

    name: str | None = None
    source: str | None = None
    dtype: str = "float32"
    precision: str = "strict"
    free: int | None = None
    tune: float | None = None
    device: str | None = None

    def query(self) -> dict[str, Any]:
        """The query of POST /workloads."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ExportArguments:
    """Which problem's winner is taken away as which target: a device's, or a config for a GPU that is not there."""

    problem: Problem
    target: str
    device: str | None = None
    arch: str | None = None
    kernel: str | None = None
    config: Mapping[str, int] | None = None

    def query(self) -> dict[str, Any]:
        """The query of GET /take, whose path has the target, beside the members of the problem."""
        text = None if self.config is None else ",".join(f"{name}={value}" for name, value in self.config.items())
        return {"device": self.device, "arch": self.arch, "kernel": self.kernel, "config": text}
