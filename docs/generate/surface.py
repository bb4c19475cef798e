"""Write the project's surface as one JSON: what a move of code leaves equal, but for what it means to change.

    python docs/generate/surface.py > before.json     # then move, and compare

Sections: the OpenAPI document, each command's help, the digest and the parameters of each kernel, the settings, the
tables' DDL, the client's public names, and the files that the wheel is made of.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from sqlalchemy.schema import CreateTable

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


def commands() -> dict[str, str]:
    """The help of each command, 100 columns wide."""
    from app.cli.application import COMMANDS  # noqa: PLC0415 - from this checkout, not from an installed one

    env = {**os.environ, "COLUMNS": "100", "TERM": "dumb", "PYTHONPATH": str(ROOT)}
    told = {}
    for name in COMMANDS:
        words = [sys.executable, "-m", "app.cli", name, "--help"]
        told[name] = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return told


def surface() -> dict[str, Any]:
    """Every section."""
    import tilewise  # noqa: PLC0415 - from this checkout
    from app.main import create_app  # noqa: PLC0415
    from app.settings import Settings  # noqa: PLC0415
    from app.store.tables import Base  # noqa: PLC0415
    from kernels import CATALOGUE  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        document = create_app(Settings(data_dir=Path(folder))).openapi()
    listing = ["git", "ls-files", "app", "kernels", "migrations", "tilewise"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        "openapi": document,
        "commands": commands(),
        "kernels": {name: [kernel.digest, dict(kernel.space.parameters)] for name, kernel in CATALOGUE.items()},
        "settings": Settings.model_json_schema()["properties"],
        "ddl": [str(CreateTable(table)) for table in Base.metadata.sorted_tables],
        "client": sorted(tilewise.__all__),
        "files": listed.stdout.split(),
    }


if __name__ == "__main__":
    json.dump(surface(), sys.stdout, indent=1, sort_keys=True, default=str)
