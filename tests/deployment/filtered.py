"""Runs a command under a filter of system calls, by libseccomp: `filtered.py POLICY COMMAND...`.

POLICY is JSON: `errno` for what is not allowed, `allowed` names, and optionally `masked`: names that are allowed where
an argument, masked, has a value, as container engines write it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
MASKED_EQUAL = 7
NO_NEW_PRIVILEGES = 38


class Comparison(ctypes.Structure):
    """libseccomp's scmp_arg_cmp."""

    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def load(policy: dict[str, Any]) -> None:
    """Filter the system calls of this process from now on, and of those that it starts."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(ERRNO | policy["errno"])))
    rules: list[tuple[str, list[Comparison]]] = [(name, []) for name in policy["allowed"]]
    for name, index, mask, value in policy.get("masked", []):
        rules.append((name, [Comparison(index, MASKED_EQUAL, mask, value)]))
    for name, compared in rules:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # negative: this machine's processor has no such call
            array = (Comparison * len(compared))(*compared)
            added = library.seccomp_rule_add_array(context, ctypes.c_uint32(ALLOW), number, len(compared), array)
            assert added == 0, (name, added)
    assert ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    assert library.seccomp_load(context) == 0


if __name__ == "__main__":
    load(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the test's own command
