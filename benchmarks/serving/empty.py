"""An empty FastAPI route on the service's own server settings: what the benchmarks compare answers with."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.get("/empty")
async def empty() -> dict[str, bool]:
    """Answer the least there is."""
    return {"ok": True}


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_keep_alive=75, timeout_graceful_shutdown=5)
    uvicorn.Server(config).run(sockets=[listener])
