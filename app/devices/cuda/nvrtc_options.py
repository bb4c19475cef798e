"""NVRTC's options, beside a build's macros."""

from __future__ import annotations

from typing import Final

_OPTIONS: Final = ("-std=c++17",)
_REPORT: Final = "--ptxas-options=-v"  # changes what is said, not what is made


def target(architecture: str) -> str:
    """The target architecture, with the suffix of its specific instructions if it has any (PTX ISA, "Target")."""
    return architecture + "a" if architecture in {"sm_90", "sm_100", "sm_103"} else architecture


def options(architecture: str) -> tuple[str, ...]:
    """All options for an architecture such as sm_90."""
    return f"-arch={target(architecture)}", *_OPTIONS, _REPORT


def signed(compiler: str, architecture: str) -> str:
    """The compiler's name and its options, as part of a cache key."""
    return " ".join([compiler, *(option for option in options(architecture) if option != _REPORT)])
