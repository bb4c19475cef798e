"""What verify=freivalds costs a product, in pairs on one service: of its device's time, and of what a client waits.

python -m benchmarks.serving.certificates [--sizes 4096 8192] [--dtype float32] [--pairs 10] [--trans a b]
    [--null SECONDS] [--before CHECKOUT] [--arithmetic] [--sketch DEVICE] [--out FILE]

Operands and C go through a socket, with and without a certificate. With --null the device takes so many seconds for
every product and no processor: A is 0, and so is C. With --before another checkout, which has a .venv, serves the same
products in turn. With --arithmetic nothing is served: the seconds that reading takes here, by threads, are measured;
with --sketch those that a device takes for each launch of its sketch, and for all of it with its copies.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Final, cast

import numpy as np

from app.devices.backend import Backend, Operands, WorkerContext
from app.devices.opencl import OpenCLBackend
from app.devices.process import WorkerLink
from app.dtypes import Array, numpy_dtype
from app.services.matmul.certificates import reading
from app.services.matmul.certificates.freivalds import StreamedSketch
from app.services.matmul.certificates.word_sums import WordSums
from app.worker.serving import sketch
from app.worker.serving.sketch import DeviceSketch, SketchMaker, SketchRequest
from benchmarks.harness import service
from kernels.freivalds import VECTORS, WIDTH, StoredMatrix, project, row_peaks, word_sums
from kernels.problem import Problem
from tilewise import Client, Product

RESULT: Final = Path("benchmarks/results/serving/certificates.json")
ON_DEVICE: Final = ("h2d", "kernel", "d2h")
_BOTH: Final = (None, "freivalds")


def main() -> None:
    """Measure each size and write the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--trans", choices=("a", "b"), nargs="*", default=[])
    parser.add_argument("--null", type=float)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--arithmetic", action="store_true")
    parser.add_argument("--sketch")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    if arguments.sketch:
        rows = sketches(arguments)
    else:
        rows = [arithmetic(size, arguments) for size in arguments.sizes] if arguments.arithmetic else served(arguments)
    arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


