"""An export for PyTorch under torch.compile: both operators, in one graph with what surrounds them.

    python torch_compiled.py

Runs in the export's folder, of which alone it imports. The status is 1 where a product is off float64's by more than
the export's bound, or what is computed of it in the graph is not what it is alone; its last line is one of JSON, which
says also whether the product is the uncompiled one's, bit for bit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any


def main() -> int:
    """Compile and compare both operators."""
    sys.path.insert(0, str(Path.cwd()))
    torch: Any = import_module("torch")
    own: Any = import_module("tilewise_torch")
    problem, bound = own.PROBLEM, own.MANIFEST["error_bound"]
    m, n, k, batch = (problem[name] for name in ("m", "n", "k", "batch"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(7)
    a = torch.randn((batch, k, m) if problem["trans_a"] else (batch, m, k), device=device).to(own.DTYPE)
    b = torch.randn((batch, n, k) if problem["trans_b"] else (batch, k, n), device=device).to(own.DTYPE)
    left, right = (each.mT if problem[name] else each for each, name in ((a, "trans_a"), (b, "trans_b")))
    expected, scale = left.double() @ right.double(), left.double().abs() @ right.double().abs()
    told: dict[str, dict[str, Any]] = {}
    for name, operator in (("custom_op", own.matmul), ("extension", own.fast_matmul())):
        began = perf_counter()
        c, doubled = torch.compile(_surrounded(operator), fullgraph=True)(a, b)
        same = torch.equal(c, operator(a, b))
        error = ((c.double() - expected).abs() / scale).max().item()
        is_right = torch.equal(doubled, c + c) and error <= bound["per_k"] * k + bound["rounding"]
        seconds = round(perf_counter() - began, 2)
        told[name] = {"right": is_right, "same": same, "max_scaled": error, "seconds": seconds}
    print(json.dumps({"compiled": told}))
    return 0 if all(one["right"] for one in told.values()) else 1


def _surrounded(operator: Callable[[Any, Any], Any]) -> Callable[[Any, Any], tuple[Any, Any]]:
    """A product of what was computed before, and what is computed of it: doubling is exact in every type."""

    def work(a: Any, b: Any) -> tuple[Any, Any]:
        c = operator(a * 2 / 2, b)
        return c, c + c

    return work


if __name__ == "__main__":
    sys.exit(main())
