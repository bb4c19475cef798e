"""How many random configs a test draws where a run of the checks draws a share of all."""

from __future__ import annotations

import os


def share_of(count: int) -> int:
    """One in TEST_SHARE of the draws of a test that draws many in one case: at least two, or all of fewer."""
    return max(min(count, 2), count // int(os.environ.get("TEST_SHARE", "1")))