def served(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """A row of each size, by one service or two."""
    os.environ.setdefault("TILEWISE_SLAB_BYTES", str(2**31))
    null = ["-m", "benchmarks.serving.nulldevice", "--stamps", "--launch", str(arguments.null)]
    checkouts = {"": None} | ({"before_": arguments.before} if arguments.before else {})
    with ExitStack() as stack:
        clients = {}
        for name, checkout in checkouts.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            command = None if arguments.null is None else null
            running = stack.enter_context(service(folder, command, checkout=checkout))
            client = Client(f"http://127.0.0.1:{running.port}", timeout=600.0, shared_memory=False)
            clients[name] = stack.enter_context(client)
        return [measured(clients, size, arguments) for size in arguments.sizes]


def operands(size: int, arguments: argparse.Namespace) -> tuple[Array, Array]:
    """A and B as they are stored; A is 0 where nobody multiplies."""
    rng, dtype = np.random.default_rng(size), numpy_dtype(arguments.dtype)
    a, b = (rng.standard_normal((size, size), dtype=np.float32).astype(dtype) for _ in range(2))
    return a if arguments.null is None else np.zeros_like(a), b


def measured(clients: Mapping[str, Client], size: int, arguments: argparse.Namespace) -> dict[str, object]:
    """Medians of products of one size, plain and verified in turn, of each service in turn."""
    a, b = operands(size, arguments)
    turned = {f"trans_{name}": True for name in arguments.trans}
    left, right = (x.T if name in arguments.trans else x for name, x in (("a", a), ("b", b)))
    asks: dict[tuple[str, str | None], Callable[[], Product]] = {
        (name, verify): partial(client.product, left, right, verify=verify)
        for name, client in clients.items()
        for verify in _BOTH
    }
    for ask in asks.values():
        ask()  # its kernel is compiled and verified
    seconds: dict[tuple[str, str | None], list[float]] = {key: [] for key in asks}
    made: dict[tuple[str, str | None], list[Product]] = {key: [] for key in asks}
    for _ in range(arguments.pairs):
        for key, ask in asks.items():
            started = perf_counter()
            product = ask()
            seconds[key].append(perf_counter() - started)
            made[key].append(replace(product, c=np.empty(0)))
    row: dict[str, object] = {"size": size, "dtype": arguments.dtype, **turned, "cores": len(os.sched_getaffinity(0))}
    for name in clients:
        plain, verified = ((name, verify) for verify in _BOTH)
        found = made[verified][-1]
        ratios = sorted(late / early for early, late in zip(seconds[plain], seconds[verified], strict=True))
        row |= {
            f"{name}device": found.device,
            f"{name}kernel": found.kernel,
            f"{name}plain_s": median(seconds[plain]),
            f"{name}verified_s": median(seconds[verified]),
            f"{name}cost_of_request": median(ratios) - 1,
            f"{name}ratios": ratios,
            f"{name}device_s": median(map(on_device, made[plain])),
            f"{name}device_verified_s": median(map(on_device, made[verified])),
            f"{name}after_the_product_s": median(each.timing_ms["verify"] / 1e3 for each in made[verified]),
            f"{name}certificate": None if found.certificate is None else found.certificate.residual,
        }
    return row


def on_device(product: Product) -> float:
    """Seconds that the device was busy with it."""
    return sum(product.timing_ms.get(phase, 0.0) for phase in ON_DEVICE) / 1e3


def arithmetic(size: int, arguments: argparse.Namespace) -> dict[str, object]:
    """What reading A, B and C takes that are there, in turn: of the wall's time by all threads, and of one core's."""
    a, b = operands(size, arguments)
    problem = Problem(size, size, size, 1, arguments.dtype, "strict", "a" in arguments.trans, "b" in arguments.trans)
    c = np.zeros_like(a)
    took: dict[str, list[tuple[float, float]]] = {"a": [], "b": [], "c": [], "words": []}
    for _ in range(arguments.pairs):
        streamed = StreamedSketch(problem, a, b, c, norms=a.itemsize == 2)
        for name, seconds in took.items():
            read = WordSums(b).wait if name == "words" else partial(streamed.read, name)
            started, busy = perf_counter(), process_time()
            read()
            seconds.append((perf_counter() - started, process_time() - busy))
    rates = [{name: a.nbytes / median(each[i] for each in both) / 1e9 for name, both in took.items()} for i in (0, 1)]
    told = {"size": size, "dtype": arguments.dtype, "threads": reading.threads()}
    return told | {"gigabytes_a_second": rates[0], "gigabytes_a_second_of_a_core": rates[1]}


def sketches(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """A row of each size, on a device that this process holds."""
    with tempfile.TemporaryDirectory() as folder:
        backend = opened(arguments.sketch, Path(folder))
        rows = [sketched(size, arguments, WorkerContext(backend, memoryview(b""))) for size in arguments.sizes]
        backend.close()
    return rows


def sketched(size: int, arguments: argparse.Namespace, held: WorkerContext) -> dict[str, object]:
    """Milliseconds of each launch of a device's sketch by its own clock, and of all of it by the wall's."""
    a, b = operands(size, arguments)
    problem = Problem(size, size, size, 1, arguments.dtype, "strict", "a" in arguments.trans, "b" in arguments.trans)
    backend = held.backend
    on = Operands(*map(backend.upload, (a, b, np.zeros_like(a))))
    signs = SketchRequest.of(np.random.default_rng(size).choice([-1, 1], (VECTORS, size)))
    maker = sketch.prepared(held, cast("WorkerLink", Alone()), problem, signs, 60.0)
    if maker is None:
        raise SystemExit(f"{arguments.sketch} makes no sketches")
    wall = [found.seconds for found in (made(maker, on) for _ in range(arguments.pairs)) if found is not None]
    of_a, of_b = (StoredMatrix(size, size, 1, arguments.dtype, name in arguments.trans) for name in "ab")
    out = backend.allocate(size * WIDTH * 8)
    factors = backend.upload(np.ones((size, WIDTH)))
    launches = {
        "peaks": (row_peaks(of_a), Operands(out, on.a, out)),
        "project_a": (project(of_a), Operands(factors, on.a, out)),
        "project_b": (project(of_b), Operands(factors, on.b, out)),
        "word_sums": (word_sums(b.nbytes), Operands(on.b, out, out)),
    }
    took = {
        name: backend.time(backend.compile(launch.build), launch, [given] * arguments.pairs, "events")
        for name, (launch, given) in launches.items()
    }
    told = {"size": size, "dtype": arguments.dtype, "device": backend.device.name, "sketch_ms": 1e3 * median(wall)}
    return told | {f"{name}_ms": 1e3 * median(seconds) for name, seconds in took.items()}


def made(maker: SketchMaker, on: Operands) -> DeviceSketch | None:
    """A sketch, beside no product."""
    maker.begin(on)
    maker.compute()
    return maker.end()


def opened(device: str, cache: Path) -> Backend:
    """A device, held by this process."""
    if device.startswith("opencl"):
        return OpenCLBackend(device, cache)
    from app.devices.cuda import CudaBackend  # noqa: PLC0415 - only where there is a GPU

    return CudaBackend(device, cache)


class Alone:
    """A link of a worker whose device nobody else wants, and who waits for nothing."""

    def phase(self, stage: str, deadline: float) -> None:
        """Name a phase."""

    def lease(self, deadline: float) -> AbstractContextManager[None]:
        """Have the device."""
        del deadline
        return nullcontext()

    def offer(self, deadline: float) -> None:
        """Let nobody have the device meanwhile."""


if __name__ == "__main__":
    main()
