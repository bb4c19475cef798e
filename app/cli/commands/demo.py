"""tilewise demo: the main job from beginning to end, over HTTP, on whatever device this host has."""

from __future__ import annotations

import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from types import FrameType

import numpy as np
from rich.console import Console

from app.cli.exit_codes import Exit
from app.cli.figures import comparison, comparison_note, config_text
from app.cli.matrices import relative_l2
from app.cli.progress import follow
from app.cli.render import answer
from app.cli.spawn import STARTING, Started, started
from app.cli.startup_messages import ready_text, waiting_text
from app.errors import NoDevice, StartRefused
from tilewise import BudgetTooSmall, Client, Device, Job, Shape

ON_CPU = (Shape(128, 128, 128), Shape(256, 256, 256), Shape(512, 512, 512), Shape(500, 600, 400))
ON_GPU = (*(Shape(size, size, size) for size in (32, 256, 1024, 2048)), Shape(1000, 1200, 800))
# float32 sums of up to a few thousand products stay well inside this; a wrong tile does not.
TOLERATED = 1e-5
USUAL = "http://127.0.0.1:8000"
SECONDS = 34.0


@dataclass(frozen=True, slots=True)
class Demo:
    """What to show: shapes (none: some that suit the device), seconds of tuning, where to keep what is learnt.

    `seconds` None are enough for a usual host, and on a slower one as many as its service says that it needs.
    """

    shapes: tuple[Shape, ...]
    seconds: float | None
    data_dir: Path | None
    keep: bool


def demo(order: Demo, out: Console, err: Console) -> Exit:
    """Run it, and stop the service it started; raises NoDevice if there is nothing to run on."""
    if platform.system() != "Linux":
        raise NoDevice(
            f"Tilewise runs its kernels on Linux (x86-64): CUDA and PoCL are not to be had on {platform.system()}. "
            "The client works here: tilewise best --url http://a-linux-host:8000 1024 1024 1024."
        )
    signal.signal(signal.SIGTERM, _leave)
    began = time.monotonic()
    with _folder(order.data_dir) as folder, _service(folder, err) as service, Client(service.url) as client:
        device = _device(client, service, err)
        out.print(f"[bold]The device[/] is {device.name} ({device.id}, {device.platform}), with {device.compiler}.")
        shapes = order.shapes or (ON_GPU if device.platform == "cuda" else ON_CPU)
        done = _tune(client, shapes, order.seconds, out, err) and _multiply(client, shapes[-1], out)
        _next(shapes[-1], order, service, out)
        out.print(f"That took {time.monotonic() - began:.0f} s.")
        if order.keep:
            _stay(service, out)
    return Exit.OK if done else Exit.FAILED


def _tune(client: Client, shapes: Sequence[Shape], seconds: float | None, out: Console, err: Console) -> bool:
    out.print(f"Tuning {', '.join(map(str, shapes))}: every config is compiled, checked against float64, then timed.")
    job = follow(client, submitted(client, shapes, seconds, err), err)
    if job.state != "succeeded":
        err.print(f"[red]The job {job.state}[/]: {(job.error or {}).get('error', 'no reason was given')}")
        return False
    trials = f"{job.progress.done} configs were tried" if job.progress.done else "it had all been tuned before"
    bests = [client.best_config(**asdict(shape)) for shape in shapes]
    out.print(f"{trials.capitalize()}. What came out:")
    out.print(comparison(bests))
    out.print(comparison_note(bests) + "\n")
    out.print(f"[bold]GET /best-config[/] for {shapes[-1]} now answers:")
    out.print(answer(bests[-1]))
    return True


def submitted(client: Client, shapes: Sequence[Shape], seconds: float | None, err: Console) -> Job:
    """The job that tunes them, of as many seconds as it needs where none are given."""
    try:
        return client.tune(shapes, seconds=SECONDS if seconds is None else seconds)
    except BudgetTooSmall as refusal:
        if seconds is not None:
            raise
        needed = int(refusal.body["needed_seconds"])
        err.print(f"A trial of each of them is forecast to take {needed} s here: so many are given.")
        return client.tune(shapes, seconds=needed)


