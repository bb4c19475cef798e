"""Every command, against a running service and without one."""

from __future__ import annotations

import io
import json
import os
import pty
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from app.cli.spawn import Started
from app.dtypes import numpy_dtype
from tests.support.cli.command_line import FEW, Run

pytest_plugins = ["tests.support.cli.command_line"]


@pytest.fixture
def operands(tmp_path: Path) -> tuple[Path, Path]:
    source = np.random.default_rng(7)
    a, b = tmp_path / "a.npy", tmp_path / "b.npy"
    np.save(a, np.asfortranarray(source.standard_normal((30, 20)).astype(np.float32)))
    np.save(b, source.standard_normal((20, 25)).astype(">f4"))
    return a, b


def nowhere() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.slow
def test_tuning_prints_the_table_and_what_it_found_is_exact_from_then_on(run: Run, where: list[str]) -> None:
    ran = run("tune", "24x40x16", *FEW, *where)
    assert ran.code == 0, ran.err
    assert all(word in ran.out for word in ("24x40x16", "naive", "tiled", "vendor", "GFLOP/s", "Speed-up"))
    found = run("best", 24, 40, 16, "--match", "exact", "--json", *where)
    assert found.code == 0, found.err
    assert (found.json["match"], found.json["problem"]["n"]) == ("exact", 40)
    again = run("tune", "24x40x16", *FEW, "--json", *where)
    assert again.code == 0
    assert again.json["job"]["state"] == "succeeded"
    for best in again.json["best"]:
        assert all(entry["error"]["relative_l2"] < 1e-5 for entry in best["baselines"].values() if entry["timing"])


def test_what_was_never_tuned_has_no_exact_answer(run: Run, where: list[str]) -> None:
    ran = run("best", 91, 92, 93, "--match", "exact", *where)
    assert ran.code == 3
    assert "has not been tuned" in ran.err
    assert ran.out == ""


@pytest.mark.rotating
def test_an_answer_is_shown_a_fact_a_line_with_how_exact_it_is(run: Run, service: Started) -> None:
    assert run("tune", "24x40x16", *FEW, "--url", service.url).code == 0
    exact, near = (run("best", 24, 40, k, "--url", service.url) for k in (16, 17))
    assert all(word in exact.out for word in ("24x40x16", "exact", "GFLOP/s", "ms ±", "blocks of", "fma"))
    assert "nearest, tuned for 24x40x16" in near.out or "default" in near.out
    assert "times a tune's own time" in near.out


@pytest.mark.slow
def test_a_product_of_files_is_numpys_whatever_their_order(
    run: Run, where: list[str], operands: tuple[Path, Path], tmp_path: Path
) -> None:
    a, b = operands
    ran = run("matmul", a, b, "-o", tmp_path / "c.npy", "--check", "--json", *where)
    assert ran.code == 0, ran.err
    assert np.allclose(np.load(tmp_path / "c.npy"), np.load(a) @ np.load(b), atol=1e-4)
    assert ran.json["relative_l2"] < 1e-6
    assert ran.json["instructions"] == "fma"
    assert (ran.json["shape"], ran.json["dtype"]) == ([30, 25], "float32")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npy", "c.npy"]


@pytest.mark.slow
def test_a_product_may_be_transposed_and_its_kernel_forced(
    run: Run, service: Started, operands: tuple[Path, Path], tmp_path: Path
) -> None:
    a, b = operands
    words = ["--trans-a", "--trans-b", "--kernel", "naive", "--url", service.url]
    ran = run("matmul", b, a, "-o", tmp_path / "c.npy", *words)
    assert ran.code == 0, ran.err
    assert "25 x 30 float32, by naive" in ran.out
    assert np.allclose(np.load(tmp_path / "c.npy"), (np.load(a) @ np.load(b)).T, atol=1e-4)


@pytest.mark.rotating
def test_the_devices_are_listed(run: Run, where: list[str]) -> None:
    ran = run("devices", "--json", *where)
    assert ran.code == 0, ran.err
    assert [device["id"] for device in ran.json] == ["opencl:0"]


def test_the_kernels_are_listed_with_what_they_compute_where(run: Run, where: list[str]) -> None:
    ran = run("kernels", "--json", *where)
    assert ran.code == 0, ran.err
    tiled = next(kernel for kernel in ran.json if kernel["name"] == "tiled")
    assert {one["platform"] for one in tiled["covers"]} == {"cuda", "opencl"}
    shown = run("kernels", *where).out
    assert all(word in shown for word in ("double_tensor", "dmma", "sm_90", "opencl", "float32 tf32"))


def test_an_unknown_device_is_none(run: Run, where: list[str]) -> None:
    ran = run("best", 8, 8, 8, "--device", "cuda:7", *where)
    assert ran.code == 4
    assert "opencl:0" in ran.err


def test_an_unknown_kernel_is_wrong_usage_and_nothing_is_written(
    run: Run, service: Started, operands: tuple[Path, Path], tmp_path: Path
) -> None:
    ran = run("matmul", *operands, "-o", tmp_path / "c.npy", "--kernel", "magic", "--url", service.url)
    assert ran.code == 2
    assert "magic" in ran.err
    assert not (tmp_path / "c.npy").exists()


