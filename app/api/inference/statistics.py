"""What the protocol's statistics tell: how many inferences there were, and the nanoseconds of their phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import time
from typing import Any, Final

_PHASES: Final = {"queue": "queue", "compute_input": "h2d", "compute_infer": "kernel", "compute_output": "d2h"}


@dataclass
class Duration:
    """How often, and for how long in all."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        """One more."""
        self.count += 1
        self.ns += round(1e9 * seconds)

    def told(self) -> dict[str, int]:
        """The protocol's members."""
        return {"count": self.count, "ns": self.ns}


@dataclass
class InferenceStatistics:
    """The model's, since the service started; the event loop alone writes them."""

    last: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    phases: dict[str, Duration] = field(default_factory=lambda: {phase: Duration() for phase in _PHASES})

    def succeeded(self, seconds: float, phases: Mapping[str, float]) -> None:
        """Count a product: seconds in all, and by phase as products name them."""
        self.last = round(1e3 * time())
        self.success.add(seconds)
        for phase, name in _PHASES.items():
            built = phases.get("build", 0.0) if name == "queue" else 0.0  # the protocol has no phase for it
            self.phases[phase].add(phases.get(name, 0.0) + built)

    def failed(self, seconds: float) -> None:
        """Count a request without an answer."""
        self.last = round(1e3 * time())
        self.fail.add(seconds)

    def told(self) -> dict[str, Any]:
        """The protocol's members but for the model's name; clients read a cache's figures where there is none."""
        phases = {phase: each.told() for phase, each in self.phases.items()}
        nothing = Duration().told()
        computing = {phase: each for phase, each in phases.items() if phase != "queue"}
        return {
            "last_inference": self.last,
            "inference_count": self.success.count,
            "execution_count": self.success.count,
            "inference_stats": {
                "success": self.success.told(),
                "fail": self.fail.told(),
                **phases,
                "cache_hit": nothing,
                "cache_miss": nothing,
            },
            "batch_stats": [{"batch_size": 1, **computing}] if self.success.count else [],
            "memory_usage": [],
        }
