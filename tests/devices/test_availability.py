"""GPUs that cannot be used say why in one sentence: CUDA's own answers, simulated, since no machine has them all."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import pytest

from app.devices.cuda import nvml
from app.devices.cuda.availability import compiled_for, explanation, unsupported, usable
from app.devices.cuda.properties import Software
from app.errors import NoDevice

SOFTWARE = Software("NVIDIA 580.65.06", "CUDA 12.9", "NVRTC 12.9")
# What identify asks for, on a card of 80 SMs; the rest are 0.
ATTRIBUTES = {
    "MultiProcessorCount": 80,
    "ClockRate": 1_530_000,
    "MaxThreadsPerBlock": 1024,
    "WarpSize": 32,
    "MemoryClockRate": 877_000,
    "GlobalMemoryBusWidth": 4096,
}


class CudaError(RuntimeError):
    """As CuPy's CUDARuntimeError is: a status, and its name with its words."""

    def __init__(self, status: int, words: str = "cudaErrorUnknown: unknown error") -> None:
        super().__init__(words)
        self.status = status


class Runtime:
    """CuPy's module `runtime` on a host with these GPUs; `broken` are statuses of asking for one, by number."""

    CUDARuntimeError = CudaError

    def __init__(
        self,
        *gpus: tuple[str, int, int],
        fails: int | None = None,
        broken: dict[int, int] | None = None,
        mode: int = 0,
        driver: int = 13000,
    ) -> None:
        self._gpus, self._fails, self._broken, self._mode, self._driver = gpus, fails, broken or {}, mode, driver

    def __getattr__(self, name: str) -> str:
        if name.startswith("cudaDevAttr"):
            return name.removeprefix("cudaDevAttr")
        raise AttributeError(name)

    def getDeviceCount(self) -> int:  # noqa: N802 - CuPy's name
        if self._fails is not None:
            raise CudaError(self._fails)
        return len(self._gpus)

    def getDeviceProperties(self, number: int) -> dict[str, Any]:  # noqa: N802
        if number in self._broken:
            raise CudaError(self._broken[number])
        name, major, minor = self._gpus[number]
        return {"name": name.encode() + b"\0", "major": major, "minor": minor, "totalGlobalMem": 16 << 30}

    def deviceGetAttribute(self, name: str, number: int) -> int:  # noqa: N802
        assert number < max(1, len(self._gpus))
        return self._mode if name == "ComputeMode" else ATTRIBUTES.get(name, 0)

    def deviceGetPCIBusId(self, number: int) -> str:  # noqa: N802
        return f"0000:{number:02x}:00.0"

    def runtimeGetVersion(self) -> int:  # noqa: N802
        return 12090

    def driverGetVersion(self) -> int:  # noqa: N802
        return self._driver


def found(runtime: Runtime, which: str = "cuda") -> tuple[list[str], list[str]]:
    devices, reasons = usable(runtime, which, lambda: SOFTWARE, lambda _: 1e12)
    return [device.id for device in devices], reasons


def refusal(runtime: Runtime) -> str:
    with pytest.raises(NoDevice) as raised:
        found(runtime)
    return raised.value.message


def test_old_gpu_is_left_out_by_name_and_the_new_one_used() -> None:
    devices, reasons = found(Runtime(("NVIDIA GeForce GTX 1080", 6, 1), ("Tesla V100-SXM2-16GB", 7, 0)))
    assert devices == ["cuda:1"]
    assert reasons == [
        "cuda:0 (NVIDIA GeForce GTX 1080) is of compute capability 6.1; the kernels need 7.0 (Volta) or newer"
    ]


def test_only_the_gpu_asked_for_is_looked_at() -> None:
    assert found(Runtime(("Tesla P100", 6, 0), ("Tesla T4", 7, 5)), "cuda:1") == (["cuda:1"], [])