def test_where_nothing_listens_the_exit_code_says_so(run: Run) -> None:
    ran = run("best", 8, 8, 8, "--url", nowhere())
    assert ran.code == 4
    assert "nothing listens" in ran.err


def test_the_address_may_stand_in_the_environment(run: Run, service: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_URL", service.url)
    monkeypatch.setenv("TILEWISE_DEVICES", "none")
    ran = run("devices")
    assert ran.code == 0
    assert "opencl:0" in ran.out


@pytest.mark.parametrize(
    "words",
    [
        ["tune", "3", "4"],
        ["tune", "8x8"],
        ["tune"],
        ["best", "0", "1", "1"],
        ["best", "a", "1", "1"],
        ["matmul", "missing.npy", "missing.npy", "-o", "c.npy"],
        ["best", "8", "8", "8", "--url", "ftp://nowhere"],
        ["demo", "--shapes", "8x8"],
        ["serve", "--port", "99999"],
        ["polish"],
        ["tune", "8", "--dtype", "float23"],
        ["tune", "8", "--precision", "exact"],
        ["tune", "8", "--kernels", "naive, tild"],
        ["tune", "8", "--strategy", "annealing"],
        ["best", "8x8x8x2", "--batch", "3"],
        ["best", "8x8x8", "9x9x9"],
        ["export", "1", "-o", "no/such/folder/x"],
        ["analyse", "8", "--kernel", "hopper"],
        ["watch", "--limit", "3"],
        ["jobs", "--limit", "0"],
    ],
)
def test_wrong_usage_is_said_before_anything_is_opened(run: Run, words: list[str]) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert ran.err
    assert ran.out == ""


def test_files_that_are_no_matrices_are_refused_in_a_sentence(run: Run, tmp_path: Path) -> None:
    text, whole, odd = tmp_path / "text.npy", tmp_path / "whole.npy", tmp_path / "odd.npy"
    text.write_text("no matrix")
    np.save(whole, np.ones((3, 3), np.int32))
    np.save(odd, np.ones((4, 5), np.float32))
    for left, right, reason in [
        (text, odd, "no .npy"),
        (whole, odd, "one of float32, float64"),
        (odd, odd, "disagree"),
    ]:
        ran = run("matmul", left, right, "-o", tmp_path / "c.npy")
        assert ran.code == 2
        assert reason in " ".join(ran.err.replace("│", " ").split())


def halves(folder: Path, dtype: str) -> tuple[Path, Path]:
    a, b = (folder / f"{name}-{dtype}.npy" for name in "ab")
    numbers = (np.arange(12).reshape(4, 3) % 5).astype(numpy_dtype(dtype))
    np.save(a, numbers)
    np.save(b, np.asfortranarray(numbers.T))
    return a, b


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "options"), [("float16", ()), ("bfloat16", ("--dtype", "bfloat16"))])
def test_files_of_16_bits_are_multiplied(
    run: Run, tmp_path: Path, service: Started, dtype: str, options: tuple[str, ...]
) -> None:
    ran = run(
        "matmul", *halves(tmp_path, dtype), "-o", tmp_path / "c", "--check", "--json", *options, "--url", service.url
    )
    assert ran.code == 0, ran.err
    assert (ran.json["dtype"], ran.json["relative_l2"]) == (dtype, 0)
    assert np.load(tmp_path / "c").view(numpy_dtype(dtype)).astype(np.float64).sum() == 149


@pytest.mark.slow
def test_without_a_service_files_of_bfloat16_are_multiplied_too(run: Run, tmp_path: Path) -> None:
    files = halves(tmp_path, "bfloat16")
    ran = run("matmul", *files, "-o", tmp_path / "c", "--dtype", "bfloat16", "--kernel", "naive", "--check", "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["dtype"], ran.json["relative_l2"]) == ("bfloat16", 0)


def test_files_whose_dtype_is_unclear_or_another_are_refused_in_a_sentence(run: Run, tmp_path: Path) -> None:
    files = halves(tmp_path, "bfloat16")
    for options, reason in (([], "say --dtype bfloat16"), (["--dtype", "float32"], "not float32")):
        ran = run("matmul", *files, "-o", tmp_path / "c", *options)
        assert ran.code == 2
        assert reason in " ".join(ran.err.replace("│", " ").split())


@pytest.mark.slow
def test_bfloat16_is_tuned_and_found_as_a_class_of_its_own(run: Run, service: Started) -> None:
    tuning = ("tune", "16x16x16", "--dtype", "bfloat16", "--kernels", "tiled", "--trials", 1, "--json")
    ran = run(*tuning, "--url", service.url)
    assert ran.code == 0, ran.err
    (best,) = ran.json["best"]
    assert (best["problem"]["dtype"], best["match"]) == ("bfloat16", "exact")
    assert best["error"]["relative_l2"] < 2.0**-8
    assert run("best", 16, 16, 16, "--match", "exact", "--url", service.url).code == 3


@pytest.mark.parametrize("words", [["matmul", "a.npy", "b.npy"], ["export", "0123456789abcdef"]])
def test_output_that_cannot_be_written_is_refused_first(run: Run, tmp_path: Path, words: list[str]) -> None:
    files = [str(tmp_path / word) if word.endswith(".npy") else word for word in words]
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.ones((2, 2), np.float32))
    ran = run(*files, "-o", tmp_path / "no" / "such" / "c.npy")
    assert ran.code == 2
    assert "there is no folder" in ran.err
    assert ran.out == ""


