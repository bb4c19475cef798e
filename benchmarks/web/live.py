"""A live job: from a trial's commit to its picture, and what 100 watchers cost it: python -m benchmarks.web.live."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx

from benchmarks.harness import Running
from benchmarks.web.browser import chromium, keep, percentile, repeated, service

BARS: Final = {"p99_delay_ms": 250, "watchers_cost_percent": 10}
WATCHERS: Final = 100
# A trial is in the picture two frames after the grid says how many there are: charts are drawn before it.
_WATCH: Final = """(() => {
  const [told, shown] = [[], []];
  const Plain = window.EventSource;
  window.EventSource = class extends Plain {
    constructor(...given) {
      super(...given);
      if (!given[0].includes("/jobs/")) return; // the stream of all jobs draws no trial
      super.addEventListener("trial", event => told.push(JSON.parse(event.data).id ?? Number(event.lastEventId)));
    }
  };
  const drawn = () => {
    const now = told.splice(0);
    requestAnimationFrame(() => requestAnimationFrame(() => now.forEach(id => shown.push([id, Date.now()]))));
  };
  document.addEventListener("DOMContentLoaded", () => new MutationObserver(changes =>
    changes.some(change => change.target.closest?.("#trials [role=status]")) && drawn())
    .observe(document.body, { childList: true, subtree: true }));
  window.shown_ = shown;
})()"""


def ordered(url: str, seconds: int, m: int) -> str:
    """A job that lasts for its seconds: neither its trials nor a space of its kernels end before them."""
    order = {"shapes": [f"{m}x64x64"], "budget": {"seconds": seconds, "trials": 100_000}, "retune": True}
    order["kernels"] = ["naive", "tiled", "register_tiled"]
    return str(httpx.post(f"{url}/tune", json=order, timeout=30).raise_for_status().json()["id"])


def ended(url: str, job: str) -> dict[str, Any]:
    """The job, once it has ended."""
    while True:
        found: dict[str, Any] = httpx.get(f"{url}/jobs/{job}", timeout=30).json()
        if found["state"] not in {"queued", "running", "cancelling"}:
            return found
        time.sleep(0.5)


def delays(running: Running, seconds: int) -> list[float]:
    """Milliseconds from each trial's record, made just before its commit, to the frame that has it."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 844})
        page.add_init_script(_WATCH)
        job = ordered(running.url, seconds, 64)
        page.goto(f"{running.url}/ui/jobs/{job}")
        ended(running.url, job)
        page.wait_for_timeout(1000)
        shown: list[list[float]] = page.evaluate("shown_")
    rows = httpx.get(f"{running.url}/trials", params={"job_id": job, "limit": 1000}, timeout=30).json()["trials"]
    made = {row["id"]: 1000 * datetime.fromisoformat(row["created_at"]).timestamp() for row in rows}
    return [at - made[int(number)] for number, at in shown if int(number) in made]


async def watch(port: int, job: str) -> None:
    """A hundred streams of one job, whose bytes are read and dropped until the job's end ends them."""
    lines = (f"GET /jobs/{job}/events HTTP/1.1", "Host: localhost", "Accept: text/event-stream", "Connection: close")
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(WATCHERS)]
    for _, writer in streams:
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def drop(reader: asyncio.StreamReader) -> None:
        while await reader.read(65536):
            pass

    await asyncio.gather(*(drop(reader) for reader, _ in streams))
    for _, writer in streams:
        writer.close()


def finished(seconds: int, *, watched: bool) -> int:
    """Trials that a job finishes in its seconds, in a service that has compiled nothing before."""
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as running:
        job = ordered(running.url, seconds, 512)
        if watched:
            asyncio.run(watch(running.port, job))
        return int(ended(running.url, job)["progress"]["done"])


def measured(seconds: int, repeats: int) -> dict[str, Any]:
    """Both, the jobs with watchers in turn with those without."""
    alone, together = [], []
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as running:
        late = [delays(running, min(seconds, 20)) for _ in range(repeats)]
    for _ in range(repeats):
        alone.append(finished(seconds, watched=False))
        together.append(finished(seconds, watched=True))
    cost = 100 * (1 - median(together) / median(alone))
    return {
        "bars": BARS,
        "seconds": seconds,
        "repeats": repeats,
        "trials_shown": sum(map(len, late)),
        "p99_delay_ms": repeated([percentile(each, 99) for each in late]),
        "median_delay_ms": repeated([median(each) for each in late]),
        "trials_alone": alone,
        "trials_with_100_watchers": together,
        "watchers_cost_percent": round(cost, 1),
    }


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=int, default=60)
    arguments.add_argument("--repeats", type=int, default=3)
    given = arguments.parse_args()
    keep("live", measured(given.seconds, given.repeats))
