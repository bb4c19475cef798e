"""The Open Inference Protocol under /v2, with its extensions: one model, `matmul`, of inputs A and B and output C.

The protocol: github.com/kserve/open-inference-protocol. The extensions (binary tensors, statistics, shared memory,
model configuration and repository): github.com/triton-inference-server/server, docs/protocol.
"""
