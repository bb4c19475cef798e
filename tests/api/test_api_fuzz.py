"""Bodies bent in every way that their formats leave: whatever comes, a 4xx at worst, and no slab byte stays lent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from app.devices.slab import Slab
from tests.support.api.body_reading import Counter, Sent
from tests.support.api.mutated_requests import sent


@pytest.fixture(scope="module")
def counter() -> Iterator[Counter]:
    slab = Slab(2**24)
    found = Counter(slab)
    yield found
    found.close()
    slab.close()


def harmless(counter: Counter, request: Sent) -> None:
    """Take a request in; raises AssertionError where that was worse than a refusal, or left something behind."""
    taken = counter.take(request)
    assert taken.status == 200 or 400 <= taken.status < 500, taken


@pytest.mark.slow
@settings(max_examples=300, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(request=sent())
def test_no_request_does_worse_than_be_refused(counter: Counter, request: Sent) -> None:
    harmless(counter, request)
