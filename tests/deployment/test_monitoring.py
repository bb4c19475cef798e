"""Metrics, alert rules and the dashboard, by Prometheus: its linter, its tests of rules, a server that scrapes.

Debian's package `prometheus` has both programs.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]  # the types would be one more package for one test
from prometheus_client.parser import text_string_to_metric_families

from app.api.telemetry.metrics import sensor_metrics
from app.cli.spawn import started
from app.devices.gpu_health import GpuReading
from app.observability.loop_lag import LoopLag
from tests.support.waiting import until
from tilewise import Client

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "tilewise.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
RULES = [rule for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
GPU_METRICS = {
    "tilewise_device_memory_errors_total",
    "tilewise_device_power_watts",
    "tilewise_device_remapped_rows",
    "tilewise_device_temperature_celsius",
    "tilewise_device_xids_total",
}
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_the_event_loops_lag_is_seen() -> None:
    seen: list[float] = []

    async def run() -> None:
        lag = LoopLag(seen.append)
        lag.start()
        await asyncio.sleep(0.6)
        time.sleep(0.6)  # noqa: ASYNC251 - a loop that is stuck is what is tested
        await asyncio.sleep(0.1)
        lag.stop()
        count = len(seen)
        await asyncio.sleep(0.6)
        assert len(seen) == count

    asyncio.run(run())
    assert len(seen) >= 2
    assert max(seen) >= 0.3


@pytest.mark.slow
@promtool
@pytest.mark.timeout(120)
def test_metrics_follow_the_rules_while_the_database_fails(tmp_path: Path) -> None:
    with started(tmp_path, devices="none") as service, httpx.Client(base_url=service.url, timeout=20) as client:
        text = client.get("/metrics").text
        lint = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")
        assert_documented(text)
        before = samples(text)
        assert before["tilewise_store_up"] == 1
        assert before["tilewise_store_errors_total"] == 0
        assert before["tilewise_open_connections"] >= 1
        assert before["tilewise_data_free_bytes"] <= before["tilewise_data_size_bytes"]
        assert before["process_open_fds"] < before["process_max_fds"]
        with sqlite3.connect(tmp_path / "tilewise.db") as database:
            database.execute("ALTER TABLE trials RENAME TO gone")
        after = samples(client.get("/metrics").text)
        assert after["tilewise_store_up"] == 0
        assert after["tilewise_store_errors_total"] >= 1
        assert set(after) >= {name for name in before if not name.startswith(("tilewise_jobs", "tilewise_trials"))}


def assert_documented(text: str) -> None:
    """Every metric's type, labels and meaning are in the reference, which has no others but those of GPUs."""
    told = documented()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    meanings = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    assert {name: (kind, text) for name, (kind, _, text) in told.items() if name in kinds} == {
        name: (kind, meanings[name]) for name, kind in kinds.items()
    }
    assert told.keys() - kinds.keys() == GPU_METRICS
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = next(name for name in (sample.name, re.sub("_(bucket|sum|count)$", "", sample.name)) if name in told)
            assert sample.labels.keys() - {"le"} == told[name][1], name


