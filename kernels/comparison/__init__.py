"""Comparison on the device: no kernel of the catalogue, since it says what a product is off by."""

from kernels.comparison.launches import FINDINGS, compare, expected_bytes, norms, widen

__all__ = ["FINDINGS", "compare", "expected_bytes", "norms", "widen"]
