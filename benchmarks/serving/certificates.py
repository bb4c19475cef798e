"""What verify=freivalds costs a product, in pairs on one service: of its device's time, and of what a client waits.

python -m benchmarks.serving.certificates [--sizes 4096 8192] [--dtype float32] [--pairs 10]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from app.dtypes import numpy_dtype
from benchmarks.harness import service
from tilewise import Client

RESULT = Path("benchmarks/results/serving/certificates.json")
ON_DEVICE = ("h2d", "kernel", "d2h")


def main() -> None:
    """Measure each size and write the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--pairs", type=int, default=10)
    arguments = parser.parse_args()
    os.environ.setdefault("TILEWISE_SLAB_BYTES", str(2**31))
    with (
        tempfile.TemporaryDirectory() as folder,
        service(Path(folder)) as served,
        Client(f"http://127.0.0.1:{served.port}", timeout=600.0) as client,
    ):
        rows = [measured(client, size, arguments.dtype, arguments.pairs) for size in arguments.sizes]
    RESULT.write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


def measured(client: Client, size: int, dtype: str, pairs: int) -> dict[str, object]:
    """Medians of products of one size, plain and verified in turn."""
    rng = np.random.default_rng(size)
    a, b = (rng.standard_normal((size, size), dtype=np.float32).astype(numpy_dtype(dtype)) for _ in range(2))
    client.product(a, b, verify="freivalds")  # its kernel is compiled and verified
    seconds: dict[str, list[float]] = {"plain": [], "verified": []}
    device: dict[str, list[float]] = {"plain": [], "verified": []}
    after: list[float] = []
    made = None
    for _ in range(pairs):
        for name, verify in (("plain", None), ("verified", "freivalds")):
            started = perf_counter()
            made = client.product(a, b, verify=verify)
            seconds[name].append(perf_counter() - started)
            device[name].append(sum(made.timing_ms.get(phase, 0.0) for phase in ON_DEVICE) / 1e3)
        after.append(made.timing_ms["verify"] / 1e3 if made else 0.0)
    ratios = sorted(late / early for early, late in zip(seconds["plain"], seconds["verified"], strict=True))
    return {
        "size": size,
        "dtype": dtype,
        "device": made.device if made else None,
        "kernel": made.kernel if made else None,
        "plain_s": median(seconds["plain"]),
        "verified_s": median(seconds["verified"]),
        "cost_of_request": median(ratios) - 1,
        "ratios": ratios,
        "device_s": median(device["plain"]),
        "device_verified_s": median(device["verified"]),
        "after_the_product_s": median(after),
        "certificate": None if made is None or made.certificate is None else made.certificate.residual,
    }


if __name__ == "__main__":
    main()
