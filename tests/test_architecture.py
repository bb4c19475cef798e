"""The house stands as drawn: who imports whom, what an import does, and how long a text may be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import pytest

from tests.support.sources import syntax_tree

ROOT = Path(__file__).resolve().parent.parent
MODULES = [
    *sorted(path for path in ROOT.glob("app/**/*.py") if "templates" not in path.parts),
    *sorted(ROOT.glob("kernels/**/*.py")),
    *sorted(ROOT.glob("tilewise/*.py")),
]
KERNELS = [*sorted(ROOT.glob("kernels/**/*.cu")), *sorted(ROOT.glob("kernels/**/*.h"))]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
OWNERS = {
    "cupy": "app/devices/cuda/",
    "cupy_backends": "app/devices/cuda/",
    "pyopencl": "app/devices/opencl/",
    "sqlalchemy": "app/store/",
    "alembic": "app/store/",
    "pydantic_settings": "app/settings.py",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_every_import_contract_is_kept() -> None:
    if find_spec("importlinter") is None:
        pytest.skip("import-linter is not installed: pip install -e '.[dev]' has it, and CI runs it")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_module_of_app_has_a_row_in_the_layers() -> None:
    layers = next(contract for contract in CONTRACTS if contract["type"] == "layers")
    rows = {name.strip() for row in layers["layers"] for name in row.split("|")}
    assert layers["exhaustive"] is True
    assert rows == {path.stem for path in (ROOT / "app").iterdir() if _is_module(path)}


def test_kernels_import_the_standard_library_and_themselves() -> None:
    foreign = [
        f"{_name(path)}: {name}"
        for path in sorted(ROOT.glob("kernels/**/*.py"))
        for name in _imported(path)
        if name not in sys.stdlib_module_names and name != "kernels"
    ]
    assert foreign == []


def test_a_library_is_imported_by_its_owner_alone_even_inside_a_function() -> None:
    strangers = [
        f"{_name(path)}: {name}"
        for path in MODULES
        for name in _imported(path)
        if name in OWNERS and not _name(path).startswith(OWNERS[name])
    ]
    assert strangers == []


@pytest.mark.rotating
def test_the_service_and_the_command_line_load_no_device_library() -> None:
    assert _after_importing("app.main", "app.cli", "[n for n in ('cupy', 'pyopencl') if n in sys.modules]") == "[]"


@pytest.mark.rotating
def test_importing_every_module_opens_nothing_and_configures_nothing() -> None:
    held = {"app.devices.cuda", "app.devices.opencl"}  # their children alone import them
    names = [_module(path) for path in MODULES if not path.stem.startswith("__")]
    free = [name for name in names if not any(name.startswith(owner) for owner in held)]
    opened = "(threading.active_count() == 1, logging.getLogger().handlers, multiprocessing.active_children())"
    assert _after_importing(*free, opened) == "(True, [], [])"


@pytest.mark.parametrize(("paths", "most"), [(MODULES, 400), (KERNELS, 250)], ids=["modules", "kernels"])
def test_no_file_is_long(paths: list[Path], most: int) -> None:
    assert paths
    assert {_name(path): lines for path in paths if (lines := _lines(path)) > most} == {}


def test_no_line_of_a_kernel_is_wide() -> None:
    wide = [f"{_name(path)}:{at}" for path in KERNELS for at, line in _numbered(path) if len(line) > 100]
    assert wide == []


def test_a_line_of_a_kernel_has_one_statement() -> None:
    crowded = [f"{_name(path)}:{at}" for path in KERNELS for at, line in _numbered(path) if _has_several(line)]
    joined = [
        f"{_name(path)}: {one}" for path in KERNELS for one in _comma_statements(path.read_text(encoding="utf-8"))
    ]
    assert (crowded, joined) == ([], [])


@pytest.mark.parametrize(
    ("line", "several"),
    [
        ("a = 1;", False),
        ("a = 1; b = 2;", True),
        ("for (int i = 0; i < n; i++) {", False),
        ("for (int i = 0; i < n; i++) a += i;", True),
        ("for (int i = 0; i < n;", False),
        ("     i++, f(a)) {", False),
        ("     i++) a = 1; b = 2;", True),
        ("if (a) return;", True),
        ("if (a) {", False),
        ("} else if (a) {", False),
        ("} while (a);", False),
        ("else return;", True),
        ("{ a = 1; }", True),
        ('asm("mov %0, 1; mov %1, 2;" : "=r"(a));', False),
        ("a = 1; // then b; and c", False),
        ("#define ONE(a) f(a); g(a)", True),
    ],
)
def test_what_several_statements_are(line: str, several: bool) -> None:
    assert _has_several(line) is several


def test_what_a_comma_joins() -> None:
    assert _comma_statements("a = 1;\nb += f(1, 2);\nc[1, 2] = 3;") == []
    assert _comma_statements("const int a = 1, b = 2;\nconst Pair p = {a, b};\nfor (a = 1, b = 2; a; a++, b++) {") == []
    assert _comma_statements("x;\na = 1, b = 2;") == ["a = 1, b = 2"]
    assert _comma_statements("#define F(a) \\\n    a.b -= 1, \\\n    c = 2\n") == ["a.b -= 1,"]
    assert _comma_statements("if (c) {\n    p->at[3] ^= 1,\n    q = 2;\n}") == ["p->at@ ^= 1, q = 2"]


def test_functions_are_short() -> None:
    lengths = {f"{_name(path)}:{one.lineno} {one.name}": _length(one) for path in MODULES for one in _functions(path)}
    assert {name: length for name, length in lengths.items() if length > 40} == {}
    assert median(lengths.values()) < 10


def test_every_public_name_says_what_it_is() -> None:
    silent = [f"{_name(path)}:{line} {name}" for path in MODULES for line, name in _undocumented(path)]
    assert silent == []


def _after_importing(*names_and_expression: str) -> str:
    """What an expression prints in a fresh interpreter that has imported the modules before it."""
    *names, expression = names_and_expression
    program = f"import sys, threading, logging, multiprocessing, {', '.join(names)}\nprint({expression})"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def _is_module(path: Path) -> bool:
    return path.name not in {"__init__.py", "__pycache__"} and (path.suffix == ".py" or path.is_dir())


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _module(path: Path) -> str:
    return _name(path).removesuffix(".py").replace("/", ".")


def _numbered(path: Path) -> list[tuple[int, str]]:
    return list(enumerate(path.read_text(encoding="utf-8").splitlines(), 1))


def _has_several(line: str) -> bool:
    """Whether a line of a kernel has a statement beside another, or behind its condition."""
    code = _bare(line).strip().removesuffix("\\").strip()
    header = re.match(r"(?:} )?(?:else )?(?:for|if|while|switch) ?\(", code)
    flat = re.sub(r"\(.*|.*\)", "@", _flat(code))  # of a header on several lines only what is around it
    if ";" in flat.removesuffix(";") or re.match(r"(?:} )?else\b(?! if)[^{]*;", flat):
        return True
    return header is not None and not code.startswith("} while") and flat.endswith(";")


def _comma_statements(text: str) -> list[str]:
    """Assignments of a kernel that a comma joins with what follows; a declaration may have several names."""
    code = _flat(re.sub(r"\\\n|#define \w+(?:\([^()]*\))?|#[^d].*", ";", _bare(text)))
    statements = [" ".join(each.split()) for each in re.split(r"[;{}]", re.sub(r"(= |enum )\{[^{}]*\}", "= @", code))]
    return [each for each in statements if re.match(r"\*?[\w.@>-]+ (?:[-+*/^|&]|<<|>>)?= ", each) and "," in each]


def _bare(text: str) -> str:
    """A kernel's text without comments and literals."""
    return re.sub(r'"(?:\\.|[^"\\])*"|//.*', "", text)


def _flat(code: str) -> str:
    """Code with @ for all that stands in parentheses or brackets."""
    while code != (code := re.sub(r"\([^()]*\)|\[[^\[\]]*\]", "@", code)):
        pass
    return code


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _imported(path: Path) -> Iterator[str]:
    """The top-level packages that a file imports, anywhere in it."""
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def _functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(syntax_tree(path)) if isinstance(node, Function))


def _length(function: Function) -> int:
    """Lines from def to the end; the docstring is no length."""
    first = function.body[0]
    docstring = 0 if ast.get_docstring(function) is None else (first.end_lineno or 0) - first.lineno + 1
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def _undocumented(path: Path) -> Iterator[tuple[int, str]]:
    """Public modules, classes, functions and methods of public classes that have no docstring."""
    tree = syntax_tree(path)
    if tree.body and ast.get_docstring(tree) is None:
        yield 1, "the module"
    scopes: list[ast.Module | ast.ClassDef] = [tree]
    while scopes:
        for node in scopes.pop().body:
            if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                if ast.get_docstring(node) is None:
                    yield node.lineno, node.name
                if isinstance(node, ast.ClassDef):
                    scopes.append(node)
