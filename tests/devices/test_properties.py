"""What a CUDA device's name, architecture and clock say of its tensor cores: the figures of NVIDIA's data sheets."""

from __future__ import annotations

import pytest

from app.devices.cuda.properties import tensor_peaks


@pytest.mark.parametrize(
    ("name", "capability", "sms", "megahertz", "half", "tf32", "double"),
    [
        ("Tesla V100-SXM2-16GB", (7, 0), 80, 1530, 125, None, 0),
        ("Tesla T4", (7, 5), 40, 1590, 65, None, 0),
        ("NVIDIA GeForce RTX 2080 Ti", (7, 5), 68, 1545, 53.8, None, 0),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1410, 312, 156, 19.5),
        ("NVIDIA A40", (8, 6), 84, 1740, 149.7, 74.8, 0),
        ("NVIDIA GeForce RTX 3090", (8, 6), 82, 1695, 71, 35.6, 0),
        ("NVIDIA GeForce RTX 4090", (8, 9), 128, 2520, 165.2, 82.6, 0),
        ("NVIDIA L4", (8, 9), 58, 2040, 121, 60.5, 0),
        ("NVIDIA H200", (9, 0), 132, 1980, 989, 494.7, 66.9),
        ("NVIDIA GeForce RTX 5090", (12, 0), 170, 2407, 209.5, 104.8, 0),
    ],
)
def test_the_peaks_of_tensor_cores_are_those_of_the_data_sheets(
    name: str, capability: tuple[int, int], sms: int, megahertz: int, half: float, tf32: float | None, double: float
) -> None:
    found = {kind: value / 1e12 for kind, value in tensor_peaks(name, capability, sms * megahertz * 1e6).items()}
    assert found["tensor_float16"] == pytest.approx(half, rel=0.01)
    assert found["tensor_float64"] == pytest.approx(double, rel=0.01)
    assert found.get("tensor_tf32") == (None if tf32 is None else pytest.approx(tf32, rel=0.01))
    assert found.get("tensor_bfloat16") == (None if tf32 is None else found["tensor_float16"])


@pytest.mark.parametrize(("name", "capability"), [("Tesla P100", (6, 0)), ("NVIDIA GeForce GTX 1660", (7, 5))])
def test_a_device_without_tensor_cores_has_no_figures_of_them(name: str, capability: tuple[int, int]) -> None:
    assert tensor_peaks(name, capability, 1e12) == {}
