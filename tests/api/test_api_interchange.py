"""Results come and go as files: exported, imported, told line by line, started from, and forgotten."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import pytest

from app.cli.spawn import started
from app.interchange import bundle, kernel_tuner
from app.interchange.formats import FORMATS, FileSubject, parse
from app.interchange.results import BestResult, ResultsFile
from app.services.interchange.imports import MOST_BYTES
from benchmarks.interchange.mutated import cases
from kernels import CATALOGUE
from kernels.problem import Problem
from kernels.space import Config
from tests.support.started_services import settled
from tilewise import Client, ClientError, UnknownImport

SHAPE = {"m": 48, "n": 40, "k": 24}
OTHER = Problem(40, 48, 16)
CHOSEN = Config.of({"BM": 8, "BN": 4, "BK": 4})


@pytest.fixture(scope="module")
def live_client(live: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def tuned(live_client: httpx.Client) -> str:
    """The id of a job that tuned one shape."""
    asked = {"shapes": [SHAPE], "kernels": ["tiled"], "budget": {"trials": 6}}
    job = live_client.post("/tune", json=asked, headers={"Prefer": "wait=60"}).json()
    assert job["state"] == "succeeded"
    return str(job["id"])


@pytest.fixture(autouse=True)
def none_left(live_client: httpx.Client) -> Iterator[None]:
    yield
    for one in live_client.get("/imports").json()["imports"]:
        assert live_client.delete(f"/imports/{one['id']}").status_code == 204


def foreign(client: httpx.Client, time_ms: float = 1e-6, **members: Any) -> bytes:
    """A bundle with a best of this host's device that nobody measured here."""
    device = client.get("/devices").json()["devices"][0]["model"]
    made: dict[str, Any] = {"device": device, "problem": OTHER, "kernel": "tiled", "config": CHOSEN}
    best = BestResult(**made | {"time_ms": time_ms, "tuned_at": "2026-11-23T00:00:00+00:00"} | members)
    return "".join(bundle.lines(ResultsFile((), (best,)), "elsewhere 1")).encode()


@pytest.mark.slow
def test_what_was_tuned_is_exported_alike_twice_and_imported_as_the_same(live_client: httpx.Client, tuned: str) -> None:
    first = live_client.get("/export/bundle", params={"job_id": tuned})
    assert first.status_code == 200
    assert first.headers["content-type"] == FORMATS["bundle"].media
    assert live_client.get("/export/bundle", params={"job_id": tuned}).content == first.content
    found = bundle.read(first.text)
    assert [best.problem for best in found.bests] == [Problem(48, 40, 24)]
    answer = live_client.post("/import/bundle", content=first.content)
    assert answer.status_code == 201
    told = answer.json()
    assert told["imported"]["counts"] == {
        **dict.fromkeys(("added", "better", "worse", "conflict", "refused"), 0),
        "same": found.count,
    }
    assert len(told["lines"]) == found.count
    again = live_client.get("/export/bundle", params={"import_id": told["imported"]["id"]})
    assert bundle.read(again.text) == found


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", ["kernel-tuner", "t4", "t4-1.0", "store-results", "wisdom", "csv"])
def test_each_format_holds_a_tuned_space_and_is_imported_as_the_same(
    live_client: httpx.Client, tuned: str, name: str
) -> None:
    text = live_client.get(f"/export/{name}", params={"job_id": tuned, "kernel": "tiled"}).content
    answer = live_client.post(f"/import/{name}", content=text)
    assert answer.status_code == 201, answer.text
    counts = answer.json()["imported"]["counts"]
    assert counts["same"] == sum(counts.values()) > 0


