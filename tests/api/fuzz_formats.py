"""Fuzz readers by coverage, without a library: `python -m tests.api.fuzz_formats [--seconds 600] [--only npz]`.

Inputs that reach lines, or follow lines in an order, that none before did are kept, if they are short; the best of them
are written to tests/data/fuzz/FORMAT.jsonl, which tests/api/test_fuzz_corpus.py replays. An input that does worse than
be refused, or takes more than a second, ends the run and is printed.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import sys
import threading
from collections import Counter
from pathlib import Path
from time import monotonic, process_time
from types import FrameType
from typing import Any, Final

import numpy as np

from tests.support.api.fuzz_targets import FORMATS, Target, targets
from tests.support.api.request_bodies import form, npy, npz, rows, safetensors

CORPUS: Final = Path(__file__).parent.parent / "data" / "fuzz"
LONGEST: Final = 2048  # bytes of an input that is kept
MOST: Final = 300  # inputs of a format
_SLOW: Final = 1.0  # seconds of the processor that one may take
_GROWN: Final = 2**17  # bytes of an input that is tried
_WATCHED: Final = ("/app/api/", "/app/server/", "/zipfile.py", "python_multipart/multipart.py", "numpy/lib/format.py")
_TOLD: Final = 10.0
_OFTEN: Final = 8  # bits of how often a pair was run, at most
_UNSERVED: Final = {"501", "505"}  # of requests that are none of the service's
A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(3, 4)
_TOKENS: Final = {
    "json": r'[ ] { } , : "a" "b" "m" "NaN" 1e400 -0 null \u0000 true "dtype" "float16" "convert"',
    "multipart": r'\r\n -- 0123456789abcdef Content-Disposition:\x20form-data;\x20name= "a" "b" ; --0123456789abcdef--',
    "npz": r"PK\x01\x02 PK\x03\x04 PK\x05\x06 PK\x06\x06 PK\x06\x07 a.npy b.npy \xff\xff\xff\xff \x08\0 \x14\0",
    "safetensors": r'"data_offsets" "dtype" "shape" "F32" "BF16" [0,24] __metadata__ { } [ ] , "a" "b"',
    "npy": r"'descr' 'fortran_order' 'shape' True ( ) '<f4' '>f8' '|V2' \x93NUMPY \x01\0 \x02\0 { } ,",
    "inference": r'"inputs" "name" "datatype" "shape" "data" "parameters" "outputs" NaN -Infinity [ ] { } , "FP16"',
    "http": r"\r\n \r\n\r\n GET\x20/\x20HTTP/1.1\r\n Host:a\r\n Content-Length:5\r\n chunked 0\r\n\r\n HTTP/1.0 \0 \t "
    r"Transfer-Encoding:chunked\r\n Expect:100-continue\r\n Connection:close\r\n Upgrade:x\r\n 5\r\nhello\r\n PUT "
    r"CONNECT Connection:upgrade\r\n : ; \x20",
}
TOKENS: Final = {
    name: tuple(token.encode().decode("unicode_escape").encode("latin-1") for token in text.split())
    for name, text in _TOKENS.items()
}


def seeds(name: str) -> list[bytes]:
    """Honest inputs of a format, and those of the corpus."""
    post = b"POST /x HTTP/1.1\r\nHost: localhost\r\n"
    one = {"name": "A", "datatype": "FP32", "shape": [2, 3], "data": A.reshape(-1).tolist()}
    inputs = {"inputs": [one, {**one, "name": "B", "shape": [3, 4], "data": B.tolist()}]}
    found = {
        "json": [
            rows(A, B),
            rows(A, B, dtype="float64", trans_a=True),
            b'{"a":[[1]],"b":[[' + b"1," * 40_000 + b"1]]}",
        ],
        "multipart": [form(a=npy(A), b=npy(B))],
        "npz": [npz(a=A, b=B), npz(packed=True, a=A, b=np.asfortranarray(B))],
        "safetensors": [safetensors(a=A, b=B)],
        "npy": [npy(A), npy(np.asfortranarray(A.astype(">f8")))],
        "inference": [json.dumps(inputs).encode()],
        "http": [
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2,
            post + b"Content-Length: 5\r\n\r\nhello",
            post + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n",
            post + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello" + post + b"\r\n",
        ],
    }
    return found[name] + [data for data, _ in read(name)]


def read(name: str) -> list[tuple[bytes, str]]:
    """The corpus of a format: inputs, and what they were answered when they were kept."""
    path = CORPUS / f"{name}.jsonl"
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else ()
    return [(base64.b64decode(each["input"]), each["answer"]) for each in map(json.loads, lines)]


class Coverage:
    """The pairs of lines that were run one after the other in the files that are watched, and roughly how often."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int, int, int]] = set()
        self._counts, self._watched = Counter[tuple[str, int, int]](), dict[str, bool]()

    def run(self, target: Target, data: bytes) -> tuple[str, int]:
        """What a target says of an input, and how many pairs are new."""
        self._counts.clear()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            answer = target(data)
        finally:
            sys.settrace(None)
            threading.settrace(None)
        counts = dict(self._counts)  # at once: a reader's thread may still be at its last lines
        found = {(*pair, min(_OFTEN, count.bit_length())) for pair, count in counts.items()}
        new = len(found - self.seen)
        self.seen |= found
        return answer, new

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        del event, argument
        file = frame.f_code.co_filename
        if file not in self._watched:
            self._watched[file] = any(part in file for part in _WATCHED)
        if not self._watched[file]:
            return None
        last, name = frame.f_lineno, frame.f_code.co_filename

        def lines(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            del event, argument
            self._counts[name, last, frame.f_lineno] += 1
            last = frame.f_lineno
            return lines

        return lines


def bent(rng: random.Random, data: bytes, others: list[bytes], tokens: tuple[bytes, ...]) -> bytes:
    """An input with a few changes."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        piece = data[at : min(end, at + 64)]
        match rng.randrange(8):
            case 0:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
            case 1:
                data = data[:at] + data[at + rng.randrange(1, 17) :]
            case 2 | 3:
                data = data[:at] + rng.choice(tokens) + data[at + rng.choice((0, 0, 1, 4)) :]
            case 4:
                data = data[:at] + piece * rng.choice((2, 3, 8, 300)) + data[at:]
            case 5:
                other = rng.choice(others)
                data = data[:at] + other[rng.randrange(len(other) + 1) :]
            case 6:
                data = (
                    data[:at] + rng.choice((b"0", b"-1", b"9" * 20, b"65536", b"4294967296", b"1.5")) + data[at + 1 :]
                )
            case _:
                data = data[: max(1, at)]
    return data[:_GROWN] or b"\0"


def is_fault(answer: str) -> bool:
    """Whether the service was at fault."""
    return any(status.startswith("5") and status not in _UNSERVED for status in answer.split() if status.isdigit())


def fuzz(name: str, target: Target, seconds: float, rng: random.Random) -> dict[str, Any]:
    """Fuzz one format; gives figures, and writes its corpus."""
    coverage, kept, tally, tried = Coverage(), list[tuple[bytes, str]](), Counter[str](), 0
    until, tell, slowest = monotonic() + seconds, monotonic() + _TOLD, 0.0
    pool, waiting = list[bytes](), seeds(name)
    while monotonic() < until or waiting:
        data = waiting.pop() if waiting else bent(rng, rng.choice(pool), pool, TOKENS[name])
        began = process_time()
        try:
            answer, new = coverage.run(target, data)
        except BaseException:
            print(f"{name}: {data!r}", flush=True)
            raise
        tried, slowest = tried + 1, max(slowest, process_time() - began)
        tally[answer] += 1
        if is_fault(answer) or process_time() - began > _SLOW * 10:  # it is traced, which takes ten times as long
            raise RuntimeError(f"{name}: {answer} after {process_time() - began:.1f} s: {data!r}")
        if new or not pool:
            pool.append(data)
            if len(data) <= LONGEST:
                kept.append((data, answer))
        if monotonic() > tell:
            tell += _TOLD
            print(f"{name}: {tried} inputs, {len(pool)} kept, {len(coverage.seen)} pairs of lines", flush=True)
    write(name, kept)
    figures = {"inputs": tried, "kept": len(kept), "pairs_of_lines": len(coverage.seen), "slowest_traced_s": slowest}
    return {"format": name, "seconds": seconds, **figures, "answers": dict(tally.most_common())}


def write(name: str, kept: list[tuple[bytes, str]]) -> None:
    """Write a corpus: those of its inputs that came first are the plainest."""
    CORPUS.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"answer": answer, "input": base64.b64encode(data).decode()}) for data, answer in kept[:MOST]]
    (CORPUS / f"{name}.jsonl").write_text("\n".join(dict.fromkeys(lines)) + "\n", encoding="ascii")


def main() -> None:
    """Fuzz each format for its share of the time, and write the figures beside the corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="of each format")
    parser.add_argument("--only", choices=FORMATS)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    report = CORPUS / "report.json"
    rows = {row["format"]: row for row in (json.loads(report.read_text())["formats"] if report.exists() else ())}
    with targets() as found:
        for name in [arguments.only] if arguments.only else FORMATS:
            rng = random.Random(f"{arguments.seed} {name}")  # noqa: S311 - it bends inputs
            rows[name] = fuzz(name, found[name], arguments.seconds, rng) | {"seed": arguments.seed}
            report.write_text(json.dumps({"formats": list(rows.values())}, indent=1) + "\n")
            print(json.dumps(rows[name]), flush=True)


if __name__ == "__main__":
    main()
