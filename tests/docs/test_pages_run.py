"""The blocks of the pages that a reader would paste run, in order, each page in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from app.cli.spawn import started
from tilewise import Client

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
TESTED = re.compile(r"^<!-- tested -->\n```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if TESTED.search(path.read_text(encoding="utf-8"))
]


@pytest.fixture(scope="module")
def addresses() -> Iterator[Mapping[str, str]]:
    """What the pages call the service, and where it is here."""
    with TemporaryDirectory(prefix="tw") as folder:  # a Unix socket's path is short
        path = Path(folder) / "tilewise.sock"
        with started(Path(folder) / "data", devices="opencl", uds=str(path)) as running:
            with Client(running.url) as client:
                assert client.ready(wait=90), running.log.read_text()
            own = running.url.removeprefix("http://")
            yield {"localhost:8000": own, "127.0.0.1:8000": own, "/run/tilewise.sock": str(path)}


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_blocks_run_as_pasted(page: str, addresses: Mapping[str, str], tmp_path: Path) -> None:
    found = TESTED.findall((ROOT / page).read_text(encoding="utf-8"))
    # A reader has one shell and one Python open from a page's first block to its last.
    for language, command in (("sh", ["bash", "-euo", "pipefail", "-s"]), ("python", [sys.executable, "-"])):
        text = "\n".join(block for kind, block in found if kind == language)
        for name, address in addresses.items():
            text = text.replace(name, address)
        ran = subprocess.run(
            command,
            cwd=tmp_path,
            env=_environment(addresses["localhost:8000"], tmp_path),
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{text}\n{ran.stdout}\n{ran.stderr}"


def _environment(address: str, folder: Path) -> dict[str, str]:
    """A shell that finds `tilewise` and `python3`, as in an active environment, and in which curl fails of an error."""
    (folder / ".curlrc").write_text("fail-with-body\nshow-error\n", encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {"PATH": path, "TILEWISE_URL": f"http://{address}", "CURL_HOME": str(folder)}