def test_files_that_are_no_npy_are_refused_without_advice_to_trust_them(run: Run, tmp_path: Path) -> None:
    text, good = tmp_path / "text.npy", tmp_path / "good.npy"
    text.write_text("hello")
    np.save(good, np.ones((2, 2), np.float32))
    ran = run("matmul", text, good, "-o", tmp_path / "c.npy")
    assert ran.code == 2
    assert "is no .npy file of numbers" in " ".join(ran.err.replace("│", " ").split())
    assert "pickle" not in ran.err
    assert "unsafely" not in ran.err


def test_setting_that_there_is_none_of_is_warned_of(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_PROT", "1")
    ran = run("jobs")
    assert ran.code == 0
    assert "there is no setting TILEWISE_PROT; did you mean TILEWISE_PORT?" in ran.err


def test_data_folder_that_cannot_be_made_is_said_in_a_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_DATA_DIR", "/proc/nope")
    for words in (["serve", "--port", "0"], ["jobs"], ["best", "8"], ["migrate"], ["demo", "--data-dir", "/proc/no"]):
        ran = run(*words)
        assert ran.code == 1, words
        assert ran.err.startswith("tilewise: ")
        assert "/proc/no" in ran.err
        assert ran.err.count("\n") == 1, ran.err


def test_a_setting_that_is_none_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_PORT", "many")
    ran = run("devices")
    assert ran.code == 2
    assert "TILEWISE_PORT" in ran.err


@pytest.mark.rotating
def test_product_may_come_by_standard_input_and_go_to_standard_output(
    service: Started, operands: tuple[Path, Path]
) -> None:
    a, b = operands
    words = [sys.executable, "-m", "app.cli", "matmul", "-", str(b), "-o", "-", "--json", "--url", service.url]
    ran = subprocess.run(words, input=a.read_bytes(), capture_output=True, check=True)
    assert np.allclose(np.load(io.BytesIO(ran.stdout)), np.load(a) @ np.load(b), atol=1e-4)
    assert json.loads(ran.stderr)["shape"] == [30, 25]


@pytest.mark.rotating
def test_only_one_operand_is_standard_input_and_binary_goes_to_no_terminal(
    run: Run, operands: tuple[Path, Path]
) -> None:
    assert "only one of A and B" in run("matmul", "-", "-", "-o", "c.npy").err
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "app.cli", "matmul", *map(str, operands), "-o", "-"]
    ran = subprocess.run(words, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    os.close(theirs)
    os.close(ours)
    assert ran.returncode == 2
    assert "standard output is a terminal" in " ".join(ran.stderr.replace("│", " ").split())


@pytest.mark.slow
def test_best_is_answered_without_a_device_once_the_devices_are_known(run: Run) -> None:
    assert run("devices").code == 0
    asked = "import sys, app.cli; code = app.cli.main(['best', '8']); print(code, 'app.main' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "0 False", ran.stderr


@pytest.mark.slow
def test_devices_say_why_there_are_no_others(run: Run, service: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_DEVICES", "opencl,opencl:7")
    ran = run("devices")
    assert ran.code == 0
    assert "not opened: opencl:7" in ran.err
    assert " cores " in ran.out
    assert "SMs" not in run("devices", "--url", service.url).out


def test_without_a_device_a_command_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_DEVICES", "none")
    ran = run("devices")
    assert ran.code == 4
    assert "device" in ran.err
    assert run("best", 8, 8, 8).code == 4


@pytest.mark.slow
def test_service_that_owns_the_database_is_spoken_to(
    run: Run, service: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWISE_DATA_DIR", str(service.log.parent))
    monkeypatch.setenv("TILEWISE_DEVICES", "none")
    for words in (["best", "8x8x8"], ["devices"], ["jobs"], ["bests"], ["misses"], ["trials"], ["analyse", "8"]):
        ran = run(*words)
        assert ran.code == 0, ran.err
        assert f"speaking to the service at {service.url}" in ran.err
    for refused in (["migrate"], ["serve", "--port", "0"]):
        ran = run(*refused)
        assert ran.code == 1
        assert ran.err.count("\n") == 1
        assert f"pid {service.process.pid} at {service.url}: stop that first" in ran.err


def test_migrating_says_from_where_to_where(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_DATA_DIR", str(tmp_path / "new"))
    ran = run("migrate")
    assert ran.code == 0, ran.err
    assert "went from nothing to" in ran.out
    again = run("migrate", "--json").json
    assert again["from"] == again["to"]
    assert "current already" in run("migrate").out
