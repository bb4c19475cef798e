"""The manifest of an export: its recipe, its class, what was measured, and what its binaries are, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import ceil
from typing import Any, Final

from app.exports.recipe import Recipe, RecipeLaunch, RecipeMap
from app.exports.traced import text
from app.exports.winner import Winner

FORMAT: Final = "tilewise-export 1"
# Pointers are multiples of so many bytes: the widest load of a kernel, and what a tensor map begins at.
ALIGNMENT: Final = 16
# As the service times: operand sets are together three times the last-level cache, within these bounds.
_CACHE: Final = 64 * 2**20
_PASSED: Final = 3
_MOST_SETS: Final = 1024
_MOST_BYTES: Final = 2**30
# The unit roundoff of C's elements, and what two operands lose that tensor cores cut off at TF32's 11 bits.
_ROUNDING: Final = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_TF32: Final = 2.0**-9


def manifest_of(winner: Winner) -> dict[str, Any]:
    """The members of manifest.json, in the order in which they are read."""
    recipe, problem = winner.recipe, winner.problem
    return {
        "format": FORMAT,
        "kernel": winner.kernel,
        "config": dict(winner.config),
        "problem": asdict(problem),
        "class": {
            "dtype": problem.dtype,
            "precision": problem.precision,
            "trans_a": problem.trans_a,
            "trans_b": problem.trans_b,
            "platform": winner.device.platform,
            "architecture": winner.device.architecture,
            "alignment_bytes": ALIGNMENT,
            "layout": "row-major and contiguous; batches follow each other",
        },
        "needs": [{"not_negative": text(need.tree), "sentence": need.sentence} for need in recipe.needs],
        **_launched(recipe),
        "binaries": {each.entry: _binary(winner, each.entry) for each in winner.binaries},
        "error_bound": _bound(winner),
        "measured": _measured(winner),
        "licence": "Apache-2.0",
    }


def written(manifest: dict[str, Any]) -> bytes:
    """A manifest as its file has it."""
    return (json.dumps(manifest, indent=1, ensure_ascii=True) + "\n").encode()


def _launched(recipe: Recipe) -> dict[str, Any]:
    return {
        "workspace_bytes": text(recipe.workspace_bytes),
        "zeroed_bytes": recipe.zeroed_bytes,
        "verdict_at": recipe.verdict_at,
        "launches": [_launch(each) for each in recipe.launches],
    }


def _launch(launch: RecipeLaunch) -> dict[str, Any]:
    pointers = [{"pointer": name} for name in ("a", "b", "c")]
    sizes = [{"i64": name} for name in ("m", "n", "k")]
    more = [{"pointer": "workspace"}, *({"i64": text(each)} for each in launch.scalars)] if launch.scalars else []
    return {
        "entry": launch.build.entry,
        "grid": [text(launch.grid), 1, 1],
        "block": [*launch.block, 1],
        "shared_bytes": launch.shared_bytes,
        "args": [*pointers, *sizes, *more, *map(_map, launch.maps)],
    }


def _map(found: RecipeMap) -> dict[str, Any]:
    tensor = found.tensor
    return {
        "tensor_map": tensor.operand,
        "offset": text(found.offset),
        "element": tensor.element,
        "dims": list(map(text, found.sizes)),
        "strides_bytes": list(map(text, found.strides)),
        "box": list(tensor.box),
        "swizzle": tensor.swizzle,
    }


def _binary(winner: Winner, entry: str) -> dict[str, Any]:
    found = winner.binary(entry)
    facts: dict[str, Any] = {"source": f"{entry}.{winner.suffix}", "macros": dict(found.build.macros)}
    if found.cubin is not None:
        facts |= {"cubin": f"{entry}.cubin", "sha256": winner.cubin_digests[entry]}
        facts |= {"registers": found.registers, "spilled_bytes": found.spills}
    if found.ptx is not None:
        facts |= {"ptx": f"{entry}.ptx", "ptx_version": found.ptx_version}
    return facts


def _bound(winner: Winner) -> dict[str, float]:
    """What |error| is at most, as a part of |A||B|: so much for each of k, and so much at the end."""
    problem = winner.problem
    ends = _ROUNDING[problem.dtype] + (_TF32 if problem.precision == "tf32" else 0.0)
    return {"per_k": 2.0**-52 if problem.dtype == "float64" else 2.0**-23, "rounding": ends}


def _measured(winner: Winner) -> dict[str, Any]:
    problem = winner.problem
    each = problem.bytes
    cache = winner.device.limits.cache_bytes or _CACHE
    return {
        "match": winner.match,
        "median_ms": winner.median_ms,
        "ci95_ms": winner.ci95_ms,
        "samples": winner.samples,
        "relative_l2": winner.relative_l2,
        "device": winner.device.name,
        "environment": winner.environment,
        "policy": winner.policy,
        "cache_bytes": cache,
        "sets": max(1, min(ceil(_PASSED * cache / each), _MOST_SETS, _MOST_BYTES // each)),
    }
