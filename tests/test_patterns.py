"""No text that a caller sends, or a tool prints, keeps a regular expression busy longer than its length warrants."""

from __future__ import annotations

import ast
import importlib
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]  # the parsed form of a pattern is not public
from re import _parser as parser  # type: ignore[attr-defined]
from time import thread_time
from typing import Any, Final

import pytest
from fastapi import FastAPI

from app.api import router

ROOT: Final = Path(__file__).parents[1]
METHODS: Final = {"search", "match", "fullmatch", "findall", "finditer", "sub", "split"}
LENGTH: Final = 2**16
CATEGORIES: Final = {
    sre.CATEGORY_DIGIT: "0",
    sre.CATEGORY_NOT_DIGIT: "a",
    sre.CATEGORY_SPACE: " ",
    sre.CATEGORY_NOT_SPACE: "a",
    sre.CATEGORY_WORD: "a",
    sre.CATEGORY_NOT_WORD: "-",
}


@dataclass(frozen=True)
class Used:
    """A pattern, where it stands, and how it is applied."""

    where: str
    pattern: re.Pattern[Any]
    method: str


def used() -> Iterator[Used]:
    """Every regular expression of the sources and every pattern of the schemas."""
    for path in sorted([*(ROOT / "app").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")]):
        yield from used_in(path)
    app = FastAPI()
    router.include(app, max_body_bytes=1000)
    for pattern in sorted(set(patterns(app.openapi()))):
        yield Used("a schema", re.compile(pattern), "search")


def used_in(path: Path) -> Iterator[Used]:
    tree, where = ast.parse(path.read_text(encoding="utf-8")), str(path.relative_to(ROOT))
    named: dict[str, ast.Call] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and (call := call_of(node.value, {"compile"})):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            assert isinstance(target, ast.Name), f"{where}:{node.lineno}: a pattern is compiled as a module's constant"
            named[target.id] = call
    each: Any
    for each in ast.walk(tree):
        if call := call_of(each, METHODS):
            yield Used(f"{where}:{call.lineno}", compiled(call.args[0], where), name_of(call))
        elif is_use(each, named):
            call = named[each.value.id]
            yield Used(f"{where}:{call.lineno}", constant(each.value.id, call, where), each.attr)


def is_use(node: Any, named: dict[str, ast.Call]) -> bool:
    """Whether a node is a method of one of the patterns."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    return node.value.id in named and node.attr in METHODS


def call_of(node: Any, names: set[str]) -> ast.Call | None:
    """A node that calls one of re's functions, else None."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    is_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
    return node if is_re and node.func.attr in names else None


def name_of(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    return call.func.attr


def compiled(node: ast.expr, where: str) -> re.Pattern[Any]:
    if isinstance(node, ast.Name):
        return re.compile(getattr(module(where), node.id))
    return re.compile(ast.literal_eval(node))


def constant(name: str, call: ast.Call, where: str) -> re.Pattern[Any]:
    if len(call.args) == 1 and isinstance(call.args[0], ast.Constant):
        return re.compile(call.args[0].value)
    return getattr(module(where), name)  # type: ignore[no-any-return]


def module(where: str) -> Any:
    return importlib.import_module(where.removesuffix(".py").replace("/", "."))


def patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for value in schema.values():
            yield from patterns(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from patterns(value)


def prefixes(parsed: Any, groups: dict[int, str]) -> list[str]:
    """What has been matched after each part of a pattern, one of everything optional included; the last is a match."""
    found = [""]
    for op, value in parsed:
        before = found[-1]
        found += [before + each for each in parts(op, value, groups)]
    return found


def parts(op: Any, value: Any, groups: dict[int, str]) -> list[str]:
    if op in {sre.LITERAL, sre.NOT_LITERAL, sre.IN, sre.ANY}:
        return [next(iter(letters([(op, value)])))]
    if op in {sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT}:
        least = max(value[0], 1)
        once = prefixes(value[2], groups)
        return [once[-1] * (least - 1) + each for each in once]
    if op == sre.SUBPATTERN:
        once = prefixes(value[3], groups)
        groups[value[0] or 0] = once[-1]
        return once
    if op == sre.ATOMIC_GROUP:
        return prefixes(value, groups)
    if op == sre.BRANCH:
        return [each for branch in value[1][::-1] for each in prefixes(branch, groups)]
    return [groups.get(value, "")] if op == sre.GROUPREF else [""]


def letters(parsed: Any) -> set[str]:
    """A letter of every kind that a pattern tells apart."""
    found: set[str] = set()
    for op, value in parsed:
        if op == sre.LITERAL:
            found.add(chr(value))
        elif op == sre.NOT_LITERAL:
            found.add("a" if value != ord("a") else "b")
        elif op == sre.ANY:
            found.add("a")
        elif op == sre.IN:
            found |= members(value)
        elif op == sre.BRANCH:
            found |= {each for branch in value[1] for each in letters(branch)}
        else:
            inner = value if isinstance(value, tuple) else (value,)
            found |= {each for one in inner if isinstance(one, parser.SubPattern) for each in letters(one)}
    return found


def members(items: Any) -> set[str]:
    """Letters of a class; of one that excludes, the first letters that it does not."""
    found = set()
    for op, value in items:
        if op == sre.LITERAL:
            found.add(chr(value))
        elif op == sre.RANGE:
            found.add(chr(value[0]))
        elif op == sre.CATEGORY:
            found.add(CATEGORIES[value])
    if items[0][0] == sre.NEGATE:
        return {each for each in "aA0 -;,=" if each not in found}
    return found


def texts(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """The head, what is repeated behind it, and the tail of a text that such a pattern may find hard."""
    parsed = parser.parse(pattern.pattern, pattern.flags)
    heads: list[str] = list(dict.fromkeys(prefixes(parsed, {})))
    if len(heads) > 12:
        heads = heads[:: len(heads) // 12 + 1] + heads[-1:]
    single = sorted(letters(parsed))[:16]
    whole = [one for one in heads if len(one) > 1]
    rests = [later[len(one) :] for one, later in pairwise(heads) if later.startswith(one)]
    for head in heads:
        for unit in single:
            yield head, unit, "\0"
            yield head, unit, "\n \0"
    for unit in dict.fromkeys([*whole, *rests, *(one + other for one in single for other in single)]):
        if unit:
            yield "", unit, "\0"
            yield "", unit, "\n \0"


def seconds(one: Used, head: str, unit: str, tail: str, length: int) -> float:
    """Processor time for one text."""
    text: Any = (head + unit * (length // len(unit)))[: length - 1] + tail
    if isinstance(one.pattern.pattern, bytes):
        text = text.encode("latin1", "replace")
    started = thread_time()
    if one.method == "sub":
        one.pattern.sub(text[:0], text)
    elif one.method == "finditer":
        list(one.pattern.finditer(text))
    else:
        getattr(one.pattern, one.method)(text)
    return thread_time() - started


@pytest.mark.slow
def test_every_pattern_takes_time_in_proportion_to_its_text() -> None:
    tried, slow = 0, dict[str, str]()
    for one in used():
        for head, unit, tail in texts(one.pattern) if one.where not in slow else ():
            short = seconds(one, head, unit, tail, LENGTH // 32)
            long = seconds(one, head, unit, tail, LENGTH) if short < 0.02 else short * 32**2
            if long > 0.1:
                told = f"{one.method} of {one.pattern.pattern!r} on {head[:20]!r} + n * {unit[:20]!r} + {tail!r}"
                slow[one.where] = f"{told}: about {long:.1f} s for 64 kB"
                break
            tried += 1
    assert tried > 1000
    assert not slow


def test_every_pattern_of_the_sources_is_found() -> None:
    found = {one.where.partition(":")[0] for one in used()}
    told = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "app").rglob("*.py")
        if re.search(r"\bre\.(compile|search|match|fullmatch|findall|finditer|sub|split)\(", path.read_text())
    }
    assert told <= found


HARD: Final = r"""
import sys
from itertools import product
from starlette.requests import Request
from app.api.body.dispatch import answer_media, media_of
from app.api.body.multipart import boundary_of
from app.api.negotiation import listed
from app.api.inference.compression import answer_coding
from app.api.negotiation import preference
from app.api.params import parse_query
from app.api.idempotency import key_of
from app.api.schemas import ProductQuery
from app.errors import TilewiseError

readers = {
    "prefer": (preference,),
    "accept": (lambda request: answer_media(listed(request, "accept"), "application/json"),),
    "accept-encoding": (answer_coding,),
    "content-type": (media_of, lambda request: boundary_of(request.headers["content-type"])),
    "idempotency-key": (key_of,),
    "query": (lambda request: parse_query(ProductQuery, request.scope["query_string"]),),
}
heads = ["", "a", "a=", 'a="', "a;b=", 'a;b="', "a;q=0.", "multipart/form-data;boundary="]
units = [*" ,;=\"\\a%&", "\t", "a,", "a;", "a=", ";a=", ",;", '",', '\\"', "%4", "a&", "a=1&", "1."]
for field, length, head, unit, tail in product(readers, (900, 65_000), heads, units, ("", "!", '"')):
    text = ((head + unit * length)[:length] + tail).encode()
    request = Request({"type": "http", "headers": [(field.encode(), text)], "query_string": text})
    for reader in readers[field]:
        try:
            reader(request)
        except TilewiseError:
            pass
print("read")
"""


@pytest.mark.slow
def test_a_head_of_64_kb_is_read_in_little_processor_time() -> None:
    """Six thousand texts in 40 s of processor time: what takes the square of their length would take hours."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (40, 40))

    done = subprocess.run(
        [sys.executable, "-c", HARD],
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.stdout, done.returncode) == ("read\n", 0), done.stderr
