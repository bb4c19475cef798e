"""README says what is so: its tables come from the committed JSON, its links and commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_generated_tables_are_what_the_committed_json_says() -> None:
    command = [sys.executable, "benchmarks/readme.py", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0, "run python benchmarks/readme.py"


def test_every_link_into_the_project_leads_to_a_file() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_command_of_the_readme_is_a_command_of_the_program() -> None:
    used = set(re.findall(r"^tilewise (\w+)", README, re.MULTILINE))
    result = subprocess.run([sys.executable, "-m", "app.cli", "--help"], capture_output=True, text=True, check=True)
    assert used
    assert [name for name in sorted(used) if name not in result.stdout] == []
