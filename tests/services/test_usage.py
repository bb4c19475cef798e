"""What a principal has used of its quota, on a clock of the test's own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from app.errors import DeviceTimeUsed, RateLimited
from app.services.access.usage import DeviceSeconds, LeakyBuckets, RequestRates
from app.services.principal import Principal, UsageQuota

ANN = Principal("ann", quota=UsageQuota(requests_per_second=10))


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_seconds_worth_of_requests_comes_at_once_and_then_the_rate_holds() -> None:
    clock = Clock()
    rates = RequestRates(clock)
    for _ in range(10):
        rates.take(ANN)
    with pytest.raises(RateLimited) as refused:
        rates.take(ANN)
    assert refused.value.facts == {"limit": 10, "retry_after": 1, "principal": "ann"}
    passed = 0
    for _ in range(1000):
        clock.now += 0.01
        try:
            rates.take(ANN)
        except RateLimited:
            continue
        passed += 1
    assert passed == pytest.approx(100, abs=1)


def test_one_principals_requests_cost_no_other_and_no_quota_is_no_limit() -> None:
    rates = RequestRates(Clock())
    for _ in range(10):
        rates.take(ANN)
    rates.take(Principal("ben", quota=ANN.quota))
    for _ in range(1000):
        rates.take(Principal("cat"))


def test_a_rate_below_one_a_second_lets_one_pass() -> None:
    clock = Clock()
    rates, slow = RequestRates(clock), Principal("ann", quota=UsageQuota(requests_per_second=0.1))
    rates.take(slow)
    with pytest.raises(RateLimited) as refused:
        rates.take(slow)
    assert refused.value.facts["retry_after"] == 10
    clock.now += 10
    rates.take(slow)


def test_device_seconds_come_back_within_the_hour() -> None:
    clock = Clock()
    used = DeviceSeconds("tuning", clock)
    used.expect(ANN, 60, 60)
    used.spend(ANN, 60, 45)
    used.expect(ANN, 60, 15)
    with pytest.raises(DeviceTimeUsed) as refused:
        used.expect(ANN, 60, 30)
    assert refused.value.facts == {"limit": 60, "size": 75.0, "retry_after": 900}
    clock.now += 900
    used.expect(ANN, 60, 30)
    used.expect(ANN, None, 1e9)


def test_who_has_overdrawn_waits_and_retry_after_is_when_it_passes() -> None:
    clock = Clock()
    used = DeviceSeconds("products", clock)
    used.spend(ANN, 60, 90)
    with pytest.raises(DeviceTimeUsed) as refused:
        used.expect(ANN, 60)
    clock.now += float(str(refused.value.facts["retry_after"])) + 0.001
    used.expect(ANN, 60)


def test_buckets_that_have_run_empty_are_forgotten() -> None:
    clock = Clock()
    buckets = LeakyBuckets(clock)
    for number in range(10_000):
        buckets.put(str(number), 1, 1, 1)
    clock.now += 2
    buckets.put("last", 1, 1, 1)
    assert len(buckets) == 1
