"""What the page on the Python client shows runs as it stands, and its results are right."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.client.shared_service import Served

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "python.md"
TESTED = re.findall(r"<!-- tested -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
def test_pages_examples_are_right(service: Served) -> None:
    scope: dict[str, Any] = {}
    assert len(TESTED) == 5
    for text in TESTED:
        # With two trials, what the client tells of the job is the same.
        ours = text.replace("http://127.0.0.1:8000", service.url).replace("seconds=5", "seconds=5, trials=2")
        exec(compile(ours, str(PAGE), "exec"), scope)  # noqa: S102 - our own page
    assert scope["job"].state == "succeeded"
    assert len(scope["trials"]) >= scope["job"].progress.done > 0
    x, w = scope["x"], scope["w"]
    with scope["client"] as client:
        assert np.array_equal(scope["c"], x @ w)
        assert np.array_equal(scope["d"], x @ w @ w.T)
        assert np.array_equal(scope["e"], x @ w)
        products = asyncio.run(scope["several"](service.url, [x, x[:2]], w))
        assert [np.array_equal(*pair) for pair in zip(products, (x @ w, x[:2] @ w), strict=True)] == [True, True]
        for name in ("weights", "hidden"):
            client.delete(name)
