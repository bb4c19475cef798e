"""Floating-point numbers as PTX's registers hold them: what their bits mean, and how numbers are rounded to them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tests.ptx_interpreter.program import TYPES, Array

HALVES: Final = {"f16x2": "f16", "bf16x2": "bf16"}
FLOATS: Final = frozenset({"f16", "bf16", "tf32", "f32", "f64"})
DROPPED: Final = 0x1FFF  # what tensor cores leave out of a float32 that they take as a tf32


def numbers(bits: Array, kind: str) -> Array:
    """What is held as a floating-point type: float32, or float64 where that is what it is."""
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    if kind == "bf16":
        return (bits.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind == "tf32":
        return (bits.view(np.uint32) & np.uint32(0xFFFFFFFF ^ DROPPED)).view(np.float32)
    return bits.view(TYPES[kind])


def rounded(values: Array, kind: str, mode: str = "rn") -> Array:
    """Numbers of float32 or float64 rounded: to nearest even (rn), nearest away (rna), to zero (rz), down or up."""
    if kind == "f64":
        return values.astype(np.float64)
    if kind == "f32":
        return values if values.dtype == np.float32 else _toward(values, values.astype(np.float32), mode)
    if kind == "f16":
        return _toward(values, values.astype(np.float16), mode)
    return _cut(_odd(values).view(np.uint32), 16 if kind == "bf16" else 13, mode, np.isnan(values), kind)


def _toward(values: Array, near: Array, mode: str) -> Array:
    """The nearest number, or its neighbour where that lies on the wrong side."""
    if mode == "rn":
        return near
    back = near.astype(np.float64)
    wrong = {"rz": np.abs(back) > np.abs(values), "rm": back > values, "rp": back < values}[mode]
    towards: Any = {"rz": 0.0, "rm": -np.inf, "rp": np.inf}[mode]
    return np.where(wrong, np.nextafter(near, near.dtype.type(towards)), near)


def _odd(values: Array) -> Array:
    """Float32 whose last bit says that more was cut off, so that rounding again is rounding once."""
    if values.dtype == np.float32:
        return values.copy()
    cut = _toward(values, values.astype(np.float32), "rz")
    found: Array = cut.view(np.uint32) | (cut.astype(np.float64) != values).astype(np.uint32)
    return found.view(np.float32)


def _cut(bits: Array, dropped: int, mode: str, nans: Array, kind: str) -> Array:
    """Float32's bits without the last ones: carries run on into the exponent, and to infinity."""
    half, one = np.uint32(1 << (dropped - 1)), np.uint32(1 << dropped)
    if mode == "rn":
        bits = bits + (half - np.uint32(1)) + ((bits >> np.uint32(dropped)) & np.uint32(1))
    elif mode == "rna":
        bits = bits + half
    else:
        assert mode == "rz", mode
    bits = bits & ~(one - np.uint32(1))
    if kind == "tf32":
        return np.where(nans, np.uint32(0x7FFFFFFF), bits)
    return (np.where(nans, np.uint32(0x7FFF0000), bits) >> np.uint32(16)).astype(np.uint16)


def whole(values: Array, kind: str, mode: str) -> Array:
    """Numbers as integers: rounded as said, the nearest that there is where they are outside, 0 for NaN."""
    turned = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](values.astype(np.float64))
    info = np.iinfo(TYPES[kind])
    inside = np.where(np.isnan(turned), 0.0, np.clip(turned, float(info.min), float(info.max)))
    above = inside >= float(info.max)
    return np.where(above, info.max, np.where(above, 0, inside).astype(TYPES[kind])).astype(TYPES[kind])
