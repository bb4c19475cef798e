"""What PoCL's compiler says and makes under a name and a library that are not this processor's own."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from app.devices.opencl.pocl import builtin_library, cpu_name, cpuid, environment
from app.devices.opencl.pocl.cpuid import Processor

# The processor that each library was compiled for, as its functions say (target-cpu).
LIBRARY_OF: Final = {
    "avx512": "skylake-avx512",
    "avx2": "haswell",
    "avx_fma4": "bdver1",
    "avx_f16c": "ivybridge",
    "avx": "sandybridge",
    "sse41": "penryn",
    "ssse3": "core2",
    "sse2": "athlon64",
}
# Clang's macros of x86's features are two underscores, the feature in capitals, two underscores.
MACROS: Final = [
    "3dNOW",
    "3dNOW_A",
    "ADX",
    "AES",
    "AMXBF16",
    "AMXINT8",
    "AMXTILE",
    "AVX",
    "AVX2",
    "AVX512BF16",
    "AVX512BITALG",
    "AVX512BW",
    "AVX512CD",
    "AVX512DQ",
    "AVX512ER",
    "AVX512F",
    "AVX512FP16",
    "AVX512IFMA",
    "AVX512PF",
    "AVX512VBMI",
    "AVX512VBMI2",
    "AVX512VL",
    "AVX512VNNI",
    "AVX512VP2INTERSECT",
    "AVX512VPOPCNTDQ",
    "AVXVNNI",
    "BMI",
    "BMI2",
    "CLDEMOTE",
    "CLFLUSHOPT",
    "CLWB",
    "CLZERO",
    "CRC32",
    "ENQCMD",
    "F16C",
    "FMA",
    "FMA4",
    "FSGSBASE",
    "FXSR",
    "GFNI",
    "HRESET",
    "INVPCID",
    "KL",
    "LAHF_SAHF",
    "LWP",
    "LZCNT",
    "MMX",
    "MOVBE",
    "MOVDIR64B",
    "MOVDIRI",
    "MWAITX",
    "PCLMUL",
    "PCONFIG",
    "PKU",
    "POPCNT",
    "PREFETCHWT1",
    "PRFCHW",
    "PTWRITE",
    "RDPID",
    "RDRND",
    "RDSEED",
    "RTM",
    "SERIALIZE",
    "SGX",
    "SHA",
    "SHSTK",
    "SSE",
    "SSE2",
    "SSE3",
    "SSE4A",
    "SSE4_1",
    "SSE4_2",
    "SSSE3",
    "TBM",
    "TSXLDTRK",
    "UINTR",
    "VAES",
    "VPCLMULQDQ",
    "WAITPKG",
    "WBNOINVD",
    "WIDEKL",
    "XOP",
    "XSAVE",
    "XSAVEC",
    "XSAVEOPT",
    "XSAVES",
]
KERNEL: Final = """
__kernel __attribute__((reqd_work_group_size(8, 1, 1))) void many(__global float16 *a, __global double8 *d,
                                                                  __global float *f)
{
    const int i = get_global_id(0);
    a[i] = fma(a[i], a[i + 8], a[i + 16]);
    d[i] = fma(d[i], d[i + 8], d[i + 16]);
    f[i] = fma(f[i], f[i + 8], min(f[i + 16], fabs(f[i + 24])));
}
"""


def macros(names: list[str]) -> dict[str, set[str]]:
    """The features of each name, in the words of cpuid.py, by the macros that PoCL's compiler defines for it."""
    asking = [f"#ifdef __{name}__\n#warning HAS {name}\n#endif\n" for name in MACROS]
    asking.append("#ifdef __GCC_HAVE_SYNC_COMPARE_AND_SWAP_16\n#warning HAS CX16\n#endif\n")
    with TemporaryDirectory() as folder:
        cl, device = _opened(Path(folder))
        found = {}
        for name in names:
            _rename(device, name)
            text = "".join(asking) + f"__kernel void nothing(__global int *a) {{ *a = 1; }} // {name}\n"
            program = cl.Program(cl.Context([device]), text).build(options=[f"-DNAME_{re.sub('[^a-z0-9]', '_', name)}"])
            log = program.get_build_info(device, cl.program_build_info.LOG)
            found[name] = {word.lower() for word in re.findall(r"HAS (\w+)", log)}
    return found


