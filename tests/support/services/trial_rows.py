"""Trials as the store has them, made up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from app.store.records import TrialRecord
from kernels import CATALOGUE
from kernels.device import Device
from kernels.problem import Problem

PROBLEM = Problem(256, 256, 256)


def trial(device: Device, problem: Problem = PROBLEM, **members: Any) -> TrialRecord:
    """A measured trial of the tiled kernel; `members` take the place of what is made up."""
    tiled = CATALOGUE["tiled"]
    made_up: dict[str, Any] = {
        "id": 1,
        "job_id": "a job",
        "device_model": device.model,
        "device_uuid": device.uuid,
        "environment": device.environment,
        "problem": problem,
        "kernel": "tiled",
        "kernel_digest": tiled.digest,
        "config": tiled.space.config({"BM": 8, "BN": 16, "BK": 8}),
        "state": "measured",
        "stage": None,
        "reason": None,
        "median_ms": 1.0,
        "ci95_lo_ms": 0.9,
        "ci95_hi_ms": 1.1,
        "samples": 3,
        "limited": False,
        "relative_l2": 1e-7,
        "max_scaled": 1e-8,
        "registers": None,
        "created_at": datetime.now(UTC),
        "policy": "events",
        "seconds": (0.9e-3, 1e-3, 1.1e-3),
    }
    return TrialRecord(**made_up | members)


def rejected(device: Device, **members: Any) -> TrialRecord:
    """A trial that failed to launch."""
    figures = ("median_ms", "ci95_lo_ms", "ci95_hi_ms", "samples", "relative_l2", "max_scaled", "policy")
    failed: dict[str, Any] = {"state": "rejected", "stage": "launch", "reason": "too many threads", "seconds": ()}
    return trial(device, PROBLEM, **dict.fromkeys(figures) | failed | members)
