"""The spans of the newest jobs, which take a bounded memory."""

from __future__ import annotations

from time import perf_counter

from app.observability.job_traces import REQUESTS, SPANS, TOGETHER, JobTraces, chrome_trace


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


def test_requests_are_recorded_of_the_jobs_that_run_and_cut_at_their_begin() -> None:
    traces, before = JobTraces(), perf_counter() - 5
    traces.note_request("GET", "/trials", 200, before, perf_counter())
    traces.recording("job", None)
    traces.note_request("GET", "/best-config", 200, before, perf_counter())
    traces.note_request("POST", "/matmul", 503, perf_counter(), perf_counter())
    traces.end("job")
    traces.note_request("GET", "/jobs", 200, perf_counter(), perf_counter())
    trace = traces.get("job")
    assert trace is not None
    first, second = trace.requests
    assert (first.name, first.lane, first.error) == ("GET /best-config", "HTTP", None)
    assert first.start == trace.since, "what was before the job is shown as its own"
    assert (second.name, second.error) == ("POST /matmul", "it was answered 503")
    shown = chrome_trace(trace, "title")["traceEvents"]
    assert [one["name"] for one in shown if one.get("cat") == "HTTP"] == ["GET /best-config", "POST /matmul"]


def test_requests_of_one_job_are_bounded() -> None:
    traces = JobTraces()
    traces.recording("job", None)
    for _ in range(REQUESTS + 7):
        traces.note_request("GET", "/trials", 200, 0.0, 1.0)
    trace = traces.get("job")
    assert trace is not None
    assert (len(trace.requests), trace.dropped_requests) == (REQUESTS, 7)
    assert chrome_trace(trace, "title")["otherData"]["dropped_requests"] == 7
