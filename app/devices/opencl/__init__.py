"""The CPU through OpenCL (PoCL): the only importer of pyopencl. Runs in a device's child, never in the service."""

from __future__ import annotations

from app.devices.opencl.backend import OpenCLBackend, discover

__all__ = ["OpenCLBackend", "discover"]
