"""Runs a command under a filter of system calls, by libseccomp: `filtered.py PROFILE COMMAND...`.

PROFILE is JSON as container engines take it: of its rules those for this processor, without conditions on capabilities.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

ACTIONS = {"SCMP_ACT_ALLOW": 0x7FFF0000, "SCMP_ACT_ERRNO": 0x00050000}
OPERATORS = {"SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}
NO_NEW_PRIVILEGES = 38


class Comparison(ctypes.Structure):
    """libseccomp's scmp_arg_cmp."""

    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def action(name: str, errno: int) -> ctypes.c_uint32:
    return ctypes.c_uint32(ACTIONS[name] | (errno if name == "SCMP_ACT_ERRNO" else 0))


def load(profile: dict[str, Any]) -> None:
    """Filter the system calls of this process from now on, and of those that it starts."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    default = action(profile["defaultAction"], profile["defaultErrnoRet"])
    context = ctypes.c_void_p(library.seccomp_init(default))
    for rule in profile["syscalls"]:
        compared = [Comparison(a["index"], OPERATORS[a["op"]], a["value"], a["valueTwo"]) for a in rule.get("args", [])]
        array = (Comparison * len(compared))(*compared)
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number < 0:  # this processor has no such call
                continue
            chosen = action(rule["action"], rule.get("errnoRet", 1))
            added = library.seccomp_rule_add_array(context, chosen, number, len(compared), array)
            assert added == 0, (name, added)
    assert ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    assert library.seccomp_load(context) == 0


if __name__ == "__main__":
    load(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the test's own command
