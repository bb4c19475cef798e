"""Examples of the schemas of operations, devices and the Open Inference Protocol."""

from __future__ import annotations

from typing import Any, Final

_COUNT: Final = {"count": 12, "ns": 1_804_000}
_NONE: Final = {"count": 0, "ns": 0}
_SIDES: Final = [-1, -1]
_LIMITS: Final = {
    "threads": 1024,
    "shared_bytes": 232_448,
    "warp": 32,
    "sms": 132,
    "bandwidth": 4.8e12,
    "peak": 6.69e13,
    "peak64": 3.35e13,
    "tensor_float16": 9.89e14,
    "tensor_bfloat16": 9.89e14,
    "tensor_tf32": 4.94e14,
    "tensor_float64": 6.69e13,
    "registers_per_sm": 65_536,
    "registers_per_thread": 255,
    "shared_bytes_per_sm": 233_472,
    "shared_bytes_reserved": 1024,
    "threads_per_sm": 2048,
    "blocks_per_sm": 32,
    "allocation_bytes": 150_000_000_000,
    "cache_bytes": 62_914_560,
}
_DEVICE: Final = {
    "id": "cuda:0",
    "platform": "cuda",
    "name": "NVIDIA H200",
    "architecture": "sm_90",
    "model": "NVIDIA H200 | sm_90 | 132 SMs | 140 GiB",
    "driver": "575.57",
    "runtime": "12.9",
    "compiler": "NVRTC 12.9",
    "environment": "575.57; CUDA 12.9; NVRTC 12.9",
    "uuid": "GPU-5f1f0f7e-2c1a-4d0e-9b5e-0d6f6a9d1c11",
    "memory_bytes": 150_000_000_000,
    "mig": "",
    "exclusive": False,
    "limits": _LIMITS,
    "vendor": {"name": "cuBLAS 12.9.1", "reason": None},
    "waiting": 0,
    "quarantined": [],
}
_READY: Final = {"status": "ready", "reasons": []}
_HELD: Final = {
    "device": "cuda:0",
    "state": "ok",
    "serves": True,
    "reasons": [],
    "served": 1.37,
    "cordon": None,
}
OPERATIONS: Final[dict[str, Any]] = {
    "Version": {"name": "tilewise", "version": "0.1.0"},
    "Ready": {**_READY, "verified": 3, "pending": 0, "total": 3},
    "Health": {
        **_READY,
        "devices": [_HELD],
        "store": "ok",
        "sandbox": ["files", "tcp", "signals", "system_calls"],
    },
    "Devices": {"devices": [_DEVICE], "reasons": []},
    "Bounds": {
        "body_bytes": 1_073_741_824,
        "json_bytes": 67_108_864,
        "json_elements": 16_777_216,
        "slab_bytes": 2_147_483_648,
        "queue": 256,
        "share": 1.0,
        "together": 64,
        "wait_seconds": 60.0,
        "result_seconds": 3600.0,
        "result_bytes": 17_179_869_184,
        "key_seconds": 86_400.0,
        "devices": [{"id": "cuda:0", "bytes": 150_000_000_000, "allocation_bytes": 150_000_000_000}],
        "waiting": 0,
        "lent_bytes": 0,
        "retry_after": 1,
    },
    "ServerMetadata": {
        "name": "tilewise",
        "version": "0.1.0",
        "extensions": ["binary_tensor_data", "model_configuration", "model_repository", "parameters", "statistics"],
    },
    "ServerLive": {"live": True},
    "ServerReady": {"ready": True},
    "ModelReady": {"name": "matmul", "ready": True},
    "ModelMetadata": {
        "name": "matmul",
        "versions": ["1"],
        "platform": "tilewise",
        "inputs": [{"name": name, "datatype": "FP32", "shape": _SIDES} for name in "AB"],
        "outputs": [{"name": "C", "datatype": "FP32", "shape": _SIDES}],
        "parameters": {"datatypes": "FP16, BF16, FP32, FP64", "json_needs_convert": "FP16, BF16"},
    },
    "ModelConfig": {
        "name": "matmul",
        "platform": "tilewise",
        "backend": "tilewise",
        "max_batch_size": 0,
        "input": [{"name": name, "data_type": "TYPE_FP32", "dims": _SIDES} for name in "AB"],
        "output": [{"name": "C", "data_type": "TYPE_FP32", "dims": _SIDES}],
    },
    "Repository": [{"name": "matmul", "version": "1", "state": "READY", "reason": ""}],
    "Statistics": {
        "model_stats": [
            {
                "name": "matmul",
                "version": "1",
                "last_inference": 1_769_860_800_000,
                "inference_count": 12,
                "execution_count": 12,
                "inference_stats": {
                    **dict.fromkeys(("success", "queue", "compute_input", "compute_infer", "compute_output"), _COUNT),
                    **dict.fromkeys(("fail", "cache_hit", "cache_miss"), _NONE),
                },
                "batch_stats": [],
                "memory_usage": [],
            }
        ]
    },
    "SystemRegions": [{"name": "operands", "key": "/operands", "offset": 0, "byte_size": 4096}],
    "CudaRegions": [{"name": "operands", "device_id": 0, "byte_size": 4096}],
}
