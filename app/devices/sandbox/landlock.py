"""Landlock by its system calls: files, TCP and other processes are out of reach but for what rules allow.

It holds for the thread that calls and for what that starts: it is called before there is another thread. Sources:
Linux's include/uapi/linux/landlock.h and Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from typing import Final

# The system calls' numbers, which are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
OLDEST: Final = 2  # before it no file can be renamed into another folder, as PoCL does in its cache
NETWORK, DEVICES, SCOPES = 4, 5, 6  # from which version on it restricts TCP, ioctl on devices, signals
_TRUNCATING: Final = 3
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK, _REFER, _TRUNCATE, _IOCTL = 1 << 6, 1 << 11, 1 << 13, 1 << 14, 1 << 15
_READING: Final = EXECUTE | READ_FILE | READ_DIR
_OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL  # the other rights are those of folders
_TCP: Final = 0b11  # bind and connect
_SCOPES: Final = 0b11  # abstract Unix sockets, signals
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """Landlock's version here; 0: there is none, or it is refused."""
    return max(0, int(_LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)))


def restrict(number: int, read: Iterable[str], write: Iterable[str], devices: Iterable[str], *, alone: bool) -> None:
    """Leave this process what is below the paths given, to read and run, to write too, or as devices too; no TCP.

    Folders can be listed everywhere: hwloc, which PoCL asks of the processor's cores, opens the root. `number` is the
    version whose rights are taken; `alone` forbids signals and abstract sockets to others. Paths that are not there are
    left out. The process must have given up privileges (PR_SET_NO_NEW_PRIVS). Raises OSError.
    """
    handled = _rights(number)
    ruleset = _ruleset(number, handled, alone=alone)
    try:
        _allow(ruleset, "/", READ_DIR)
        for path in read:
            _allow(ruleset, path, handled & _READING)
        for path in write:
            _allow(ruleset, path, handled & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL))
        for path in devices:
            _allow(ruleset, path, handled & ~(_MAKE_CHAR | _MAKE_BLOCK))
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _rights(number: int) -> int:
    """All rights to files that a version knows: what is not known cannot be restricted."""
    rights = _REFER * 2 - 1
    rights |= _TRUNCATE if number >= _TRUNCATING else 0
    return rights | (_IOCTL if number >= DEVICES else 0)


def _ruleset(number: int, handled: int, *, alone: bool) -> int:
    fields = [handled, *([_TCP] if number >= NETWORK else []), *([_SCOPES * alone] if number >= SCOPES else [])]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    return _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no rule
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)


def _call(number: int, *arguments: object) -> int:
    result = int(_LIBC.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
