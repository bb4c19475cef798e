"""An example of each schema of the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

_MOMENT: Final = "2026-01-31T12:00:00Z"
_LATER: Final = "2026-01-31T12:00:09Z"
_MODEL: Final = "NVIDIA H200 sm_90 132 SMs 143 GB"
_ENVIRONMENT: Final = "cuda 12.9, driver 575.57, NVRTC 12.9"
_CONFIG: Final = {"BM": 16, "BN": 16, "BK": 16}
_PROBLEM: Final = {
    "m": 512,
    "n": 512,
    "k": 512,
    "batch": 1,
    "dtype": "float32",
    "precision": "strict",
    "trans_a": False,
    "trans_b": False,
}
_TIMING: Final = {
    "median_ms": 0.0425,
    "ci95_ms": [0.0421, 0.043],
    "samples": 40,
    "limited": False,
    "dropped": False,
    "policy": "events",
}
_ACCURACY: Final = {"relative_l2": 2.9e-07, "max_scaled": 4.1e-07}
_CONDITIONS: Final = {"sm_mhz": 1980.0, "memory_mhz": 3201.0, "watts": 310.0, "celsius": 41.0, "throttled": []}
_BASELINE: Final = {
    "name": "naive",
    "timing": _TIMING | {"median_ms": 0.31, "ci95_ms": [0.308, 0.313]},
    "gflops": 865.9,
    "config": {"BM": 16, "BN": 16},
    "error": _ACCURACY,
    "reason": None,
}
_RUNG: Final = {
    "m_from": 1,
    "m_to": 64,
    "kernel": "tiled",
    "config": _CONFIG,
    "worst_loss": 0.012,
    "worst_loss_at": 16,
    "tuned": 3,
    "untuned": 61,
    "untuned_reason": "it has not been tuned, so that the exact winner there is not known",
}
_CERTIFICATE: Final = {
    "method": "freivalds",
    "rounds": 16,
    "missed": 2.0**-16,
    "residual": 0.0,
    "bound": 2.1e-4,
    "recomputed": 0,
    "error": None,
    "error_bound": None,
    "unchecked": 0,
}
_BEST: Final = {
    "device": "cuda:0",
    "problem": _PROBLEM,
    "kernel": "tiled",
    "config": _CONFIG,
    "instructions": "fma",
    "precision": "strict",
    "declined": None,
    "launch": {"grid": 1024, "block": [16, 16], "shared_bytes": 2048},
    "timing": _TIMING,
    "gflops": 6316.1,
    "error": _ACCURACY,
    "conditions": _CONDITIONS,
    "baselines": {"naive": _BASELINE},
    "vendor_is_faster": None,
    "match": "exact",
    "provisional": False,
    "matched_problem": _PROBLEM,
    "expected_loss": None,
    "loss_bound": None,
    "source": None,
    "environment": _ENVIRONMENT,
    "tuned_at": _LATER,
}
_JOB: Final = {
    "id": "4a1fd5a0c29b4e33a4d2a31f6f1b77c5",
    "kind": "tune",
    "state": "running",
    "progress": {
        "done": 12,
        "total": 228,
        "search_best_ms": 0.0425,
        "phase": "search",
        "eta_seconds": 4.5,
        "elapsed_seconds": 5.5,
        "budget_seconds": 20.0,
        "devices": [{"device": "cuda:0", "shapes": 0, "trials": 12, "seconds": 5.5}],
    },
    "result": None,
    "error": None,
    "created_at": _MOMENT,
    "started_at": _MOMENT,
    "finished_at": None,
}
_TRIAL: Final = {
    "id": 7,
    "job_id": _JOB["id"],
    "device_model": _MODEL,
    "device_uuid": "GPU-8f6a1c6e-0f0c-4b5c-9a55-6a9f6f2f4c11",
    "environment": _ENVIRONMENT,
    "problem": _PROBLEM,
    "kernel": "tiled",
    "config": _CONFIG,
    "state": "measured",
    "stage": None,
    "reason": None,
    "timing": _TIMING,
    "gflops": 6316.1,
    "error": _ACCURACY,
    "registers": 40,
    "created_at": _LATER,
    "round": "search",
    "conditions": _CONDITIONS,
    "samples_ms": None,
}
_MISS: Final = {
    "device_model": _MODEL,
    "problem": _PROBLEM,
    "count": 3,
    "match": "nearest",
    "first_at": _MOMENT,
    "last_at": _LATER,
}
_MATRIX: Final = {
    "name": "weights",
    "version": 1,
    "dtype": "float32",
    "shape": [512, 256],
    "nbytes": 524288,
    "evictable": False,
    "devices": ["cuda:0"],
    "created_at": _MOMENT,
    "used_at": _LATER,
}
_COVERED: Final = {
    "dtype": "float32",
    "precision": "strict",
    "platform": "cuda",
    "architectures": ["sm_90"],
    "instructions": "fma",
}
_KERNEL: Final = {
    "name": "tiled",
    "summary": "Tiles of A and B in shared memory.",
    "file": "tiled/kernel.cu",
    "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "dtypes": ["float32"],
    "precisions": ["strict"],
    "platforms": ["cuda", "opencl"],
    "architectures": [],
    "shapes": "any",
    "role": "serving",
    "covers": [_COVERED],
    "parameters": {"BM": [8, 16, 32], "BN": [8, 16, 32], "BK": [8, 16, 32]},
    "rules": ["threads a block"],
    "configs": 27,
}
_TENSOR: Final = {"datatype": "FP32", "shape": [2, 2]}

_ERROR: Final[dict[str, Any]] = {
    "code": "queue_full",
    "status": 503,
    "title": "Service Unavailable",
    "meaning": "More requests wait than TILEWISE_QUEUE allows; facts: limit, size, retry_after.",
    "retry_after": 1,
}
EXAMPLES: Final[dict[str, Any]] = {
    "Cordoning": {"reason": "its memory fails"},
    "DeviceCordon": {
        "device": "cuda:0",
        "cordoned": True,
        "reason": "its memory fails",
        "by": "operator",
        "since": "2026-11-23T09:30:00Z",
    },
    "TuneRequest": {
        "shapes": [{"m": 512, "n": 512, "k": 512}, [4096, 16, 4096, 8], "500x600x400"],
        "dtype": "float32",
        "budget": {"seconds": 30},
    },
    "Job": _JOB,
    "Jobs": {"jobs": [_JOB], "next": None},
    "Best": _BEST,
    "Rung": _RUNG,
    "Ladder": {"device": "cuda:0", "rungs": [_RUNG]},
    "Bests": {"bests": [_BEST], "next": None},
    "Trials": {"trials": [_TRIAL], "next": None},
    "Misses": {"misses": [_MISS], "next": None},
    "Matrix": _MATRIX,
    "Matrices": {"matrices": [_MATRIX], "next": None},
    "Product": {
        "c": [[19, 22], [43, 50]],
        "dtype": "float32",
        "kernel": "tiled",
        "config": _CONFIG,
        "match": "exact",
        "instructions": "fma",
        "precision": "strict",
        "declined": None,
        "certificate": _CERTIFICATE,
    },
    "Analysis": {
        "device": "cuda:0",
        "problem": _PROBLEM,
        "kernel": "tiled",
        "config": _CONFIG,
        "bytes_read": 67108864,
        "bytes_written": 1048576,
        "flops_owned": 268435456,
        "flops_launched": 268435456,
        "intensity": 3.94,
        "tiles_m": 32,
        "tiles_n": 32,
        "blocks": 1024,
        "edge_tiles": 0,
        "shared_bytes": 2048,
        "threads": 256,
        "occupancy": {"blocks_per_sm": 8, "fraction": 1.0, "limited_by": "threads"},
        "waves": 0.97,
        "refusal": None,
        "predicted_ms": 0.38,
    },
    "ProblemDetails": {
        "type": "/errors/unknown_device",
        "title": "Not Found",
        "status": 404,
        "detail": "there is no device cuda:9; there is cuda:0",
        "code": "unknown_device",
        "error": "there is no device cuda:9; there is cuda:0",
    },
    "Kernels": {"kernels": [_KERNEL]},
    "Detail": {**_KERNEL, "legality": None},
    "ErrorPage": _ERROR,
    "ErrorPages": {"errors": [_ERROR]},
    "Live": {"status": "live"},
    "InferRequest": {
        "inputs": [
            {"name": "A", **_TENSOR, "data": [[1, 2], [3, 4]]},
            {"name": "B", **_TENSOR, "data": [[5, 6], [7, 8]]},
        ],
        "outputs": [{"name": "C"}],
    },
    "InferResponse": {
        "model_name": "matmul",
        "model_version": "1",
        "parameters": {
            "device": "cuda:0",
            "kernel": "tiled",
            "match": "default",
            "instructions": "fma",
            "precision": "strict",
        },
        "outputs": [{"name": "C", **_TENSOR, "data": [19.0, 22.0, 43.0, 50.0]}],
    },
    "SystemRegistration": {"key": "/operands", "offset": 0, "byte_size": 4096},
    "CudaRegistration": {"raw_handle": {"b64": "A" * 86 + "=="}, "device_id": 0, "byte_size": 4096},
}
