"""Helion's remote cache on a service: its own caches put and find winners by tilewise.helion, with no GPU.

Helion binds a kernel on a processor for Pallas alone, and its caches ask for no more: nothing is launched here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.client.shared_service import Served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        None in map(find_spec, ("helion", "torch", "jax")), reason="there is no Helion: pip install helion torch jax"
    ),
]

PROGRAM = '''
import json
import sys

import helion
import helion.language as hl
import torch
from helion._utils import counters
from helion.autotuner import local_cache, remote_cache
from helion.autotuner.base_search import BaseSearch
from tilewise.errors import UnreachableError


class First(BaseSearch):
    """A search that takes the first config, and counts how often it is asked."""

    asked = 0

    def autotune(self, *, skip_cache=False):
        First.asked += 1
        return self.config_spec.default_config()


@helion.kernel()
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] + y[tile]
    return out


x = torch.ones(int(sys.argv[2]))
kind = getattr(remote_cache, sys.argv[1], None) or getattr(local_cache, sys.argv[1])
cache = kind(First(add.bind((x, x)), (x, x)))
config = cache.autotune()
backend = remote_cache._load_remote_backend()
try:
    listed = [local_cache.parse_cache_entry(each) for each in backend.list(5)]
except UnreachableError:
    listed = []
told = {"asked": First.asked, **{name: counters["autotune"][name] for name in ("cache_hit", "cache_miss")}}
told |= {"config": dict(config), "listed": [bool(each.hardware and each.config_spec_hash) for each in listed]}
print(json.dumps(told))
'''


REMOTE = ["RemoteAutotuneCache", "StrictRemoteAutotuneCache"]


def told(url: str, folder: Path, namespace: str, cache: str = "RemoteAutotuneCache", size: int = 16) -> dict[str, Any]:
    """What a process with its own local cache tells."""
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(PROGRAM)
    own = {"HELION_BACKEND": "pallas", "HELION_PALLAS_INTERPRET": "1", "HELION_CACHE_DIR": str(folder)}
    own |= {"HELION_REMOTE_CACHE_BACKEND": "tilewise.helion.TilewiseCache", "TILEWISE_URL": url}
    own |= {"TILEWISE_HELION_NAMESPACE": namespace}
    command = [sys.executable, "program.py", cache, str(size)]
    ran = subprocess.run(command, cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("cache", REMOTE)
def test_a_second_process_of_helion_hits(service: Served, tmp_path: Path, cache: str) -> None:
    first = told(service.url, tmp_path / "one", cache, cache)
    assert (first["asked"], first["cache_hit"], first["cache_miss"], first["listed"]) == (1, 0, 1, [True])
    second = told(service.url, tmp_path / "two", cache, cache)
    assert (second["asked"], second["cache_hit"], second["cache_miss"]) == (0, 1, 0)
    assert second["config"] == first["config"]


def test_what_helion_found_remotely_it_keeps_and_other_shapes_are_misses(service: Served, tmp_path: Path) -> None:
    told(service.url, tmp_path / "one", "kept")
    told(service.url, tmp_path / "two", "kept")
    kept = told(service.url, tmp_path / "two", "kept", "LocalAutotuneCache")
    assert (kept["asked"], kept["cache_hit"]) == (0, 1)
    other = told(service.url, tmp_path / "two", "kept", size=4096)
    assert (other["asked"], other["cache_miss"], other["listed"]) == (1, 1, [True, True])


@pytest.mark.parametrize("cache", REMOTE)
def test_without_the_service_helion_keeps_to_its_own_cache(tmp_path: Path, cache: str) -> None:
    nowhere = "http://127.0.0.1:9"
    first = told(nowhere, tmp_path / "one", "none", cache)
    assert (first["asked"], first["cache_miss"], first["listed"]) == (1, 1, [])
    second = told(nowhere, tmp_path / "one", "none", cache)
    assert (second["asked"], second["cache_hit"], second["cache_miss"]) == (0, 1, 0)
    assert second["config"] == first["config"]
