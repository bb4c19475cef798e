"""A service starts only on folders that strangers cannot put anything into."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from app.errors import StartRefused
from app.main import opened
from app.settings import Settings
from app.store.folders import check_private, make_folder

STRANGER = 54321
ROOT_ALONE = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes what belongs to others")


def test_a_folder_of_ones_own_is_private(tmp_path: Path) -> None:
    make_folder(tmp_path / "data")
    check_private(tmp_path / "data")
    (tmp_path / "data").chmod(0o775)  # the group is ours
    check_private(tmp_path / "data")


@pytest.mark.parametrize("name", ["data_dir", "cache_dir"])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    settings = Settings(devices="none", data_dir=tmp_path / "data").model_copy(update={name: tmp_path / "open"})
    with pytest.raises(StartRefused, match="others may write"), opened(settings, "a test"):
        pass


@ROOT_ALONE
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "his").mkdir()
    os.chown(tmp_path / "his", STRANGER, STRANGER)
    with (
        pytest.raises(StartRefused, match="belongs to another user"),
        opened(Settings(devices="none", data_dir=tmp_path / "his"), "a test"),
    ):
        pass


@ROOT_ALONE
def test_a_folder_that_a_group_of_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    os.chown(tmp_path / "shared", -1, STRANGER)
    (tmp_path / "shared").chmod(stat.S_IRWXU | stat.S_IRWXG)
    with pytest.raises(PermissionError, match="others may write"):
        check_private(tmp_path / "shared")
