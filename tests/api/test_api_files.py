"""Operands that are .npy files in the operator's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.api.body.operand_files import opened_file
from app.api.formats.operand_spec import bytes_of
from app.dtypes import numpy_dtype
from app.errors import InvalidMatrix, UnknownFile
from tests.support.api.service_in_process import RAW, running
from tests.support.waiting import until

A = np.random.default_rng(1).standard_normal((200, 96)).astype(np.float32)
B = np.random.default_rng(2).standard_normal((96, 70)).astype(np.float32)


@dataclass(frozen=True)
class Files:
    url: str
    folder: Path

    def post(self, body: bytes | None = None, headers: dict[str, str] | None = None, **query: Any) -> httpx.Response:
        told = {name: str(value) for name, value in query.items()}
        return httpx.post(f"{self.url}/matmul", params=told, content=body, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    folder = tmp_path_factory.mktemp("operands") / "shared"
    (folder / "models").mkdir(parents=True)
    np.save(folder / "a.npy", A)
    np.save(folder / "models" / "b.npy", B)
    np.save(folder / "models" / "halves.npy", B.astype(numpy_dtype("bfloat16")))
    np.save(folder / "fortran.npy", np.asfortranarray(B))
    np.save(folder / "numbers.npy", np.arange(6))
    np.save(folder.parent / "outside.npy", B)
    (folder / "text.npy").write_text("no matrix")
    whole = (folder / "models" / "b.npy").read_bytes()
    (folder / "short.npy").write_bytes(whole[:-1])
    (folder / "link.npy").symlink_to(folder.parent / "outside.npy")
    (folder / "away").symlink_to(folder.parent)
    os.mkfifo(folder / "pipe.npy")
    with running(tmp_path_factory.mktemp("files"), operand_dir=folder) as service:
        yield Files(f"http://127.0.0.1:{service.port}", folder)


def made(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content[-4 * 200 * 70 :], np.float32).reshape(200, 70)


@pytest.mark.slow
def test_both_operands_may_be_files_and_then_there_is_no_body(files: Files) -> None:
    assert np.allclose(made(files.post(a_file="a.npy", b_file="models/b.npy")), A @ B, atol=1e-4)


def test_the_other_one_may_be_sent_in_any_form_or_be_resident(files: Files) -> None:
    raw, said = {"Content-Type": RAW}, {"m": 200, "n": 70, "k": 96, "dtype": "float32"}
    assert np.allclose(made(files.post(B.tobytes(), raw, a_file="a.npy", **said)), A @ B, atol=1e-4)
    told = httpx.post(f"{files.url}/matmul", params={"a_file": "a.npy"}, json={"b": B.tolist()}, timeout=60).json()
    assert np.allclose(told["c"], A @ B, atol=1e-4)
    kept = httpx.put(f"{files.url}/matrices/b", params={"shape": "96x70"}, content=B.tobytes(), headers=raw)
    assert kept.is_success, kept.text
    assert np.allclose(made(files.post(a_file="a.npy", b="b")), A @ B, atol=1e-4)


def test_a_job_is_made_of_them(files: Files) -> None:
    asked = files.post(headers={"Prefer": "respond-async"}, a_file="a.npy", b_file="models/b.npy", verify="freivalds")
    job = f"{files.url}/jobs/{asked.json()['id']}"
    until(lambda: httpx.get(job).json()["state"] == "succeeded", 60)
    assert httpx.get(job).json()["result"]["certificate"]["method"] == "freivalds"
    assert np.allclose(made(httpx.get(f"{job}/result")), A @ B, atol=1e-4)


@pytest.mark.parametrize("name", ["none.npy", "link.npy", "away/outside.npy", "pipe.npy", "a.npy/b.npy"])
def test_what_is_no_file_below_the_folder_is_unknown(files: Files, name: str) -> None:
    answer = files.post(a_file="a.npy", b_file=name)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_file")


@pytest.mark.parametrize("name", ["../outside.npy", "/etc/a.npy", "models/../a.npy", ".hidden.npy", "a", "a.npy\n"])
def test_a_name_that_leads_elsewhere_is_refused(files: Files, name: str) -> None:
    answer = files.post(a_file="a.npy", b_file=name)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"b_file": "text.npy"}, "invalid_matrix"),
        ({"b_file": "short.npy"}, "invalid_matrix"),
        ({"b_file": "fortran.npy"}, "invalid_matrix"),
        ({"b_file": "numbers.npy"}, "invalid_matrix"),
        ({"b_file": "models/halves.npy"}, "invalid_matrix"),
        ({"b_file": "a.npy"}, "invalid_matrix"),
        ({"b_file": "models/b.npy", "n": 71}, "invalid"),
        ({"b_file": "models/b.npy", "a": "b"}, "invalid"),
    ],
)
def test_files_that_make_no_product_are_refused(files: Files, query: dict[str, Any], code: str) -> None:
    answer = files.post(a_file="a.npy", **query)
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text


def test_without_a_folder_there_are_no_files(client: httpx.Client) -> None:
    answer = client.post("/matmul", params={"a_file": "a.npy", "b_file": "b.npy"})
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_file")


def test_a_file_that_becomes_shorter_fails_its_product(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", A)
    with opened_file(tmp_path, "a.npy", "a", None) as file:
        os.truncate(tmp_path / "a.npy", 1000)
        with pytest.raises(InvalidMatrix):
            file.read_into(bytes_of(np.empty_like(A)))
    with pytest.raises(UnknownFile), opened_file(tmp_path / "none", "a.npy", "a", None):
        pass
