"""Fuzz the readers of bodies by coverage: `python -m tests.api.fuzz [--seconds 120] [--mode built|bytes] [--seed 1]`.

It needs atheris (`pip install -e '.[fuzz]'`). `built` has libFuzzer choose how requests are built and bent; `bytes`
hands its bytes to a reader as they are, from a corpus of honest bodies. The first request that does worse than be
refused is written to the working directory as crash-*, and read back by giving its path.
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
import tempfile
import time
import zlib
from collections import Counter as Tally
from collections.abc import Callable
from pathlib import Path

import atheris
import numpy as np

with atheris.instrument_imports(include=["app.api", "zipfile"]):
    import zipfile  # noqa: F401 - it is what reads archives

    from app.api.formats.operand_spec import ONE, ProductOptions
    from tests.support.api.body_reading import FORM, JSON, MEDIA, NPY, NPZ, RAW, TENSORS, Counter, Sent

from hypothesis import HealthCheck, given, settings

from app.devices.slab import Slab
from tests.support.api.mutated_requests import sent
from tests.support.api.request_bodies import BOUNDARY, form, npy, npz, rows, safetensors

CODINGS = ("", "gzip", "deflate")
_TOLD = 5.0  # seconds between two lines on what came
A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(3, 4)


def request_of(data: bytes) -> Sent:
    """A request out of any bytes: three say what it is, the others are its body."""
    kind, coding, cut = (*data[:3], 0, 0, 0)[:3]
    media, body = MEDIA[kind % len(MEDIA)], data[3:]
    names = ONE if media == NPY or kind >= 128 else ("a", "b")
    wanted = ProductOptions(m=2, n=4, k=3) if coding >= 128 else ProductOptions()
    told = BOUNDARY if media == FORM else ""
    cuts = range(cut, len(body), cut) if cut else ()
    return Sent(media, body, CODINGS[coding % 3], told, wanted, names, cuts, is_chunked=bool(cut % 2))


def honest() -> list[bytes]:
    """Bodies of every form, in every coding."""
    large = np.ones((160, 160), np.float32)
    bodies = [
        (JSON, rows(A, B)),
        (FORM, form(a=npy(A), b=npy(B.T.copy().T))),
        (FORM, form(a=npy(large), b=npy(large))),
        (NPZ, npz(a=A, b=B)),
        (NPZ, npz(packed=True, a=A, b=np.asfortranarray(B))),
        (TENSORS, safetensors(a=A, b=B)),
        (NPY, npy(A)),
        (NPY, npy(np.asfortranarray(A.astype(">f8")))),
        (RAW, A.tobytes() + B.tobytes()),
    ]
    packers: tuple[Callable[[bytes], bytes], ...] = (bytes, gzip.compress, zlib.compress)
    return [
        bytes([MEDIA.index(media), 128 * (media == RAW) + (index - 128 * (media == RAW)) % 3, 0]) + pack(body)
        for media, body in bodies
        for index, pack in enumerate(packers)
    ]


class Watch:
    """Takes requests in, and counts what came of them."""

    def __init__(self) -> None:
        self.counter, self.tally = Counter(Slab(2**24)), Tally[str]()
        self.started = time.monotonic()
        self.next = self.started + _TOLD

    def take(self, request: Sent) -> None:
        taken = self.counter.take(request)
        self.tally[f"{taken.status} {taken.code}".strip()] += 1
        if taken.status >= 500:
            raise RuntimeError(f"{request!r} was answered {taken!r}")

    def tell_sometimes(self) -> None:
        if time.monotonic() < self.next:
            return
        self.next += _TOLD
        seconds = time.monotonic() - self.started
        print(f"{self.tally.total()} requests in {seconds:.0f} s: {dict(self.tally.most_common())}", flush=True)


def main() -> None:
    """Fuzz for a while."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--mode", choices=("built", "bytes"), default="built")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("crash", nargs="*", help="files to read back")
    asked = parser.parse_args()
    watch = Watch()

    @settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(sent())
    def built(request: Sent) -> None:
        watch.take(request)

    def plain(data: bytes) -> None:
        watch.take(request_of(data))

    fuzz_one = getattr(built, "hypothesis").fuzz_one_input if asked.mode == "built" else plain  # noqa: B009 - untyped

    def one(data: bytes) -> None:
        fuzz_one(data)
        watch.tell_sometimes()

    with tempfile.TemporaryDirectory() as corpus:
        draws = [random.Random(asked.seed + each).randbytes(4096) for each in range(200)]  # noqa: S311 - no secret
        for index, body in enumerate(honest() if asked.mode == "bytes" else draws):
            Path(corpus, str(index)).write_bytes(body)
        options = [
            f"-max_total_time={asked.seconds}",
            f"-seed={asked.seed}",
            "-max_len=131072",
            "-len_control=0",
            "-print_final_stats=1",
        ]
        atheris.Setup([sys.argv[0], *options, *(asked.crash or [corpus])], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
