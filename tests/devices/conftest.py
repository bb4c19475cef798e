from __future__ import annotations

import ctypes

import pytest

pytest.register_assert_rewrite("contract", "lifetimes", "devicework")


@pytest.fixture(scope="session")
def driver() -> None:
    """Skip where no NVIDIA driver is installed; with one, a GPU that does not open is a failure."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        pytest.skip(f"no NVIDIA driver: {error}")
