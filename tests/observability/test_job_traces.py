"""The spans of the newest jobs, which take a bounded memory."""

from __future__ import annotations

from app.observability.job_traces import SPANS, TOGETHER, JobTraces


def test_jobs_of_many_spans_make_the_oldest_give_way() -> None:
    traces = JobTraces()
    for number in range(8):
        span = traces.recording(f"job {number}", None).span
        for _ in range(SPANS + 10):
            span.end(1)
    kept = [trace for number in range(8) if (trace := traces.get(f"job {number}")) is not None]
    assert sum(len(trace.work) for trace in kept) <= TOGETHER + SPANS
    assert len(kept) >= 2
    assert kept[-1].dropped == 10
    assert traces.get("job 0") is None
