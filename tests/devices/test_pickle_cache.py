"""What is said again to a process does not travel again, and is heard all the same."""

from __future__ import annotations

import pickle
import random
import secrets

import numpy as np

from app.devices.process.pickle_cache import PickleReceiver, PickleSender
from app.worker.serving.product import MultiplyRequest
from kernels import CATALOGUE
from kernels.device import Device, Limits
from kernels.problem import Problem

LIMITS = Limits(
    threads=1024, shared_bytes=2**16, warp=32, sms=2, bandwidth=1e11, peak=1e12, peak64=1e12, cache_bytes=2**20
)
DEVICE = Device("opencl:0", "opencl", "a device", "", "1", "2", "3", "uuid", 2**30, LIMITS)


def order(size: int) -> MultiplyRequest:
    problem = Problem(size, size, size)
    kernel = CATALOGUE["tiled"]
    return MultiplyRequest(problem, kernel.launch(kernel.default(problem, DEVICE), problem, DEVICE), 0, 4096, 8192)


def test_a_kernels_text_travels_once() -> None:
    sender, receiver, said = PickleSender(), PickleReceiver(), (order(64), order(96))
    whole, other, again = (sender.dumps(each) for each in (said[0], said[1], said[0]))
    text = len(said[0].launch.build.text) if said[0].launch else 0
    assert len(whole) > text > 10 * len(again)
    assert [receiver.loads(message) for message in (whole, other, again)] == [said[0], said[1], said[0]]


def test_whatever_has_no_such_bytes_is_said_as_it_is() -> None:
    sender, receiver = PickleSender(), PickleReceiver()
    for value in (None, ("done", [1, 2.5, "three"]), b"bytes"):
        assert receiver.loads(sender.dumps(value)) == value


def test_an_array_is_said_whole_and_may_be_written_to() -> None:
    sender, receiver, array = PickleSender(), PickleReceiver(), np.arange(1000.0)
    whole = sender.dumps(array)
    assert len(whole) == len(sender.dumps(array)) > array.nbytes
    heard = receiver.loads(whole)
    heard[0] = 7
    assert np.array_equal(heard[1:], array[1:])


def test_a_new_process_hears_everything_from_the_start() -> None:
    for _ in range(2):
        assert PickleReceiver().loads(PickleSender().dumps(order(64))) == order(64)


def test_what_was_said_long_ago_is_said_again() -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    chance, sender, receiver = random.Random(seed), PickleSender(), PickleReceiver()  # noqa: S311
    for _ in range(20_000):
        said = [b"%d" % chance.randrange(chance.choice((5, 600, 5000))) for _ in range(chance.randrange(4))]
        heard = receiver.loads(sender.dumps([pickle.PickleBuffer(each) for each in said]))
        assert [bytes(each) for each in heard] == said
