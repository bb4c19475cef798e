"""Long JSON texts take little memory and let other threads run, and mean what short ones mean."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from time import process_time
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.formats import json_matrix, number_lists
from app.api.formats.operand_spec import OPERANDS, ProductOptions, TensorSpec
from app.api.inference import json_tensors
from app.dtypes import Array
from app.errors import Malformed, Refused

ROOT: Final = Path(__file__).parents[2]
SIZE: Final = 2**24
MEASURED: Final = r"""
import gc, sys, threading, time
from app.api.formats import json_matrix
from app.api.formats.operand_spec import ProductOptions
from app.api.inference.schemas import understood
from app.errors import TilewiseError

def peak():  # getrusage would tell the parent's, which is larger: ru_maxrss outlives exec
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

kind, size = sys.argv[1], int(sys.argv[2])
front, unit, rest = {
    "empty lists": (b'{"a":[', b"[],", b'[]],"b":[[1]]}'),
    "empty objects": (b'{"a":[', b"{},", b'{}],"b":[[1]]}'),
    "one number a row": (b'{"a":[', b"[1],", b'[1]],"b":[[1]]}'),
    "one row": (b'{"a":[[', b"0,", b'0]],"b":[[1]]}'),
    "large integers": (b'{"a":[[', b"257,", b'0]],"b":[[1]]}'),
    "strings": (b'{"a":[[', b'"NaN",', b'0]],"b":[[1]]}'),
    "members": (b'{"a":[[1]],', b'"x":1,', b'"b":[[1]]}'),
    "nested": (b'{"a":', b"[", b"]}"),
    "infer": (b'{"inputs":[{"name":"A","datatype":"FP32","shape":[1,2],"data":[', b"[],", b'[]]}]}'),
    "infer by name": (b'{"inputs":[{"name":"A","datatype":"FP32","shape":[1,2],"data":[', b"NaN,", b'1]}]}'),
}[kind]
text = memoryview(front + unit * (size // len(unit)) + rest)
gc.collect()
gc.freeze()  # as the service does once it listens
gaps, over, last = [], threading.Event(), time.perf_counter()

def tick():
    global last
    while not over.is_set():
        time.sleep(0.001)
        now = time.perf_counter()
        gaps.append(now - last)
        last = now

sys.setswitchinterval(0.0005)
thread = threading.Thread(target=tick)
thread.start()
before = peak()
try:
    understood(text) if kind.startswith("infer") else json_matrix.load(text, ProductOptions())
except TilewiseError as error:
    assert len(error.message) < 300
over.set()
thread.join()
print(peak() - before, int(1e3 * max(gaps)))
"""
KINDS: Final = [
    "empty lists", "empty objects", "one number a row", "one row", "large integers", "strings", "members", "nested",
    "infer", "infer by name",
]  # fmt: skip


@pytest.mark.timing
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_takes_at_most_12_times_its_bytes_and_stops_nobody(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, kind, str(SIZE)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    kib, longest_ms = map(int, done.stdout.split())
    assert kib * 1024 <= 11 * SIZE + 2**25  # the text itself is the twelfth
    assert longest_ms <= 100


@pytest.fixture
def blockwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every text read in blocks of a few bytes."""
    monkeypatch.setattr(number_lists, "_BLOCK", 12)
    monkeypatch.setattr(json_matrix, "SHORT", 0)
    monkeypatch.setattr(json_tensors, "SHORT", 0)


def loaded(text: str) -> dict[str, Array]:
    body = json_matrix.load(memoryview(text.encode()), ProductOptions())
    places: dict[str, Array] = {name: np.full(each.shape, np.nan, np.float32) for name, each in body.found.items()}
    body.fill(places)
    return places


NUMBERS = st.sampled_from([0, 1, -2.5, 1e3, "NaN", "Infinity", "-Infinity"])
SPACES = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", " : ")])


@pytest.mark.rotating
@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=3),
    data=st.data(),
    spaces=SPACES,
)
def test_a_text_in_blocks_means_what_it_means_whole(shape: list[int], data: st.DataObject, spaces: Any) -> None:
    def drawn(sizes: list[int]) -> Any:
        return [drawn(sizes[1:]) for _ in range(sizes[0])] if sizes else data.draw(NUMBERS)

    value = {"dtype": "float32", "a": drawn(shape), "precision": "strict", "b": drawn(shape)}
    text = json.dumps(value, separators=spaces)
    whole = loaded(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(number_lists, "_BLOCK", 32)
        patch.setattr(json_matrix, "SHORT", 0)
        parts = loaded(text)
    assert {name: each.shape for name, each in parts.items()} == {name: each.shape for name, each in whole.items()}
    for name in OPERANDS:
        np.testing.assert_array_equal(parts[name], whole[name])


@pytest.mark.parametrize(
    "a",
    [
        "[[1,2,3,4,5,6],[1,2,3,4,5]]",
        "[[1,2,3,4,5,],[1,2,3,4,5,6]]",
        "[[1,2,3,4,5,6],[1,2,3,4,5,6],]",
        "[[1,2,3,,5,6],[1,2,3,4,5,6]]",
        "[[1,2,3,4,5,6],[]]",
        "[[],[]]",
        "[]",
        "[[1,2,3,4,5,6],7,8,9]",
        "[1,2,3,4,5,6,7,8,9]",
        "[[1,2,3,4,5,6],[1,2,[3],4,5,6]]",
        "[[1,2,3,4,5,6],[1,2,3 4,5,6,7]]",
        "[[1,2,3,4,5,6][1,2,3,4,5,6]]",
        "[[1,2,3,4,5,6]],[1,2,3,4,5,6]]",
        "[[1,2,3,4,5,6],[1,2,3,4,5,6]",
        "[[[1,2,3],[4,5,6]],[[1,2,3]]]",
        "[[1,2,3,4,5,6],[1,2,3,4,5,null]]",
        '[[1,2,3,4,5,6],[1,2,3,4,5,"["]]',
        '[[1,2,3,4,5,6],[1,2,3,4,5,"1"]]',
        "[[1,2,3,4,5,6],[1,2,3,4,5,NaN]]",
        "[[1,2,3,4,5,6],[1,2,3,4,5,{}]]",
        "[[1,2,3,4,5,0123456789012]]",
        "[" * 40 + "]" * 40,
    ],
)
@pytest.mark.usefixtures("blockwise")
def test_what_is_no_matrix_is_refused_in_blocks(a: str) -> None:
    with pytest.raises(Refused):
        loaded(f'{{"a":{a},"b":[[1]]}}')


@pytest.mark.parametrize(
    "data", [[[2.0, 3.0, 1.0], [4.0, 5.0, 6.0]], [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]], [[1.0]] * 6]
)
@pytest.mark.parametrize("form", ["whole", "in blocks"])
def test_lists_that_contradict_their_shape_are_refused(
    data: list[list[float]], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "in blocks":
        monkeypatch.setattr(json_tensors, "SHORT", 0)
        monkeypatch.setattr(number_lists, "_BLOCK", 12)
    with pytest.raises(Malformed):
        filled(data)


@pytest.mark.parametrize("data", [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
@pytest.mark.parametrize("form", ["whole", "in blocks"])
def test_lists_may_be_flat_or_nested_as_their_shape(
    data: list[Any], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "in blocks":
        monkeypatch.setattr(json_tensors, "SHORT", 0)
        monkeypatch.setattr(number_lists, "_BLOCK", 12)
    assert filled(data).tolist() == [[1, 2], [3, 4], [5, 6]]


def filled(data: list[Any]) -> Array:
    text = json_tensors.split_text(memoryview(json.dumps({"data": data}).encode()))
    out: Array = np.zeros((3, 2), np.float32)
    json_tensors.fill(text.list_of(text.value["data"]), TensorSpec("A", "float32", (3, 2)), out)
    return out


def test_a_text_of_many_lists_of_numbers_is_refused_before_all_are_read() -> None:
    text = b"{" + b'"a":[[1]],' * 20_000 + b'"b":[[1]]}'
    with pytest.raises(Malformed, match="at most 16 lists"):
        json_matrix.load(memoryview(text), ProductOptions())


def seconds_of(a: str, shape: tuple[int, int]) -> float:
    """Processor time in which the rows of a are read and copied; the shortest of three."""
    text, times = f'{{"a":[{a}],"b":[[1]]}}'.encode(), []
    for _ in range(3):
        began = process_time()
        parsed = json_matrix.load(memoryview(text), ProductOptions())
        parsed.fill({"a": np.empty(shape, np.float32), "b": np.empty((1, 1), np.float32)})
        times.append(process_time() - began)
    return min(times)


def test_short_rows_take_no_longer_than_long_ones_by_far() -> None:
    short, long = seconds_of(",".join(["[1]"] * 16_000), (16_000, 1)), seconds_of(str([1.0] * 12_000), (1, 12_000))
    assert short < 15 * long  # a copy for each row took 60 times as long
