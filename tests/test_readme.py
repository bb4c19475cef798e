"""README and docs/ say what is so: their tables come from the committed JSON and the code, links lead somewhere."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "docs" / "generate"))

from reference import tables

from app.errors.codes import error_codes
from benchmarks.report import readme
from benchmarks.report.readme import CHART, blocks, generated, pages
from benchmarks.report.readme import TABLES as FIGURES
from kernels import CATALOGUE

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = ("-m benchmarks.report.readme", "docs/generate/reference.py")
FENCE = re.compile(r"^(?P<before>[^\n]*)\n```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
# A block that a reader may paste is run by tests, or says why not.
RUN = re.compile(r"<!-- (tested|test command|not run: .+) -->")


@pytest.mark.parametrize("script", SCRIPTS)
def test_generated_blocks_are_up_to_date(script: str) -> None:
    ran = subprocess.run(
        [sys.executable, *script.split(), "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, f"run python {script}, which changes:\n{ran.stderr}"


def test_every_table_is_on_a_page_and_every_block_has_a_table() -> None:
    assert pages() == PAGES
    shown = {name for path in PAGES for name in blocks(path.read_text(encoding="utf-8"))}
    assert shown == {*FIGURES, *tables()}
    assert CHART.relative_to(ROOT).as_posix() in README


def test_a_block_that_differs_from_its_table_is_replaced() -> None:
    text = "before\n<!-- generated: tuner -->\n| 1 |\n<!-- end -->\n<!-- generated: other -->\n<!-- end -->\n"
    known = {"tuner": lambda: "| 2 |"}
    assert generated(text, known) == text.replace("| 1 |", "| 2 |")


def test_a_check_names_what_differs_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    same, other = tmp_path / "same.md", tmp_path / "other.svg"
    for path in (same, other):
        path.write_text("as it is", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        readme.fill(iter([(same, "as it is"), (other, "as it should be")]), check=True)
    assert ended.value.code == "other.svg"
    assert other.read_text(encoding="utf-8") == "as it is"
    readme.fill(iter([(other, "as it should be")]), check=False)
    assert other.read_text(encoding="utf-8") == "as it should be"


def test_readme_is_a_front_page() -> None:
    lines = README.splitlines()
    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 120] == []
    tables = re.findall(r"(?:^\|.*\n)+", README, re.MULTILINE)
    assert max(table.count("\n") - 2 for table in tables) <= 8


def test_links_lead_to_files_and_headings() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}" for page in PAGES for link in _links(page) if not _is_there(page, link)
    ]
    assert broken == []


def test_pages_do_not_link_out_of_docs() -> None:
    """A page of the site has nothing but the site around it."""
    docs = (ROOT / "docs").resolve()
    for page in PAGES[1:]:
        for link in _links(page):
            assert (page.parent / link.partition("#")[0]).resolve().is_relative_to(docs), f"{page}: {link}"


def test_blocks_to_paste_are_run_or_say_why_not() -> None:
    found = [one for page in PAGES for one in FENCE.finditer(page.read_text(encoding="utf-8"))]
    pasted = [one for one in found if one["language"] in {"sh", "python"}]
    assert len(pasted) > 20
    assert [one["text"] for one in pasted if not RUN.fullmatch(one["before"])] == []


def test_every_error_code_has_a_page() -> None:
    folder = ROOT / "docs" / "reference" / "errors"
    assert {path.stem for path in folder.glob("*.md")} == {*error_codes(), "index"}
    for code in error_codes():
        text = (folder / f"{code}.md").read_text(encoding="utf-8")
        assert text.startswith(f"# {code}\n"), code
        assert len(text.partition("## What to do\n")[2].split()) >= 5, code


def test_codes_that_the_service_writes_itself_have_a_page() -> None:
    written = set()
    for path in (ROOT / "app").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        written |= set(re.findall(r"problem\(\s*\w+,\s*\"(\w+)\"", text))
        for codes in re.findall(r"^_CODES\b[^{]*\{(\s*400:[^}]*)\}", text, re.MULTILINE):
            written |= set(re.findall(r"\"(\w+)\"", codes))
    assert {"not_ready", "internal_error", "request_timeout"} <= written
    assert written <= set(error_codes())


def test_the_glossary_names_files_and_what_they_define_in_few_words() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"^- \*\*(.+)\*\*: (.+(?:\n  .+)*)", text, re.MULTILINE)
    assert len(entries) > 20
    for name, meaning in entries:
        files = re.findall(r"`([\w/]+\.\w+)`", meaning)
        assert files, name
        assert [file for file in files if not (ROOT / file).is_file()] == [], name
        assert len(meaning.split()) <= 60, name
        assert [place for place in _places(meaning) if not _is_defined(*place)] == [], name
        assert len(_places(meaning)) == sum(file.endswith(".py") for file in files), name
    names = [name.lower() for name, _ in entries]
    assert names == sorted(names)


def test_commands_of_the_pages_are_commands_of_the_program() -> None:
    used = {name for page in PAGES for name in re.findall(r"^tilewise (\w+)", page.read_text("utf-8"), re.MULTILINE)}
    ran = subprocess.run([sys.executable, "-m", "app.cli", "--help"], capture_output=True, text=True, check=True)
    assert used
    assert [name for name in sorted(used) if name not in ran.stdout] == []


def _places(meaning: str) -> list[tuple[str, str]]:
    """The modules of an entry, each with the class or function that it names there."""
    return re.findall(r"`([\w/]+\.py)`\s+\(`(\w+)`\)", meaning)


def _is_defined(file: str, name: str) -> bool:
    """Whether a module's top level has a class, a function or an alias of this name."""
    body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    defined = {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    single = [node.target for node in body if isinstance(node, ast.AnnAssign)]
    several = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    return name in defined | {target.id for target in (*single, *several) if isinstance(target, ast.Name)}


def test_the_picture_has_every_kernel_that_was_chosen_for_a_measured_shape() -> None:
    chosen = {"naive", "tiled"}
    for path in (ROOT / "benchmarks" / "results" / "kernels").glob("*-h200*.json"):
        for line in json.loads(path.read_text(encoding="utf-8")).get("shapes", ()):
            figures = line.get("figures", ()) if isinstance(line, dict) else ()
            chosen |= {figure["kernel"] for figure in figures if figure["name"] == "tuned"}
    assert set(re.findall(r">(\w+)</text>", CHART.read_text(encoding="utf-8"))) & set(CATALOGUE) == chosen


def _links(page: Path) -> list[str]:
    """The links of a page to other pages, and to its own headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\((?!https?:)([^)\s]+)\)", text)


def _is_there(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in _anchors(target))


@cache
def _anchors(page: Path) -> set[str]:
    """What links may call the headings of a page, by Markdown's rules."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading.strip()).lower().replace(" ", "-") for heading in headings}