def test_broken_gpu_does_not_take_the_others_with_it() -> None:
    devices, reasons = found(Runtime(("NVIDIA L4", 8, 9), ("NVIDIA L4", 8, 9), broken={0: 999}))
    assert devices == ["cuda:1"]
    assert reasons == ["cuda:0: CUDA does not start: cudaErrorUnknown: unknown error"]


def test_mig_slice_is_a_device_with_its_profile() -> None:
    devices, _ = usable(Runtime(("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9, 0)), "cuda", lambda: SOFTWARE, lambda _: 1e12)
    assert [device.mig for device in devices] == ["1g.10gb"]


def test_exclusive_gpu_is_told_to_take_one_process() -> None:
    devices, _ = usable(Runtime(("NVIDIA L4", 8, 9), mode=3), "cuda", lambda: SOFTWARE, lambda _: 1e12)
    assert [device.exclusive for device in devices] == [True]


def test_old_driver_names_both_versions_and_the_one_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "driver_version", lambda: "470.223.02")
    assert refusal(Runtime(fails=35, driver=11040)) == (
        "the NVIDIA driver 470.223.02 supports CUDA up to 11.4, and CuPy here is of CUDA 12.9: "
        "install driver 525.60.13 or newer"
    )


def test_hidden_gpus_name_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert refusal(Runtime(fails=100)) == "the driver shows no GPU: CUDA_VISIBLE_DEVICES is ''"


def test_mig_without_instances_says_how_to_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml, "count", lambda: 1)
    assert "make a compute instance" in refusal(Runtime(fails=100))


def test_full_gpu_tells_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "memory", lambda _: (3 << 20, 16384 << 20))
    told = explanation(Runtime(("Tesla T4", 7, 5)), CudaError(2), 0)
    assert told == (
        "cuda:0 has no memory left for CUDA's own context (3 MiB of 16384 MiB are free): "
        "end what fills it (nvidia-smi names it)"
    )


@pytest.mark.parametrize(("mode", "words"), [(3, "Exclusive_Process"), (2, "Prohibited"), (0, "busy or unavailable")])
def test_gpu_that_another_has_tells_its_compute_mode(mode: int, words: str) -> None:
    assert words in explanation(Runtime(("Tesla T4", 7, 5), mode=mode), CudaError(46), 0)


@pytest.mark.parametrize(("status", "words"), [(802, "fabric manager"), (803, "different versions"), (3, "CUDA does")])
def test_other_failures_of_the_start_are_told(status: int, words: str) -> None:
    assert words in refusal(Runtime(fails=status))


def test_missing_compiler_names_its_wheel() -> None:
    def versions() -> Software:
        raise RuntimeError("no libnvrtc.so.12\n  searched everywhere")

    with pytest.raises(NoDevice, match=r"install nvidia-cuda-nvrtc-cu12\): no libnvrtc.so.12$"):
        usable(Runtime(("Tesla T4", 7, 5)), "cuda", versions, lambda _: 1e12)


@pytest.mark.parametrize(
    ("architecture", "known", "words"),
    [
        ("sm_70", [75, 80, 90], "compiles for sm_75 and newer: sm_70 needs CUDA 12's"),
        ("sm_120", [70, 90], "compiles up to sm_90: sm_120 needs a newer one"),
        ("sm_90", [70, 90], None),
        ("sm_90", [], None),
    ],
)
def test_architecture_that_the_compiler_lacks_is_told(architecture: str, known: list[int], words: str | None) -> None:
    told = unsupported(architecture, "NVRTC 13.0", known)
    assert told is None if words is None else told is not None and words in told


def test_installed_nvrtc_tells_the_architectures_it_compiles_for() -> None:
    folders = [Path(folder) / "nvidia/cuda_nvrtc/lib" for folder in sys.path]
    library = next((path for folder in folders for path in folder.glob("libnvrtc.so.*")), None)
    if library is None:
        pytest.skip("NVRTC's wheel is not installed")
    assert {70, 80, 90} <= set(compiled_for(ctypes.CDLL(str(library))))
