"""The Open Inference Protocol under /v2, with its extensions: one model, `matmul`, of inputs A and B and output C.

The protocol: github.com/kserve/open-inference-protocol. The extensions (binary tensors, statistics, shared memory,
model configuration and repository): github.com/triton-inference-server/server, docs/protocol.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from app.api.inference import infer, metadata, shared_memory
from app.api.inference.answers import InferResponse
from app.api.inference.schemas import InferRequest
from app.api.inference.statistics import InferenceStatistics

__all__ = ["MODELS", "InferenceStatistics", "router"]

MODELS: Final = (InferRequest, InferResponse, shared_memory.SystemRegistration, shared_memory.CudaRegistration)

router = APIRouter()
router.routes.extend([*metadata.router.routes, *infer.router.routes, *shared_memory.router.routes])