@pytest.mark.parametrize("name", ["t4", "kernel-tuner", "bundle"])
def test_what_compiling_took_is_told_of_each_trial_and_in_each_file(
    live_client: httpx.Client, tuned: str, name: str
) -> None:
    asked = {"job_id": tuned, "kernel": "tiled"}
    trials = live_client.get("/trials", params=asked | {"limit": 1000}).json()["trials"]
    told: dict[str, list[dict[str, Any]]] = {}
    for trial in trials:
        compilation = trial["compilation"]
        assert compilation["seconds"] > 0
        assert len(compilation["block"]) == 2
        known = {name: value for name, value in compilation.items() if value is not None}
        told.setdefault(str(sorted(trial["config"].items())), []).append(known)
    file = live_client.get(f"/export/{name}", params=asked).content
    (space,) = parse(name, file, FileSubject()).spaces
    assert len(space.results) == len(told)
    for one in space.results:
        found = one.extra["tilewise"]["compilation"]
        assert found in told[str(sorted(space.members(one).items()))]
        assert one.extra["compile_time"] == 1e3 * found["seconds"]
    imported = live_client.post(f"/import/{name}", content=file).json()["imported"]["id"]
    again = live_client.get("/export/bundle", params={"import_id": imported}).text
    (kept,) = bundle.read(again).spaces
    extras = {one.values: one.extra["tilewise"] for one in kept.results}
    assert extras == {one.values: one.extra["tilewise"] for one in space.results}


def test_a_space_is_chosen_where_a_format_holds_one(live_client: httpx.Client, tuned: str) -> None:
    answer = live_client.get("/export/t4", params={"job_id": tuned})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert "the format holds one space, and there are" in answer.json()["error"]
    assert live_client.get("/export/csv?shape=3x5x7").json()["code"] == "not_tuned"
    assert live_client.get("/export/xml").json()["formats"][0] == "bundle"


def test_a_header_defines_what_the_kernels_build_has(live_client: httpx.Client, tuned: str) -> None:
    asked = {"job_id": tuned, "kernel": "tiled"}
    text = live_client.get("/export/header", params=asked).text
    trials = live_client.get("/trials", params=asked | {"state": "measured", "limit": 1000}).json()["trials"]
    defined = [
        trial for trial in trials if all(f"#define {name} {value}\n" in text for name, value in trial["config"].items())
    ]
    assert defined, "a config of the job's"
    assert text.count("#define DTYPE_FLOAT32 1\n") == 2


def test_an_import_is_a_near_answer_with_its_source_until_it_is_deleted(live_client: httpx.Client) -> None:
    query = {"m": OTHER.m, "n": OTHER.n, "k": OTHER.k}
    before = live_client.get("/best-config", params=query).json()
    answer = live_client.post("/import/bundle", content=foreign(live_client))
    told = answer.json()["imported"]
    assert answer.headers["location"] == f"/imports/{told['id']}"
    assert live_client.get(f"/imports/{told['id']}").json() == told
    found = live_client.get("/best-config", params=query).json()
    assert (found["kernel"], found["config"], found["match"]) == ("tiled", dict(CHOSEN), "nearest")
    assert found["source"]["import_id"] == told["id"]
    assert live_client.get("/best-config", params=query | {"match": "exact"}).status_code == 404
    assert live_client.delete(f"/imports/{told['id']}").status_code == 204
    assert live_client.get("/best-config", params=query).json() == before
    assert live_client.get(f"/imports/{told['id']}").json()["code"] == "unknown_import"


def test_lines_say_what_is_better_worse_and_refused(live_client: httpx.Client, tuned: str) -> None:
    del tuned
    problem, worse = Problem(48, 40, 24), 1e6
    wrong = Config.of({"BM": 7, "BN": 4, "BK": 4})
    (known,) = live_client.get("/bests/history", params=SHAPE | {"limit": 1}).json()["history"]
    is_certain = known["ci95_ms"][0] > 1e-6  # a busy machine's interval may hold any time
    for members, outcome in (
        ({"problem": problem, "time_ms": 1e-6}, "better" if is_certain else "same"),
        ({"problem": problem, "time_ms": worse}, "worse"),
        ({"config": wrong}, "refused"),
        ({"kernel": "of_others"}, "added"),
    ):
        (line,) = live_client.post("/import/bundle", content=foreign(live_client, **members)).json()["lines"]
        assert (line["outcome"], line["line"]) == (outcome, 2), line