def _multiply(client: Client, shape: Shape, out: Console) -> bool:
    source = np.random.default_rng()
    lead = () if shape.batch == 1 else (shape.batch,)
    a = source.standard_normal((*lead, shape.m, shape.k), dtype=np.float32)
    b = source.standard_normal((*lead, shape.k, shape.n), dtype=np.float32)
    made = client.product(a, b)
    error = relative_l2(a, b, made.c)
    right = error <= TOLERATED
    out.print(
        f"\n[bold]POST /matmul[/] multiplied two random float32 matrices, {' x '.join(map(str, a.shape))} and "
        f"{' x '.join(map(str, b.shape))}, with {made.kernel} {config_text(made.config)} ({made.match})."
    )
    verdict = "[green]right[/]" if right else "[red]WRONG[/]"
    out.print(f"Against NumPy's float64 product its relative error is {error:.1e}: {verdict}.")
    return right


def _next(shape: Shape, order: Demo, service: Started, out: Console) -> None:
    """Commands that work as they are pasted, in the order in which they stand."""
    flag = f" --url {service.url}" if order.keep else ""
    kept = f"TILEWISE_DATA_DIR={quote(str(order.data_dir.absolute()))} " if order.data_dir and not order.keep else ""
    ours = f"{kept}{invoked()}"
    numbers = "; ".join(f'np.save("{name}.npy", np.random.rand(300, 300).astype("f"))' for name in "ab")
    commands = [
        (f"{ours} tune 1000x1200x800{flag}", "a shape of your own"),
        (f"{ours} best 1000x1200x800{flag}", "ask what was found"),
        (f"{quote(sys.executable)} -c 'import numpy as np; {numbers}'", "two files of numbers"),
        (f"{ours} matmul a.npy b.npy -o c.npy{flag}", "their product"),
    ]
    if order.keep:
        commands += [
            (f"curl '{service.url}/best-config?m={shape.m}&n={shape.n}&k={shape.k}'", "the same over HTTP"),
            (f"{service.url}/", "the page, in a browser; /docs is the reference"),
        ]
    else:
        commands += [(f"{ours} serve", f"a service that stays: its page is at {USUAL}/, the reference at {USUAL}/docs")]
    out.print("\n[bold]What to try next[/]")
    for command, why in commands:
        out.print(f"  {command}", markup=False, soft_wrap=True, end="")
        out.print(f"  [dim]# {why}[/]", soft_wrap=True)
    if not (order.keep or order.data_dir):
        out.print("What this demo has learnt is thrown away now: --data-dir FOLDER keeps it.")


def invoked() -> str:
    """Give the command as it was typed, so that it can be pasted where its folder is not on the path."""
    typed = sys.argv[0]
    if Path(typed).name == "__main__.py":
        return f"{quote(sys.executable)} -m app.cli"
    known = shutil.which(Path(typed).name)
    return Path(typed).name if known and Path(known).resolve() == Path(typed).resolve() else quote(typed)


def _stay(service: Started, out: Console) -> None:
    try:
        out.print(f"The service stays at {service.url} until Ctrl-C.")
        service.process.wait()
    except KeyboardInterrupt:
        out.print("Stopping it.")


def _device(client: Client, service: Started, err: Console) -> Device:
    """The first device, once products can be served; raises ClientError of code no_device if there is none."""
    began = time.monotonic()
    until = began + STARTING
    with err.status("verifying the default kernels") as status:
        while (found := client.readiness()).status == "not_ready" or found.pending:
            status.update(f"{waiting_text(found)} ({time.monotonic() - began:.0f} s)")
            if service.process.poll() is not None or time.monotonic() > until:
                tail = "\n".join(service.log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])
                raise StartRefused(f"the service did not become ready within {STARTING:.0f} s: {tail}")
            if not client.devices():
                client.best_config(1, 1, 1)  # refused, with the reasons why there is no device
            time.sleep(0.2)
    err.print(ready_text(found, time.monotonic() - began), soft_wrap=True)
    return client.devices()[0]


@contextmanager
def _folder(chosen: Path | None) -> Iterator[Path]:
    if chosen is not None:
        yield chosen
        return
    with tempfile.TemporaryDirectory(prefix="tilewise-demo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def _service(folder: Path, err: Console) -> Iterator[Started]:
    status = err.status("starting the service")
    status.start()
    try:
        with started(folder, auth="none") as service:  # for this process alone, whatever the host's own service asks
            status.stop()
            err.print(f"A service of our own listens at {service.url}, its data and its log are in {folder}.")
            yield service
    finally:
        status.stop()


def _leave(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends the demo as an exception would: the service is stopped and the folder removed."""
    del frame
    sys.exit(128 + number)
