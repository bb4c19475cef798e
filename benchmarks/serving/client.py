"""A whole product by our client and by NVIDIA's tritonclient, of the same service on the null device, in one run.

    python -m benchmarks.serving.client [--side 4096] [--repeats 21] [--output benchmarks/results/serving/client.json]

2 x 64 MiB in and 64 MiB out at side 4096, from NumPy arrays to a NumPy array. Every way is taken in every round, in
random order; medians with 95 % intervals by bootstrap. The bar: over the same kind of socket at most half of
tritonclient's time. Needs two idle cores and tritonclient[http]. A bar that is missed ends the program with 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Running, start, stop, wait_ready
from tilewise import Client

RESULT = Path("benchmarks/results/serving/client.json")
BAR = 0.5
Array = NDArray[Any]
Multiply = Callable[[Array, Array], Array]


@contextmanager
def service(folder: Path, size: int) -> Iterator[tuple[Running, Path]]:
    """A service on the null device, on a port and on a Unix socket, with shared memory on."""
    unix = folder / "tilewise.sock"
    environment = {
        "TILEWISE_DATA_DIR": str(folder),
        "TILEWISE_SLAB_BYTES": str(4 * size),
        "TILEWISE_MAX_BODY_BYTES": str(4 * size),
        "TILEWISE_UDS": str(unix),
        "TILEWISE_SHARED_MEMORY": "on",
        "TILEWISE_LOG_LEVEL": "warning",
    }
    running = start(["-m", "benchmarks.serving.nulldevice"], folder / "server.log", environment)
    try:
        wait_ready(running)
        yield running, unix
    finally:
        stop(running)


def ways(running: Running, unix: Path, side: int, stack: ExitStack) -> dict[str, Multiply]:
    """The ways to have a product."""
    plain = stack.enter_context(Client(running.url, shared_memory=False))
    local = stack.enter_context(Client(f"unix://{unix}", shared_memory=False))
    shared = stack.enter_context(Client(f"unix://{unix}"))
    room = np.empty((side, side), np.float32)
    return {
        "tritonclient": triton(running, stack),
        "tritonclient, shared memory": triton_shared(running, side, stack),
        "ours": plain.matmul,
        "ours, into out": lambda a, b: plain.matmul(a, b, out=room),
        "ours, Unix socket": local.matmul,
        "ours, Unix socket, into out": lambda a, b: local.matmul(a, b, out=room),
        "ours, shared memory": shared.matmul,
    }


def triton(running: Running, stack: ExitStack) -> Multiply:
    """NVIDIA's client as its examples have it: bytes in the request and in the answer."""
    from tritonclient import http  # noqa: PLC0415 - a benchmark's own dependency, and a slow import

    client = http.InferenceServerClient(f"127.0.0.1:{running.port}", network_timeout=300.0, connection_timeout=300.0)
    stack.callback(client.close)

    def multiply(a: Array, b: Array) -> Array:
        inputs = []
        for name, operand in (("A", a), ("B", b)):
            inputs.append(http.InferInput(name, operand.shape, "FP32"))
            inputs[-1].set_data_from_numpy(operand, binary_data=True)
        outputs = [http.InferRequestedOutput("C", binary_data=True)]
        c: Array = client.infer("matmul", inputs, outputs=outputs).as_numpy("C")
        return c

    return multiply


def triton_shared(running: Running, side: int, stack: ExitStack) -> Multiply:
    """NVIDIA's client with its system shared memory: the operands are copied there, and C out of it."""
    from tritonclient import http  # noqa: PLC0415 - as above
    from tritonclient.utils import shared_memory  # noqa: PLC0415

    client = http.InferenceServerClient(f"127.0.0.1:{running.port}", network_timeout=300.0, connection_timeout=300.0)
    stack.callback(client.close)
    size = side * side * 4
    region = shared_memory.create_shared_memory_region("bench", "/tilewise-bench", 3 * size)
    stack.callback(shared_memory.destroy_shared_memory_region, region)
    client.register_system_shared_memory("bench", "/tilewise-bench", 3 * size)
    stack.callback(client.unregister_system_shared_memory, "bench")
    inputs = [http.InferInput(name, (side, side), "FP32") for name in "AB"]
    for number, tensor in enumerate(inputs):
        tensor.set_shared_memory("bench", size, offset=number * size)
    output = http.InferRequestedOutput("C")
    output.set_shared_memory("bench", size, offset=2 * size)

    def multiply(a: Array, b: Array) -> Array:
        shared_memory.set_shared_memory_region(region, [a, b])
        client.infer("matmul", inputs, outputs=[output])
        c: Array = shared_memory.get_contents_as_numpy(region, np.float32, (side, side), offset=2 * size).copy()
        return c

    return multiply


def measured(
    contestants: dict[str, Multiply], side: int, repeats: int, source: np.random.Generator
) -> dict[str, Array]:
    """Seconds of each way, a round a column."""
    a, b = (source.standard_normal((side, side), np.float32) for _ in range(2))
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):  # the first warms up
        for name in source.permutation(list(contestants)):
            started = perf_counter()
            c = contestants[name](a, b)
            spent = perf_counter() - started
            if c.shape != (side, side) or c.dtype != np.float32:
                raise SystemExit(f"{name} answers a {c.dtype} of {c.shape}")
            del c
            if turn:
                seconds[name].append(spent)
    return {name: np.array(each) for name, each in seconds.items()}


def interval(figure: Callable[[Array], Array], rounds: int, source: np.random.Generator) -> list[float]:
    """The 95 % interval of a figure of rounds, by bootstrap."""
    draws = figure(source.integers(0, rounds, (2000, rounds)))
    return [float(each) for each in np.quantile(draws, (0.025, 0.975))]


def report(seconds: dict[str, Array], side: int, seed: int, source: np.random.Generator) -> dict[str, Any]:
    """Medians in milliseconds, and the ratio to tritonclient's over the same kind of path."""
    rows: dict[str, Any] = {}
    for name, each in seconds.items():
        rival = seconds["tritonclient, shared memory" if "shared" in name else "tritonclient"]

        def ratio(rounds: Array, each: Array = each, rival: Array = rival) -> Array:
            return np.asarray(np.median(each[rounds], -1) / np.median(rival[rounds], -1))

        def middle(rounds: Array, each: Array = each) -> Array:
            return np.asarray(np.median(each[rounds], -1) * 1e3)

        rows[name] = {
            "median_ms": float(np.median(each) * 1e3),
            "ci95_ms": interval(middle, len(each), source),
            "of_tritonclient": float(np.median(each) / np.median(rival)),
            "of_tritonclient_ci95": interval(ratio, len(each), source),
        }
    return {
        "side": side,
        "mib_a_matrix": side * side * 4 / 2**20,
        "rounds": len(seconds["ours"]),
        "seed": seed,
        "bar": BAR,
        "met": rows["ours"]["of_tritonclient"] <= BAR,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "ways": rows,
    }


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULT)
    given = parser.parse_args(arguments)
    source = np.random.default_rng(given.seed)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        running, unix = stack.enter_context(service(Path(folder), 3 * 4 * given.side**2))
        seconds = measured(ways(running, unix, given.side, stack), given.side, given.repeats, source)
    told = report(seconds, given.side, given.seed, source)
    given.output.write_text(json.dumps(told, indent=1) + "\n")
    for name, row in told["ways"].items():
        print(f"{name:30s} {row['median_ms']:8.1f} ms   {row['of_tritonclient']:.2f} of tritonclient's")
    print("the bar is met" if told["met"] else "THE BAR IS MISSED")
    return 0 if told["met"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
