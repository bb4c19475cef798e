"""The names that LLVM is given and the libraries that go with them, for real processors' flags and as PoCL tells."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import pytest

from app.devices.opencl.pocl.cpu_name import LIBRARIES, library_for, name_for, taken_library
from app.devices.opencl.pocl.cpuid import from_system
from tests.support.devices.pocl_compiler import LIBRARY_OF, compiled_functions, macros, made_with

T = TypeVar("T")

BASE = "fpu cmov mmx fxsr sse sse2 ht lm"
NEHALEM = f"{BASE} pni cx16 ssse3 sse4_1 sse4_2 popcnt lahf_lm"
HASWELL = f"{NEHALEM} pclmulqdq aes xsave avx f16c rdrand fma movbe abm fsgsbase bmi1 avx2 bmi2 erms invpcid xsaveopt"
SKYLAKE = f"{HASWELL} 3dnowprefetch adx rdseed clflushopt xsavec xsaves"
ZEN2 = (
    f"{NEHALEM} pclmulqdq fma movbe aes xsave avx f16c rdrand abm sse4a 3dnowprefetch fsgsbase bmi1 avx2 bmi2 rdseed "
    "adx clflushopt clwb sha_ni xsaveopt xsavec xsaves clzero rdpid wbnoinvd"
)
ZEN3 = f"{ZEN2} invpcid pku vaes vpclmulqdq"
XEON = f"{SKYLAKE} pku avx512f avx512dq avx512cd avx512bw avx512vl clwb"
_NEWER = (
    "avx512ifma avx512vbmi avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni avx512_bitalg avx512_vpopcntdq rdpid sha_ni"
)
ICELAKE = f"{XEON} {_NEWER}"
ZEN4 = f"{ZEN2} invpcid avx512f avx512dq avx512cd avx512bw avx512vl avx512_bf16 {_NEWER}"
ALDERLAKE = f"{SKYLAKE} avx_vnni clwb sha_ni gfni vaes vpclmulqdq rdpid pku waitpkg serialize movdiri movdir64b"


def without(flags: str, *hidden: str) -> str:
    return " ".join(flag for flag in flags.split() if not flag.startswith(hidden))


# Flags as /proc/cpuinfo has them; what LLVM 14 calls the processor; the name and the library that it is to be.
PROCESSORS = {
    "Nehalem": (NEHALEM, "nehalem", "nehalem", "sse41"),
    "Westmere": (f"{NEHALEM} aes pclmulqdq", "westmere", "westmere", "sse41"),
    "Goldmont": (f"{NEHALEM} aes pclmulqdq movbe rdrand sha_ni", "goldmont", "nehalem", "sse41"),
    "Core 2": (f"{BASE} pni cx16 ssse3 lahf_lm", "core2", "core2", "ssse3"),
    "Pentium 4": (f"{BASE} pni cx16", "nocona", "athlon64", "sse2"),
    "K10": (f"{BASE} 3dnowext 3dnow pni cx16 popcnt lahf_lm abm sse4a", "amdfam10", "athlon64", "sse2"),
    "Sandy Bridge": (f"{NEHALEM} pclmulqdq aes xsave avx xsaveopt", "sandybridge", "sandybridge", "avx"),
    "Ivy Bridge": (f"{NEHALEM} aes xsave avx f16c rdrand fsgsbase", "ivybridge", "ivybridge", "avx_f16c"),
    "Jaguar": (f"{NEHALEM} aes xsave avx f16c movbe abm sse4a bmi1", "btver2", "ivybridge", "avx_f16c"),
    "Bulldozer": (f"{NEHALEM} aes avx xop fma4 abm sse4a lwp", "bdver1", "bdver1", "avx_fma4"),
    "Piledriver": (f"{NEHALEM} aes avx xop fma4 abm sse4a tbm f16c fma bmi1", "bdver2", "bdver2", "avx_fma4"),
    "Excavator": (f"{ZEN2} xop fma4 tbm", "bdver4", "haswell", "avx2"),
    "Haswell": (HASWELL, "haswell", "haswell", "avx2"),
    "Broadwell": (f"{HASWELL} adx rdseed", "broadwell", "broadwell", "avx2"),
    "Skylake": (SKYLAKE, "skylake", "skylake", "avx2"),
    "Skylake, 2 to 28 cores": (XEON, "skylake-avx512", "skylake-avx512", "avx512"),
    "Cascade Lake": (f"{XEON} avx512_vnni", "cascadelake", "cascadelake", "avx512"),
    "Cooper Lake": (f"{XEON} avx512_vnni avx512_bf16", "cooperlake", "cooperlake", "avx512"),
    "Ice Lake, of servers": (f"{ICELAKE} pconfig wbnoinvd", "icelake-server", "icelake-server", "avx512"),
    "Ice Lake, of laptops": (without(ICELAKE, "clwb"), "icelake-client", "icelake-server", "avx512"),
    "Rocket Lake": (without(ICELAKE, "clwb"), "rocketlake", "icelake-server", "avx512"),
    "Tiger Lake": (f"{ICELAKE} avx512_vp2intersect", "tigerlake", "tigerlake", "avx512"),
    "Sapphire Rapids": (f"{ICELAKE} avx512_bf16 avx512_fp16 avx_vnni", "sapphirerapids", "sapphirerapids", "avx512"),
    "Granite Rapids": (f"{ICELAKE} avx512_bf16 avx512_fp16 avx_vnni", "generic", "icelake-server", "avx512"),
    "Alder Lake": (ALDERLAKE, "alderlake", "haswell", "avx2"),
    "Raptor Lake": (ALDERLAKE, "generic", "haswell", "avx2"),
    "Zen 1": (without(ZEN2, "clwb", "rdpid", "wbnoinvd"), "znver1", "haswell", "avx2"),
    "Zen 2": (ZEN2, "znver2", "haswell", "avx2"),
    "Zen 3": (ZEN3, "znver3", "haswell", "avx2"),
    "Zen 4": (ZEN4, "znver3", "icelake-server", "avx512"),
    "Zen 5": (f"{ZEN4} avx_vnni avx512_vp2intersect movdiri", "generic", "icelake-server", "avx512"),
    "Knights Landing": (f"{HASWELL} adx avx512f avx512cd avx512er avx512pf", "knl", "haswell", "avx2"),
    "Zen 4 whose hypervisor hides AVX-512": (without(ZEN4, "avx512"), "znver3", "haswell", "avx2"),
    "Zen 4 whose hypervisor hides half of it": (without(ZEN4, "avx512vl"), "znver3", "haswell", "avx2"),
    "Ice Lake whose hypervisor hides AVX": (
        without(ICELAKE, "avx", "fma", "f16c", "vaes", "vpcl"),
        "icelake-server",
        "nehalem",
        "sse41",
    ),
    "Haswell whose hypervisor hides FMA": (
        " ".join(flag for flag in HASWELL.split() if flag != "fma"),
        "haswell",
        "ivybridge",
        "avx_f16c",
    ),
    "Haswell whose hypervisor hides MOVBE": (without(HASWELL, "movbe"), "haswell", "ivybridge", "avx_f16c"),
    "QEMU's own": (f"{BASE} pni cx16", "k8-sse3", "athlon64", "sse2"),
}
# Of every one of these LLVM makes use only where a kernel's text asks for it, or an operating system does.
ASKED_FOR = {
    "3dnow",
    "3dnow_a",
    "aes",
    "amxbf16",
    "amxint8",
    "amxtile",
    "avx512vp2intersect",
    "cldemote",
    "clflushopt",
    "clwb",
    "clzero",
    "crc32",
    "enqcmd",
    "fsgsbase",
    "fxsr",
    "hreset",
    "invpcid",
    "kl",
    "lahf_sahf",
    "lwp",
    "mmx",
    "movdir64b",
    "movdiri",
    "mwaitx",
    "pclmul",
    "pconfig",
    "pku",
    "prfchw",
    "ptwrite",
    "rdpid",
    "rdrnd",
    "rdseed",
    "serialize",
    "sgx",
    "sha",
    "shstk",
    "sse",
    "sse2",
    "tsxldtrk",
    "uintr",
    "vaes",
    "vpclmulqdq",
    "waitpkg",
    "wbnoinvd",
    "widekl",
    "xsave",
    "xsavec",
    "xsaveopt",
    "xsaves",
}
NAMES = {name: has for _, _, names in LIBRARIES.values() for name, has in names.items()}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_name_has_all_of_its_library_and_nothing_that_the_processor_lacks(processor: str, tmp_path: Path) -> None:
    flags, own, expected, library = PROCESSORS[processor]
    (tmp_path / "cpuinfo").write_text(
        f"processor\t: 0\nflags\t\t: {flags}\nmodel name\t: {processor}\n\nprocessor\t: 1\n"
    )
    found = from_system(tmp_path / "cpuinfo")
    assert found.name == processor
    assert library_for(found.features) == library
    name = name_for(found.features, own)
    assert name == expected
    assert name == name_for(found.features, name), "another call in the same process finds the name that was given"
    assert LIBRARIES[library][1] <= NAMES[name] <= found.features


@pytest.mark.parametrize(
    ("processor", "taken"),
    [
        ("Nehalem", "sse41"),
        ("Haswell", "avx2"),
        ("Zen 4", "avx512"),
        ("Knights Landing", "avx512"),
        ("Zen 4 whose hypervisor hides half of it", "avx512"),
        ("Haswell whose hypervisor hides MOVBE", "avx2"),
        ("Haswell whose hypervisor hides FMA", "avx_f16c"),
    ],
)
def test_pocl_takes_its_library_by_few_features(processor: str, taken: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {PROCESSORS[processor][0]}\n")
    assert taken_library(from_system(tmp_path / "cpuinfo").features) == taken


@pytest.mark.slow
def test_features_of_every_name_are_those_of_pocls_compiler() -> None:
    told = apart(macros, sorted({*NAMES, *LIBRARY_OF.values()}))
    for name, has in NAMES.items():
        assert told[name] - ASKED_FOR == has, name
    for library, (_, has, names) in LIBRARIES.items():
        whole = told[LIBRARY_OF[library]]
        assert whole - ASKED_FOR == has, library
        for name in names:
            assert whole <= told[name], f"{library} is not inlined for {name}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "name"), [(library, name) for library, row in LIBRARIES.items() for name in row[2]]
)
def test_functions_of_the_library_are_inlined_for_the_name(library: str, name: str) -> None:
    assert apart(compiled_functions, library, name) == []


@pytest.mark.slow
@pytest.mark.parametrize(("library", "name"), [("avx2", "znver3"), ("avx2", "alderlake"), ("avx512", "icelake-client")])
def test_name_that_is_not_kept_would_inline_nothing(library: str, name: str) -> None:
    assert any("fma" in function for function in apart(compiled_functions, library, name))


@pytest.mark.rotating
def test_pocl_takes_the_names_library_over_its_own_choice() -> None:
    own = from_system(Path("/proc/cpuinfo")).features
    fewer = frozenset(own - {"movbe"})
    if taken_library(fewer) == library_for(fewer):
        pytest.skip("this processor has no AVX2, and so no such choice")
    path, right = apart(made_with, fewer)
    assert path.endswith(f"-{library_for(fewer)}.bc")
    assert right


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """The function's value in a process of its own: PoCL's names and libraries are chosen once in a process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result(200)
