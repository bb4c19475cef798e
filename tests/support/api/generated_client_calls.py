"""Call a service through a client that was generated from its document: `generated_client_calls.py FOLDER URL`.

FOLDER has the package `generated`. Every answer is printed as a line of JSON.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any


def main(folder: str, url: str) -> None:
    """Tune, ask for the best config, list jobs and trials, read a kernel's source, and multiply in JSON."""
    sys.path.insert(0, folder)
    models: Any = import_module("generated.models")
    client: Any = import_module("generated").Client(base_url=url, timeout=120)

    def call(operation: str, *path: str, **told: Any) -> Any:
        answer = import_module(f"generated.api.{operation}").sync(*path, client=client, **told)
        print(json.dumps({operation: answer if isinstance(answer, str) else answer.to_dict()}), flush=True)
        return answer

    shapes = [{"m": 21, "n": 22, "k": 23}, [24, 25, 26], "27x28x29"]
    order = {"shapes": shapes, "kernels": ["naive", "tiled"], "budget": {"trials": 2, "seconds": 20}}
    job = call("tune.tune", body=models.TuneRequest.from_dict(order), prefer="wait=60")
    call("jobs.get_job", job.id)
    call("jobs.list_jobs", limit=1)
    call("best_config.best_config", m=21, n=22, k=23)
    call("best_config.list_bests", shape="24x25x26")
    call("trials.list_trials", shape="27x28x29", job_id=job.id, limit=2)
    call("trials.list_misses", limit=5)
    call("kernels.get_kernel_source", "tiled")
    call("kernels.get_kernel_source", "no_such_kernel")
    call("matmul.matmul", body=models.ProductBody.from_dict({"a": [[1, 2], [3, "Infinity"]], "b": [[5, 6], [7, 8]]}))
    call("operations.get_version")


if __name__ == "__main__":
    main(*sys.argv[1:])
