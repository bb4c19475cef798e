"""tilewise_recipe.h: a recipe and its binaries as tables of C."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from app.exports.winner import Winner
from kernels.problem import ITEMSIZE
from kernels.sources import READ_SWEEP, source

_OPERANDS: Final = ("a", "b", "c", "workspace")
# CUtensorMapDataType and CUtensorMapSwizzle as cuda.h numbers them.
_ELEMENTS: Final = {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "tfloat32": 11}
_SWIZZLES: Final = {0: 0, 32: 1, 64: 2, 128: 3}
_WORDS_A_LINE: Final = 6


def recipe_header(winner: Winner, manifest: Mapping[str, Any]) -> str:
    """The whole header."""
    lines = [
        "/* Written by Tilewise for one winner: see manifest.json. */",
        "#ifndef TILEWISE_RECIPE_H",
        "#define TILEWISE_RECIPE_H",
        '#include "tilewise_launch.h"',
        "",
        *_figures(manifest),
        "",
        *_binaries(winner),
        *tables(manifest, "tw", with_binaries=True),
        "#endif",
        "",
    ]
    return "\n".join(lines)


def problem_header(manifest: Mapping[str, Any]) -> str:
    """The problem's figures alone, for C++, which does not read tilewise_recipe.h."""
    guard = ["#ifndef TILEWISE_PROBLEM_H", "#define TILEWISE_PROBLEM_H"]
    size = f"#define TW_ELEMENT_BYTES {ITEMSIZE[manifest['problem']['dtype']]}"
    return "\n".join([*guard, *_figures(manifest), size, "#endif", ""])


def sweep_header() -> str:
    """PTX of the reads that keep a GPU busy before a launch that is timed."""
    guard = ["#ifndef TILEWISE_SWEEP_H", "#define TILEWISE_SWEEP_H", "#include <stdint.h>"]
    return "\n".join([*guard, *_words("tw_read_sweep", source(READ_SWEEP).encode() + b"\0"), "#endif", ""])


def tables(manifest: Mapping[str, Any], prefix: str, *, with_binaries: bool) -> list[str]:
    """The tables of a recipe, as the variable `<prefix>_the_recipe`."""
    lines = list[str]()
    for number, launch in enumerate(manifest["launches"]):
        lines += _arguments(launch["args"], f"{prefix}_arguments_{number}")
    needs = [f'    {{"{need["not_negative"]}", "{need["sentence"]}"}},' for need in manifest["needs"]]
    lines += [f"static const tw_need_recipe {prefix}_needs[] = {{", *(needs or ['    {"0", ""},']), "};"]
    lines += [f"static const tw_launch_recipe {prefix}_launches[] = {{"]
    for number, launch in enumerate(manifest["launches"]):
        lines += [f"    {_launch(launch, f'{prefix}_arguments_{number}', with_binaries)},"]
    kind = manifest["problem"]["dtype"]
    kinds = f"{tuple(ITEMSIZE).index(kind)}, {ITEMSIZE[kind]}"
    transposed = ", ".join(str(int(manifest["problem"][name])) for name in ("trans_a", "trans_b"))
    verdict = -1 if manifest["verdict_at"] is None else manifest["verdict_at"]
    return [
        *lines,
        "};",
        f"static const tw_recipe {prefix}_the_recipe = {{",
        f"    {prefix}_needs, {len(manifest['needs'])},",
        f"    {prefix}_launches, {len(manifest['launches'])},",
        f'    "{manifest["workspace_bytes"]}", {manifest["zeroed_bytes"]}, {verdict},',
        f"    {kinds}, {transposed}}};",
    ]


def _launch(launch: Mapping[str, Any], arguments: str, with_binaries: bool) -> str:
    entry = launch["entry"]
    block = ", ".join(map(str, launch["block"][:2]))
    binaries = f"tw_cubin_{entry}, tw_ptx_{entry}" if with_binaries else "NULL, NULL"
    facts = f'"{entry}", "{launch["grid"][0]}", {{{block}}}, {launch["shared_bytes"]}'
    return f"{{{facts}, {arguments}, {len(launch['args'])}, {binaries}}}"


def _arguments(arguments: Iterable[Mapping[str, Any]], name: str) -> list[str]:
    maps, rows = list[str](), list[str]()
    for argument in arguments:
        if "pointer" in argument:
            rows.append(f"    {{{_OPERANDS.index(argument['pointer'])}, NULL, NULL}},")
        elif "i64" in argument:
            rows.append(f'    {{-1, "{argument["i64"]}", NULL}},')
        else:
            rows.append(f"    {{-1, NULL, &{name}_map_{len(maps)}}},")
            maps.append(f"static const tw_map_recipe {name}_map_{len(maps)} = {_map(argument)};")
    return [*maps, f"static const tw_argument_recipe {name}[] = {{", *rows, "};"]


def _map(argument: Mapping[str, Any]) -> str:
    dims, strides = ([f'"{text}"' for text in argument[which]] for which in ("dims", "strides_bytes"))
    parts = [
        str(_OPERANDS.index(argument["tensor_map"])),
        f'"{argument["offset"]}"',
        str(_ELEMENTS[argument["element"]]),
        str(len(dims)),
        f"{{{', '.join(dims)}}}",
        f"{{{', '.join(strides)}}}",
        f"{{{', '.join(map(str, argument['box']))}}}",
        str(_SWIZZLES[argument["swizzle"]]),
    ]
    return f"{{{', '.join(parts)}}}"


def _figures(manifest: Mapping[str, Any]) -> list[str]:
    problem, measured, error = manifest["problem"], manifest["measured"], manifest["error_bound"]
    figures = {
        "TW_M": problem["m"],
        "TW_N": problem["n"],
        "TW_K": problem["k"],
        "TW_BATCH": problem["batch"],
        "TW_SETS": measured["sets"],
        "TW_GRAPHS": int(measured["policy"] == "graph"),
        "TW_MEASURED_MS": measured["median_ms"] or 0,
        "TW_PER_K": error["per_k"],
        "TW_ROUNDING": error["rounding"],
    }
    return [f"#define {name} {value}" for name, value in figures.items()]


def _binaries(winner: Winner) -> list[str]:
    lines = list[str]()
    for binary in winner.binaries:
        lines += _words(f"tw_cubin_{binary.entry}", binary.cubin or b"")
        if binary.ptx is None:
            lines += [f"#define tw_ptx_{binary.entry} NULL"]
        else:
            lines += _words(f"tw_ptx_{binary.entry}", binary.ptx.encode() + b"\0")
    return lines


def _words(name: str, data: bytes) -> list[str]:
    """Bytes as 64-bit words: compilers read these ten times as fast as bytes, and they are aligned."""
    count = -(-len(data) // 8)
    words = [f"0x{word:x}u" for word in struct.unpack(f"<{count}Q", data.ljust(8 * count, b"\0"))] or ["0"]
    rows = [", ".join(words[at : at + _WORDS_A_LINE]) for at in range(0, len(words), _WORDS_A_LINE)]
    return [f"static const uint64_t {name}[] = {{", *(f"    {row}," for row in rows), "};"]
