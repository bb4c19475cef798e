"""A reader finds things: by a file's name, in a folder that can be seen whole, under a name that has one meaning."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from app.settings import Settings
from kernels import CATALOGUE
from tests.support.sources import syntax_tree

ROOT = Path(__file__).resolve().parent.parent
MODULES = [path for folder in ("app", "kernels", "tilewise") for path in sorted(ROOT.glob(f"{folder}/**/*.py"))]
MODULES = [path for path in MODULES if "templates" not in path.parts]  # files of exports, which run elsewhere
MOST_FILES = 16
# Ten questions put to the tree alone: the file that answers each is found by its name.
QUESTIONS = {
    "Which file answers GET /limits?": "app/api/routes/limits.py",
    "Where is the maximum size of a body enforced?": "app/api/body/size_limit.py",
    "Where is a trial compiled, verified and timed?": "app/worker/measuring/trial.py",
    "What runs in the worker when a product is made?": "app/worker/serving/product.py",
    "Where do tune jobs wait?": "app/services/tuning/job_queue.py",
    "Which kernel makes a product?": "app/services/matmul/kernel_choice.py",
    "Where are small products batched?": "app/services/matmul/batching.py",
    "Where is the Gaussian process?": "app/tuning/search/posterior.py",
    "Who may use a device now?": "app/devices/lease.py",
    "Where is NVRTC called?": "app/devices/cuda/nvrtc.py",
    "Where does a socket's body land in the slab?": "app/server/protocol.py",
    "What does `tilewise doctor` do?": "app/cli/commands/doctor.py",
}
# What once had these names, by kind; a reader of the history finds here that they are gone.
RETIRED = {
    title: frozenset(words.split())
    for title, words in re.findall(
        r"\[(\w+)\]\n([^\[]*)", (ROOT / "tests" / "data" / "retired_names.txt").read_text(encoding="utf-8")
    )
}
# Private names of others' that tests use as these mean them: IPython's, ctypes's, the process's, CuPy's, llvmlite's of
# pocl_compiler, and of Triton's client.
OF_OTHERS = {"_repr_html_", "_repr_svg_", "_obj", "_exit", "_NVRTCProgram", "_target", "_text", "_pointer", "_shm_key"}
TESTS = [path for path in sorted(ROOT.glob("tests/**/*.py")) if path != Path(__file__)]
# Where tests wait; and a worker's own function, which has no test to fail.
WAITING = {"tests/support/waiting.py", "tests/support/devices/child_functions.py"}
# A value of the domain, and the model in which HTTP tells it: one concept, which the module's name tells apart.
TOLD = {"app/api/responses.py", "app/api/schemas.py", "app/api/trials_schema.py"}


def classes() -> dict[str, list[str]]:
    """The modules of every class by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in syntax_tree(path).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(ROOT).as_posix())
    return found


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_file_that_answers_is_there(question: str) -> None:
    assert (ROOT / QUESTIONS[question]).is_file()


def test_no_folder_has_more_files_than_can_be_seen_at_once() -> None:
    counts = {path.parent: len([*path.parent.glob("*.py")]) for path in MODULES}
    full = {folder.relative_to(ROOT).as_posix(): count for folder, count in counts.items() if count > MOST_FILES}
    assert {name: count for name, count in full.items() if not name.startswith("tilewise")} == {}


def test_a_class_name_has_one_meaning_in_the_service() -> None:
    several = {}
    for name, modules in classes().items():
        own = [module for module in modules if not module.startswith("tilewise/")]
        told = [module for module in own if module in TOLD or module.startswith("app/api/routes/")]
        if len(own) - len(told) > 1 or len(told) > 1:
            several[name] = own
    assert several == {}


def test_no_class_has_a_retired_name() -> None:
    assert {name: modules for name, modules in classes().items() if name.lstrip("_") in RETIRED["definitions"]} == {}


def test_no_function_has_a_retired_name() -> None:
    found = [
        (path.relative_to(ROOT).as_posix(), node.name)
        for path in MODULES
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.lstrip("_") in RETIRED["definitions"]
    ]
    assert found == []


def stored(node: ast.Name | ast.Attribute | ast.arg) -> str:
    """The name that a node gives something: a variable, a field of a record or of JSON, an attribute, an argument."""
    if isinstance(node, ast.arg):
        return node.arg
    name = node.id if isinstance(node, ast.Name) else node.attr
    return name if isinstance(node.ctx, ast.Store) else ""


def test_no_variable_field_or_argument_has_a_retired_name() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
        for path in MODULES
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.Name | ast.Attribute | ast.arg)
        and (name := stored(node)).lstrip("_") in RETIRED["variables"]
    ]
    assert found == []


def test_no_module_has_a_retired_name() -> None:
    tests = ROOT.glob("tests/**/test_*.py")
    stems = {path: path.stem.removeprefix("test_").lstrip("_") for path in (*MODULES, *tests)}
    assert [str(path.relative_to(ROOT)) for path, stem in stems.items() if stem in RETIRED["modules"]] == []


def test_no_setting_or_kernel_parameter_has_a_retired_name() -> None:
    variables = {f"TILEWISE_{name.upper()}" for name in Settings.model_fields}
    parameters = {name for kernel in CATALOGUE.values() for name in kernel.space.parameters}
    assert variables & RETIRED["settings"] == parameters & RETIRED["parameters"] == set()


def test_no_constructor_sets_an_attribute_twice() -> None:
    twice = []
    for path in MODULES:
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                targets = [
                    ast.unparse(target)
                    for one in node.body
                    if isinstance(one, (ast.Assign, ast.AnnAssign))
                    for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
                ]
                twice += [f"{path.relative_to(ROOT)}: {name}" for name in set(targets) if targets.count(name) > 1]
    assert twice == []


def calls(node: ast.AST) -> set[str]:
    """What is called somewhere in a statement, as it is written."""
    return {ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)}


def polls(loop: ast.While) -> bool:
    """Whether a loop does nothing but sleep until something is so, or until it is too late for that."""
    sleeps = any(isinstance(each, ast.Expr) and calls(each) & {"time.sleep", "sleep"} for each in loop.body)
    too_late = any(isinstance(each, ast.Assert) and "monotonic" in ast.unparse(each) for each in loop.body)
    return sleeps and (too_late or len(loop.body) == 1)


def test_tests_wait_in_one_function() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in TESTS
        if path.relative_to(ROOT).as_posix() not in WAITING
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.While) and polls(node)
    }
    assert not found, "until() of tests/support/waiting.py says what it waited for"


def test_tests_ask_for_what_is_public() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.attr}"
        for path in TESTS
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.Attribute)
        and re.match(r"_[a-zA-Z]", node.attr)
        and ast.unparse(node.value) not in {"self", "cls", "super()"}
        and node.attr not in OF_OTHERS
    }
    assert not found, "a small property gives it"