def documented() -> dict[str, tuple[str, set[str], str]]:
    """Type, labels and meaning of each metric in the reference."""
    page = (DEPLOY.parent / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S+)` \| (\w+) \| (.*?) ?\| (.*) \|$", page, re.MULTILINE)
    return {name: (kind, set(re.findall("`(.*?)`", labels)), text) for name, kind, labels, text in rows}


def test_gpus_metrics_follow_the_rules_and_are_documented() -> None:
    reading = GpuReading("GPU-1", corrected=3, uncorrected=1, remapped_rows=2, celsius=50.0, watts=300.0)
    told = documented()
    families = list(sensor_metrics({"cuda:0": reading}))
    assert {family.samples[0].name for family in families} == GPU_METRICS - {"tilewise_device_xids_total"}
    for family in families:
        for sample in family.samples:
            assert (family.type, set(sample.labels), family.documentation) == told[sample.name]
            assert sample.name.endswith("_total") == (family.type == "counter")
    assert told["tilewise_device_memory_errors_total"][0] == "counter"


@pytest.mark.rotating
@promtool
def test_the_rules_are_promtools_and_fire_on_their_faults_alone() -> None:
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        ran = subprocess.run(["promtool", *words], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_rule_is_tested_and_says_how_bad_it_is() -> None:
    tested = (PROMETHEUS / "alerts_test.yml").read_text(encoding="utf-8")
    assert [rule["alert"] for rule in RULES if f'alertname="{rule["alert"]}"' not in tested] == []
    assert {rule["labels"]["severity"] for rule in RULES} == {"critical", "warning"}
    assert all(rule["annotations"].keys() == {"summary", "description"} for rule in RULES)


@promtool
def test_the_configuration_is_prometheuss(tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_bytes((PROMETHEUS / "alerts.yml").read_bytes())
    (tmp_path / "key").write_text("a key")
    text = (PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8")
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/tilewise.key", str(tmp_path / "key")))
    words = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_dashboard_can_be_imported() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert all(panel["description"] and panel["fieldConfig"]["defaults"]["unit"] for panel in PANELS)
    assert {target["datasource"]["uid"] for panel in PANELS for target in panel["targets"]} == {"${datasource}"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_prometheus_answers_every_query_of_dashboard_and_rules(
    tmp_path: Path,
) -> None:
    with (
        started(tmp_path / "data", devices="opencl") as service,
        Client(service.url, timeout=120) as client,
        scraping(tmp_path, service.url) as server,
    ):
        client.tune("32x32x32", trials=2, wait=True)
        a = np.ones((32, 32), np.float32)
        client.put("a", a)

        def is_read() -> bool:
            client.matmul(a, a)
            return told(server, "sum(count_over_time(tilewise_product_seconds_count[1m]))") >= 4

        until(is_read, 60, each=0.5)
        names = set(server.get("/api/v1/label/__name__/values").json()["data"])
        queries = [
            *QUERIES,
            *((rule["alert"], re.sub(r" [<>=]=? [\d.]+$", "", rule["expr"].strip())) for rule in RULES),
        ]
        # Without a refusal there is no series of refusals, and the disk's rule has its comparisons in the middle.
        allowed = {"Refusals and errors", "TilewiseServerErrors", "TilewiseOverloaded", "TilewiseDiskFills"}
        for title, query in queries:
            answer = server.post("/api/v1/query", data={"query": filled(query)})
            assert answer.status_code == 200, (title, answer.text)
            used = set(re.findall(r"\b(?:tilewise|process)_[a-z_]+[a-z]\b", query))
            assert used <= names, (title, used - names)
            assert answer.json()["data"]["result"] or title in allowed, (title, query)


def filled(query: str) -> str:
    """A query with Grafana's variables filled in."""
    return query.replace("$__rate_interval", "1m").replace("$job", "tilewise").replace("$instance", ".*")


def told(server: httpx.Client, query: str) -> float:
    """The value of a query with one sample, or 0."""
    found = server.post("/api/v1/query", data={"query": query}).json()["data"]["result"]
    return float(found[0]["value"][1]) if found else 0.0


@contextmanager
def scraping(folder: Path, url: str) -> Iterator[httpx.Client]:
    """A Prometheus of its own that reads a service's metrics every second."""
    target = url.removeprefix("http://")
    scrape = {"job_name": "tilewise", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
    (folder / "scrape.json").write_text(json.dumps({"scrape_configs": [scrape]}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = ["prometheus", "--config.file=scrape.json", "--storage.tsdb.path=series", f"--web.listen-address={address}"]
    with (folder / "prometheus.log").open("wb") as log, httpx.Client(base_url=f"http://{address}") as client:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)

        def said() -> str:
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            return (folder / "prometheus.log").read_text()

        try:
            until(lambda: answers(client), 60, each=0.1, meanwhile=said)
            yield client
        finally:
            process.terminate()
            process.wait(20)


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def samples(text: str) -> dict[str, float]:
    """Every sample's value by its name and labels."""
    return {
        sample.name + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
