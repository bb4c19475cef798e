"""Lines that strangers cause: ten a minute, and none of them is forgotten."""

from __future__ import annotations

import logging

import pytest

from app.observability.limited_log import LimitedLog


def test_ten_a_minute_are_told_and_the_next_line_says_how_many_were_not(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = LimitedLog(logging.getLogger("app.test"), lambda: now[0])
    for number in range(1000):
        log.warning("%d came", number)
    assert [record.message for record in caplog.records] == [f"{number} came" for number in range(10)]
    now[0] += 60
    log.warning("%d came", 1000)
    log.warning("%d came", 1001)
    assert [record.message for record in caplog.records][10:] == [
        "1000 came; 990 more like it before were not told",
        "1001 came",
    ]
    assert log.total == 1002
