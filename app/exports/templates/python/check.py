"""Multiplies, compares with float64, and times the kernel as the service does: python check.py [M N K [BATCH]].

The exit status is 0 if every element is within the bound, and C the same once a graph launches the product. Operands
rotate through sets that are together three times the last-level cache, so that each launch finds cold caches; what is
timed are normal numbers, as the service's. `--module NAME` has another module's Gemm checked than tilewise_gemm's.
"""

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from statistics import median

import numpy as np
from tilewise_recipe import OutsideClass

MANIFEST = json.loads((Path(__file__).parent / "manifest.json").read_text())
PROBLEM = MANIFEST["problem"]
BOUND = MANIFEST["error_bound"]
BFLOAT16 = PROBLEM["dtype"] == "bfloat16"  # NumPy has no such type: its bits are uint16


def operand(generator, rows, columns, batch):
    """Random numbers that every element type holds exactly: 1/64 to 2, of either sign."""
    size = (batch, rows, columns)
    return stored(generator.integers(1, 129, size) * generator.choice((-1.0, 1.0), size) / 64)


def stored(values):
    """Numbers as the product takes them."""
    if BFLOAT16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(PROBLEM["dtype"])


def wide(array):
    """The numbers of an array as float64."""
    if BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def main():
    """Check and time one product; give the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", type=int)
    parser.add_argument("--module", default="tilewise_gemm")
    asked = parser.parse_args()
    own = [PROBLEM[name] for name in ("m", "n", "k", "batch")]
    m, n, k, batch = [*asked.sizes, *(1,) * (4 - len(asked.sizes))] if asked.sizes else own
    generator = np.random.default_rng(42)
    a = operand(generator, *((k, m) if PROBLEM["trans_a"] else (m, k)), batch)
    b = operand(generator, *((n, k) if PROBLEM["trans_b"] else (k, n)), batch)
    module = import_module(asked.module)
    gemm, repeated = module.Gemm(), getattr(module, "REPEATED", 0)
    try:
        c = wide(gemm.multiply_host(a, b))
    except OutsideClass as refusal:
        print(refusal, file=sys.stderr)
        return 2
    left = wide(a).swapaxes(1, 2) if PROBLEM["trans_a"] else wide(a)
    right = wide(b).swapaxes(1, 2) if PROBLEM["trans_b"] else wide(b)
    # Of what comes again and again a graph launches the last one.
    again = not repeated or np.array_equal(c, wide(gemm.multiply_host(a, b, repeated + 1)))
    error = float(np.max(np.abs(c - left @ right) / (np.abs(left) @ np.abs(right))))
    bound = BOUND["per_k"] * k + BOUND["rounding"]
    seconds = gemm.seconds(*(stored(generator.standard_normal(each.shape)) for each in (a, b)))
    told = {"m": m, "n": n, "k": k, "batch": batch, "max_scaled": error, "bound": bound, "right": error <= bound and again}
    told["median_ms"] = 1e3 * median(seconds) if seconds else None
    told["measured_ms"] = MANIFEST["measured"]["median_ms"]
    print(json.dumps(told))
    return 0 if told["right"] else 1


if __name__ == "__main__":
    sys.exit(main())
