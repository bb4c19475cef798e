"""What the wire is measured against: bare blocking sockets, and an empty FastAPI route.

    python -m benchmarks.serving.wire.peers sockets BYTES [--uds PATH] | threads BYTES | route

A client of the sockets says with one byte what it wants: "i" and BYTES bytes, which land in one buffer and are answered
with a byte, or "o", which is answered with BYTES bytes out of it. `threads` serves each client in a thread of its own:
after a byte come twice BYTES, which are answered with BYTES.
"""

from __future__ import annotations

import argparse
import socket
import threading

import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.post("/empty")
async def empty() -> dict[str, bool]:
    """Answer the least there is."""
    return {"ok": True}


def bare(listener: socket.socket, nbytes: int) -> None:
    """Serve one client after the other."""
    buffer = memoryview(bytearray(nbytes))
    while True:
        connection, _ = listener.accept()
        with connection:
            while wish := connection.recv(1):
                if wish == b"o":
                    connection.sendall(buffer)
                    continue
                at = 0
                while at < nbytes and (count := connection.recv_into(buffer[at:])):
                    at += count
                connection.sendall(b"!")


def threaded(listener: socket.socket, nbytes: int) -> None:
    """Serve each client in a thread: two times `nbytes` come after a byte, and are answered with the first of them."""
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_exchange, args=(connection, nbytes), daemon=True).start()


def _exchange(connection: socket.socket, nbytes: int) -> None:
    buffer = memoryview(bytearray(2 * nbytes))
    with connection:
        while connection.recv(1):
            at = 0
            while at < len(buffer) and (count := connection.recv_into(buffer[at:], 0, socket.MSG_WAITALL)):
                at += count
            connection.sendall(buffer[:nbytes])


def listening(uds: str | None) -> socket.socket:
    """A listener, and its address said aloud."""
    if uds is None:
        listener = socket.create_server(("127.0.0.1", 0))
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(uds)
        listener.listen()
    print(f"http://127.0.0.1:{listener.getsockname()[1] if uds is None else 0}", flush=True)
    return listener


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sockets", "threads", "route"))
    parser.add_argument("nbytes", type=int, nargs="?", default=2**28)
    parser.add_argument("--uds")
    given = parser.parse_args()
    listener = listening(given.uds)
    if given.what == "sockets":
        bare(listener, given.nbytes)
    if given.what == "threads":
        threaded(listener, given.nbytes)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=75)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