def compiled_functions(kernels: str, name: str) -> list[str]:
    """The functions of PoCL's library that are left in a kernel, rather than inlined into it.

    The kernel is launched, since PoCL compiles nothing before, in a process that may die of what the processor lacks.
    """
    with TemporaryDirectory() as folder:
        process = os.fork()
        if process == 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            try:
                _launch(Path(folder), kernels, name)
            finally:
                os._exit(0)
        os.waitpid(process, 0)
        (compiled,) = Path(folder).rglob("*.so.o")
        return sorted({word.decode() for word in re.findall(rb"_Z\d+_cl_\w+", compiled.read_bytes())})


def made_with(features: frozenset[str]) -> tuple[str, bool]:
    """The library that PoCL has read on a processor of such features, and whether what it made is right."""
    with TemporaryDirectory() as folder:
        found = Processor(features, "")
        for module in (cpuid, environment):
            setattr(module, "processor", lambda: found)  # noqa: B010 - a type checker would know better
        os.environ["POCL_DEBUG"] = "llvm"
        told = Path(folder) / "stderr"
        with told.open("w") as target:
            os.dup2(target.fileno(), 2)
            cl, device = _opened(Path(folder))
            cpu_name.rename(device)
            context = cl.Context([device])
            queue, buffer = cl.CommandQueue(context), cl.Buffer(context, cl.mem_flags.READ_WRITE, 1 << 16)
            text = "__kernel void one(__global float *f) { f[get_global_id(0)] = fma(2.0f, get_global_id(0), 1.0f); }"
            kernel = cl.Kernel(cl.Program(context, text).build(), "one")
            kernel.set_args(buffer)
            cl.enqueue_nd_range_kernel(queue, kernel, (64,), (8,))
            import numpy as np  # noqa: PLC0415 - only this process needs it

            out = np.empty(64, np.float32)
            cl.enqueue_copy(queue, out, buffer)
        (path,) = set(re.findall(r"Using (\S+) as the built-in lib", told.read_text(errors="replace")))
        return str(Path(path).resolve()), bool((out == np.arange(64) * 2 + 1).all())


def _launch(folder: Path, kernels: str, name: str) -> None:
    os.environ["POCL_LEAVE_KERNEL_COMPILER_TEMP_FILES"] = "1"
    setattr(builtin_library, "taken_library", lambda _: "another")  # noqa: B010 - a type checker would know better
    setattr(builtin_library, "library_for", lambda _: kernels)  # noqa: B010
    cl, device = _opened(folder)
    _rename(device, name)
    context = cl.Context([device])
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 1 << 16)
    kernel = cl.Kernel(cl.Program(context, KERNEL).build(), "many")
    kernel.set_args(buffer, buffer, buffer)
    cl.enqueue_nd_range_kernel(cl.CommandQueue(context), kernel, (8,), (8,)).wait()


def _opened(folder: Path) -> tuple[Any, Any]:
    os.environ |= environment.environment(folder)
    import pyopencl as cl  # noqa: PLC0415 - it reads the environment when it is imported

    warnings.simplefilter("ignore")
    return cl, next(one for one in cl.get_platforms() if "Portable" in one.name).get_devices()[0]


def _rename(device: Any, name: str) -> None:
    """Put a name into the device's record, whatever name is there."""
    triple, _, _ = cpu_name._target(device.version)
    copy = ctypes.CDLL(None).strdup
    copy.restype = ctypes.c_void_p
    place = next(at for at in range(device.int_ptr, device.int_ptr + 1024, 8) if _at(at) == triple)
    ctypes.c_void_p.from_address(place + 8).value = copy(name.encode())


def _at(address: int) -> str:
    return cpu_name._text(cpu_name._pointer(address))
