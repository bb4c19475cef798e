"""A seccomp filter in BPF: system calls that no worker has a use for fail, whatever runs in it.

Sources: Linux's include/uapi/linux/seccomp.h, filter.h and audit.h; the numbers are x86-64's.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable
from typing import Final

_SECCOMP: Final = 317
_FILTER, _ACTION_AVAILABLE = 1, 2
_ALL_THREADS, _WITHOUT_SPECULATION_LIMITS = 1, 4  # without the second, older kernels slow down what the CPU computes
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_ARCHITECTURE: Final = 0xC000003E  # AUDIT_ARCH_X86_64
_X32: Final = 0x40000000  # numbers from here on are of another calling convention
_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24  # offsets in struct seccomp_data; of the arguments the lower halves
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF's instructions
_IOCTL, _SOCKET, _CLONE, _CLONE3 = 16, 41, 56, 435
_TERMINAL_INPUT: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into the operator's terminal
_NAMESPACES: Final = 0x7E020000  # clone's flags for new ones
_REFUSED: Final = {
    "tracing": (101, 298, 310, 311, 312, 438),  # ptrace, perf_event_open, process_vm_*, kcmp, pidfd_getfd
    "mounts": (155, 161, 165, 166, 428, 429, 430, 431, 432, 433, 442, 467),
    "namespaces": (272, 308),  # unshare, setns
    "the kernel": (103, 163, 167, 168, 169, 172, 173, 175, 176, 179, 246, 313, 320, 321, 323, 443),
    "the host's names and clock": (164, 170, 171, 227, 305),
    "keys": (248, 249, 250),
    "files by handle, and their watch": (300, 304),
    "io_uring, which no filter sees into": (425, 426, 427),
}
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def is_available() -> bool:
    """Whether filters can be installed here, and are written for this processor."""
    action = ctypes.byref(ctypes.c_uint32(_ERRNO))
    return platform.machine() == "x86_64" and _LIBC.syscall(_SECCOMP, _ACTION_AVAILABLE, 0, action) == 0


def install(families: Iterable[int]) -> None:
    """Refuse those calls from now on, and sockets of other families; raises OSError."""
    code = program(families)
    filled = _Program(len(code) // 8, code)
    flags = _ALL_THREADS | _WITHOUT_SPECULATION_LIMITS
    result = _LIBC.syscall(_SECCOMP, _FILTER, flags, ctypes.byref(filled))
    if result:
        number = ctypes.get_errno() if result < 0 else errno.EBUSY  # a thread that has a filter of its own
        raise OSError(number, os.strerror(number))


def program(families: Iterable[int]) -> bytes:
    """The filter's instructions."""
    refuse = _instruction(_RETURN, _ERRNO | errno.EPERM)
    allow = _instruction(_RETURN, _ALLOW)
    parts = [
        _instruction(_LOAD, _ARCH),
        _instruction(_EQUAL, _ARCHITECTURE, 1, 0),
        refuse,
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, _X32, 0, 1),
        refuse,
    ]
    for number in sorted(number for numbers in _REFUSED.values() for number in numbers):
        parts += [_instruction(_EQUAL, number, 0, 1), refuse]
    # Its flags are in memory, where no filter sees them: a C library that hears ENOSYS takes clone.
    parts += [_instruction(_EQUAL, _CLONE3, 0, 1), _instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    chosen = [_instruction(_EQUAL, family, 0, 1) + allow for family in sorted(families)]
    parts += _of(_SOCKET, _FIRST, [*chosen, refuse])
    parts += _of(_CLONE, _FIRST, [_instruction(_ANY_BIT, _NAMESPACES, 0, 1) + refuse, allow])
    typing = [_instruction(_EQUAL, request, 0, 1) + refuse for request in _TERMINAL_INPUT]
    parts += _of(_IOCTL, _SECOND, [*typing, allow])
    return b"".join([*parts, allow])


def _of(number: int, argument: int, body: list[bytes]) -> list[bytes]:
    """Instructions for one call alone, whose argument is loaded; they end by returning."""
    length = 1 + sum(map(len, body)) // 8
    return [_instruction(_EQUAL, number, 0, length), _instruction(_LOAD, argument), *body]


def _instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)
