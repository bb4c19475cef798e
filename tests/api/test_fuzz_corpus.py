"""What fuzzers kept is read again: a crash, a hang or a fault of the service is none of its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import process_time

import pytest

from tests.api.fuzz_formats import LONGEST, is_fault, read
from tests.support.api.fuzz_targets import FORMATS, Target, targets


@pytest.fixture(scope="module")
def found() -> Iterator[Mapping[str, Target]]:
    with targets() as opened:
        yield opened


def kinds(answer: str) -> list[str]:
    """The first digit of each status: a warning of NumPy's, which is an error here, makes another one of a refusal."""
    return [each[0] for each in answer.split() if each.isdigit()]


@pytest.mark.rotating
@pytest.mark.parametrize("name", FORMATS)
def test_what_was_kept_is_answered_like_it(found: Mapping[str, Target], name: str) -> None:
    corpus = read(name)
    assert len(corpus) > 8
    for data, answer in corpus:
        assert len(data) <= LONGEST
        began = process_time()
        again = found[name](data)
        assert kinds(again) == kinds(answer), data
        assert not is_fault(again)
        assert process_time() - began < 1
