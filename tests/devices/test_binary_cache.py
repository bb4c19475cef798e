"""Folders of compiled code are the user's own; the sources load code from nowhere else, and unpickle only a pipe's."""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.devices.binary_cache import CACHES, make_private
from app.devices.fleet import open_fleet
from app.errors import StartRefused

STRANGER = 54321
ROOT = Path(__file__).resolve().parents[2]
ROOT_ALONE = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes what belongs to others")
# What makes objects, or runs code, of bytes: each function that may, since its bytes come by the pipe of a process of
# ours. app/worker/serving/product.py unpickles what came as a part of such a message.
UNPICKLING = {"load", "loads", "Unpickler"}
MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}
FROM_PIPES = {
    ("app/devices/process/call.py", "_read"),
    ("app/devices/process/pickle_cache.py", "loads"),
    ("app/devices/process/worker_main.py", "main"),
    ("app/worker/serving/product.py", "_unpacked"),
}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_of_code_is_its_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private(tmp_path / "new")
    finally:
        os.umask(before)
    assert mode(tmp_path / "new") == 0o700
    (tmp_path / "old" / "a").mkdir(parents=True)
    (tmp_path / "old" / "a" / "kernel").touch()
    make_private(tmp_path / "old")
    assert mode(tmp_path / "old") == 0o700


@pytest.mark.parametrize("place", [".", "a", "a/kernel"])
def test_a_folder_that_others_may_have_put_code_into_is_not_used(tmp_path: Path, place: str) -> None:
    (tmp_path / "pocl" / "a").mkdir(parents=True)
    (tmp_path / "pocl" / "a" / "kernel").touch()
    for folder in ("pocl", "pocl/a"):
        (tmp_path / folder).chmod(0o755)  # whatever the umask is: in a private folder nobody could
    (tmp_path / "pocl" / place).chmod(0o777)
    with pytest.raises(StartRefused, match="others may have put code"), open_fleet("none", tmp_path, 2**20):
        pass
    assert mode(tmp_path / "pocl" / place) == 0o777


def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "bin").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="others may have put code"):
        make_private(tmp_path / "bin")


@ROOT_ALONE
@pytest.mark.parametrize("place", [".", "kernel"])
def test_code_of_somebody_else_is_not_used(tmp_path: Path, place: str) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "kernel").touch()
    (tmp_path / "cuda").chmod(0o755)
    os.chown(tmp_path / "cuda" / place, STRANGER, -1)
    with pytest.raises(StartRefused, match="others may have put code"), open_fleet("none", tmp_path, 2**20):
        pass


def test_the_caches_folders_are_private_once_devices_are_open(tmp_path: Path) -> None:
    with open_fleet("none", tmp_path / "cache", 2**20):
        assert {mode(tmp_path / "cache" / name) for name in CACHES} == {0o700}


def calls(tree: ast.AST, inside: str = "") -> Iterator[tuple[ast.Call, str]]:
    for node in ast.iter_child_nodes(tree):
        within = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else inside
        if isinstance(node, ast.Call):
            yield node, within
        yield from calls(node, within)


def is_unpickling(call: ast.Call) -> bool:
    """Whether a call makes objects of bytes in a way that can run code: NumPy's loads, unless told not to, among it."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in {"eval", "exec", "Unpickler"}
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return False
    if function.value.id in MODULES:
        return function.attr in UNPICKLING | {"open"}
    told = {keyword.arg: keyword.value for keyword in call.keywords}.get("allow_pickle")
    refused = isinstance(told, ast.Constant) and told.value is False
    return not refused and (told is not None or (function.value.id == "np" and function.attr == "load"))


def unpickling(source: str) -> set[str]:
    return {within for call, within in calls(ast.parse(source)) if is_unpickling(call)}


@pytest.mark.rotating
def test_nothing_is_unpickled_but_what_a_process_of_ours_sent() -> None:
    files = [path for part in ("app", "kernels", "tilewise", "migrations") for path in (ROOT / part).rglob("*.py")]
    found = {
        (path.relative_to(ROOT).as_posix(), function)
        for path in files
        for function in unpickling(path.read_text(encoding="utf-8"))
    }
    assert found == FROM_PIPES


@pytest.mark.parametrize(
    "source",
    [
        "pickle.load(file)",
        "marshal.loads(data)",
        "Unpickler(file).load()",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "npy_format.read_array(file, allow_pickle=allowed)",
        "eval(text)",
    ],
)
def test_what_would_run_code_of_a_file_is_found(source: str) -> None:
    assert unpickling(f"def read():\n    return {source}") == {"read"}
    assert not unpickling("np.load(path, allow_pickle=False)")