@pytest.mark.slow
def test_a_search_starts_from_a_cache_of_another_tuner(live_client: httpx.Client) -> None:
    config, names = {"BM": 4, "BN": 32, "BK": 8}, list(CATALOGUE["tiled"].space.parameters)
    device = live_client.get("/devices").json()["devices"][0]["name"]
    key = ",".join(str(config[name]) for name in names)
    head = {"device_name": device, "kernel_name": "tiled", "problem_size": [56, 56], "tune_params_keys": names}
    text = json.dumps(head)[:-1] + ',"cache":{\n' + json.dumps(key) + ":" + json.dumps({**config, "time": 1e-3}) + ","
    assert live_client.post("/import/kernel-tuner", content=text.encode()).json()["code"] == "invalid_file"
    answer = live_client.post("/import/kernel-tuner?m=56&n=56&k=40", content=text.encode())
    assert answer.json()["imported"]["counts"]["added"] == 1
    tune = {"shapes": ["56x56x40"], "kernels": ["tiled"], "budget": {"trials": 9}}
    job = live_client.post("/tune", json=tune, headers={"Prefer": "wait=60"}).json()
    trials = live_client.get("/trials", params={"job_id": job["id"], "kernel": "tiled", "round": "search"})
    assert config in [each["config"] for each in trials.json()["trials"]][:2]


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_file_of_a_format_leaves_nothing(live_client: httpx.Client, name: str) -> None:
    answer = live_client.post(f"/import/{name}", content=b'{"cache": ')
    assert answer.status_code == 422
    assert answer.json()["code"] in {"invalid_file", "unsupported"}
    assert live_client.get("/imports").json() == {"imports": []}


def peak(process: int) -> int:
    """The most bytes that a process has held."""
    told = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return 1024 * int(told.partition("VmHWM:")[2].split()[0])


