"""What a process in a sandbox tries: each function gives the error's number, 0 for none."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from app.devices import worker_entry
from app.devices.process import WorkerLink
from app.devices.sandbox import Sandbox

X32 = 0x40000000
# Numbers of x86-64, with arguments that a privileged process would have to be refused for, or that do nothing.
CALLS: dict[str, tuple[int, ...]] = {
    "ptrace": (101, 0, 0, 0, 0),
    "process_vm_readv": (310, os.getpid(), 0, 0, 0, 0, 0),
    "mount": (165, 0, 0, 0, 0, 0),
    "unshare": (272, 0),
    "setns": (308, -1, 0),
    "bpf": (321, 0, 0, 0),
    "kexec_load": (246, 0, 0, 0, 0),
    "init_module": (175, 0, 0, 0),
    "keyctl": (250, 0, 0, 0, 0, 0),
    "perf_event_open": (298, 0, 0, 0, 0, 0),
    "userfaultfd": (323, 0),
    "io_uring_setup": (425, 0, 0),
    "a new namespace": (56, 0x10000000 | 17, 0, 0, 0, 0),
    "typing into the terminal": (16, 2, 0x5412, 0),
    "x32": (X32 | 39,),
}
FAMILIES = {"IPv4": socket.AF_INET, "IPv6": socket.AF_INET6, "netlink": socket.AF_NETLINK, "packet": socket.AF_PACKET}


class Failing(Sandbox):
    """One that cannot be entered."""

    def enter(self) -> None:
        raise OSError(38, "Function not implemented")


def code_of(action: Callable[[], object]) -> int:
    try:
        action()
    except OSError as error:
        return error.errno or -1
    return 0


def calls(_: Any, link: WorkerLink) -> dict[str, int]:
    del link
    libc = ctypes.CDLL(None, use_errno=True)

    def code(arguments: tuple[int, ...]) -> int:
        longs = [ctypes.c_long(argument) for argument in arguments]
        return ctypes.get_errno() if libc.syscall(*longs) < 0 else 0

    return {name: code(arguments) for name, arguments in CALLS.items()}


def sockets(_: Any, link: WorkerLink) -> dict[str, int]:
    del link
    return {name: code_of(partial(_opened, family)) for name, family in FAMILIES.items()}


def _opened(family: int) -> None:
    socket.socket(family, socket.SOCK_RAW if family == socket.AF_PACKET else socket.SOCK_DGRAM).close()


def files(_: Any, link: WorkerLink, outside: Path, inside: Path) -> dict[str, int]:
    """What can be done with a file outside of the folders that are allowed, and inside."""
    del link
    found = {
        "read": code_of((outside / "secret").read_bytes),
        "write": code_of(lambda: (outside / "secret").write_text("x", encoding="ascii")),
        "append": code_of(lambda: os.close(os.open(outside / "secret", os.O_WRONLY | os.O_APPEND))),
        "make": code_of((outside / "new").touch),
        "make a folder": code_of((outside / "folder").mkdir),
        "remove": code_of((outside / "secret").unlink),
        "truncate": code_of(lambda: os.truncate(outside / "secret", 0)),
        "link out": code_of(lambda: (inside / "link").hardlink_to(outside / "secret")),
        "share": code_of(lambda: os.close(os.open("/dev/shm/new", os.O_CREAT | os.O_WRONLY))),  # noqa: S108
    }
    (inside / "one").mkdir(exist_ok=True)
    (inside / "file").write_text("x", encoding="ascii")
    found["move inside"] = code_of(lambda: (inside / "file").rename(inside / "one" / "file"))
    found["remove inside"] = code_of((inside / "one" / "file").unlink)
    found["umask"] = os.umask(0o077)
    return found


def tcp(_: Any, link: WorkerLink, port: int) -> tuple[int, int]:
    """To bind and to connect."""
    del link
    with closing(socket.socket()) as one, closing(socket.socket()) as other:
        return code_of(lambda: one.bind(("127.0.0.1", 0))), code_of(lambda: other.connect(("127.0.0.1", port)))


def signals(_: Any, link: WorkerLink, process: int) -> int:
    del link
    return code_of(lambda: os.kill(process, 0))


def abstract(_: Any, link: WorkerLink, name: str) -> int:
    del link
    with closing(socket.socket(socket.AF_UNIX)) as one:
        return code_of(lambda: one.connect("\0" + name))


def a_program(_: Any, link: WorkerLink, outside: Path) -> str:
    """What a program that it starts can do: as little."""
    del link
    with os.popen(f"cat {outside / 'secret'} 2>&1; echo $(( 6 * 7 ))") as output:  # noqa: S605 - the test's own command
        return output.read()


def threads(_: Any, link: WorkerLink) -> list[str]:
    """What the system says of each thread, those of libraries among them."""
    del link
    import numpy as np  # noqa: PLC0415 - its threads start here

    np.ones((300, 300)) @ np.ones((300, 300))
    another = threading.Thread(target=threading.Event().wait, args=(5,), daemon=True)
    another.start()
    found = []
    for task in Path("/proc/self/task").iterdir():
        lines = (task / "status").read_text(encoding="ascii").splitlines()
        found.append(" ".join(line.replace("\t", "") for line in lines if line.startswith(("Seccomp:", "NoNewPrivs:"))))
    return found


def import_cupy(_: Any, link: WorkerLink, cache: Path) -> str | None:
    """Where CuPy, once imported, keeps what it compiles."""
    del link
    worker_entry.import_cuda(cache)
    return os.environ.get("CUPY_CACHE_DIR")