def test_what_unpacks_to_too_much_is_refused_at_the_place_that_was_reached(live_client: httpx.Client) -> None:
    packed = gzip.compress((b" " * 1023 + b"\n") * (2 * MOST_BYTES // 1024))
    assert len(packed) < MOST_BYTES / 100
    answer = live_client.post("/import/bundle", content=packed, headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_file"), answer.text
    assert 0 < answer.json()["line"] - 1 < MOST_BYTES / 1024  # a hundred times what was sent is less than the limit
    assert 1 <= answer.json()["column"] <= 1024
    assert live_client.get("/imports").json() == {"imports": []}


@pytest.mark.slow
def test_a_huge_file_is_refused_where_it_is_too_long_and_is_never_held(tmp_path: Path) -> None:
    piece = (b" " * 1023 + b"\n") * 1024
    count = 8 * MOST_BYTES // len(piece)
    with started(tmp_path, devices="none") as running:
        before = peak(running.process.pid)
        for told in ({"Content-Length": str(count * len(piece))}, {"Transfer-Encoding": "chunked"}):
            content = (piece for _ in range(count))
            answer = httpx.post(f"{running.url}/import/bundle", content=content, headers=told, timeout=60)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_file"), answer.text
            assert (answer.json()["line"], answer.json()["column"]) == (MOST_BYTES / 1024 + 1, 1)
        assert peak(running.process.pid) - before < 4 * MOST_BYTES
        assert httpx.get(f"{running.url}/imports").json() == {"imports": []}


@pytest.mark.slow
def test_mutated_files_are_kept_or_refused_at_their_place_and_nothing_else(live_client: httpx.Client) -> None:
    kept = 0
    for name, data in cases(420, seed=11):
        started = perf_counter()
        answer = live_client.post(f"/import/{name}", content=data)
        assert perf_counter() - started < 2
        if answer.status_code == 201:
            kept += 1
            told = answer.json()
            assert sum(told["imported"]["counts"].values()) == len(told["lines"])
            assert live_client.delete(f"/imports/{told['imported']['id']}").status_code == 204
        else:
            assert answer.status_code == 422, answer.text
            assert answer.json()["code"] in {"invalid_file", "invalid"}, answer.text
            assert answer.json()["code"] == "invalid" or {"line", "column"} <= answer.json().keys()
    assert kept
    assert live_client.get("/imports").json() == {"imports": []}


@pytest.mark.slow
def test_imports_belong_to_whoever_sent_them(tmp_path: Path) -> None:
    admin, best = tmp_path / "admin", {"time_ms": 1e-6, "tuned_at": "2026-11-23T00:00:00+00:00"}
    admin.write_text("admin-key-of-the-test")
    with settled(tmp_path / "data", key=admin.read_text(), auth="keys", admin_key_file=str(admin)) as running:
        with Client(running.url, key=admin.read_text()) as owner:
            keys = [owner.create_key(name, scopes=["read", "tune"]).key for name in ("ann", "bob")]
            reader = owner.create_key("ann", scopes=["read"]).key
            model = owner.devices()[0].model
        made: dict[str, Any] = {"device": model, "problem": OTHER, "kernel": "tiled", "config": CHOSEN}
        file = "".join(bundle.lines(ResultsFile((), (BestResult(**made | best),)), "elsewhere 1")).encode()
        with (
            Client(running.url, key=keys[0]) as ann,
            Client(running.url, key=keys[1]) as bob,
            Client(running.url, key=reader) as looker,
        ):
            kept = ann.import_results(file).imported
            assert [one.id for one in ann.imports()] == [one.id for one in looker.imports()] == [kept.id]
            assert bob.imports() == []
            asked = (OTHER.m, OTHER.n, OTHER.k)
            assert [one.best_config(asked).match for one in (ann, bob)] == ["nearest", "default"]
            assert bundle.read(ann.export_results(import_id=kept.id).decode()).bests
            for refused in (lambda: bob.delete_import(kept.id), lambda: bob.export_results(import_id=kept.id)):
                with pytest.raises(UnknownImport):
                    refused()
            for forbidden in (lambda: looker.import_results(file), lambda: looker.delete_import(kept.id)):
                with pytest.raises(ClientError) as told:
                    forbidden()
                assert told.value.code == "forbidden"
            ann.delete_import(kept.id)
            assert (ann.imports(), ann.best_config(asked).match) == ([], "default")


@pytest.mark.slow
def test_every_promotion_and_deletion_stays_in_the_history(live_client: httpx.Client) -> None:
    shape = {"m": 25, "n": 27, "k": 29}  # which no other test tunes
    for _ in range(2):
        asked = {"shapes": [shape], "kernels": ["naive"], "budget": {"trials": 1}, "retune": True}
        assert live_client.post("/tune", json=asked, headers={"Prefer": "wait=60"}).json()["state"] == "succeeded"
    assert live_client.delete("/bests", params=shape).status_code == 204
    told = live_client.get("/bests/history", params=shape).json()["history"]
    assert [one["event"] for one in told] == ["deleted", "promoted", "promoted"]
    assert told[1]["job_id"] != told[2]["job_id"]
    page = live_client.get("/bests/history", params=shape | {"limit": 1}).json()
    rest = live_client.get("/bests/history", params=shape | {"cursor": page["next"]}).json()
    assert [*page["history"], *rest["history"]] == told


def test_a_cache_of_ours_is_what_its_reader_reads(live_client: httpx.Client, tuned: str) -> None:
    text = live_client.get("/export/kernel-tuner", params={"job_id": tuned, "kernel": "tiled"}).text
    space = kernel_tuner.read(text)
    assert json.loads(text)["cache"].keys() == {",".join(map(str, one.values)) for one in space.results}
