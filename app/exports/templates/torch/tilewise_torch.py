"""C = op(A) x op(B) as an operator of PyTorch over the C ABI: the measured cubin, launched on its current stream.

    cc -O2 -shared -fPIC -o libtilewise_gemm.so tilewise_gemm.c -ldl
    python tilewise_torch.py

`matmul` is written by torch.library.custom_op, and needs no compiler but the one above. `fast_matmul()` builds the same
as a C++ extension, and gives its operator: a call takes about 6 us of the host's time in place of 28, which decides for
small products. Both know their shapes without running (torch.compile, torch.export), and their gradients, which are
products of other classes: PyTorch computes those.

Matrices are as they are stored, [rows, columns] or [batch, rows, columns]. Those in the host's memory are multiplied by
the GPU, too. A product outside the class of the export raises OutsideClass: nothing here computes it another way.
"""

import ctypes
import json
import sys
import time
from functools import lru_cache
from pathlib import Path

import torch

HERE = Path(__file__).parent
MANIFEST = json.loads((HERE / "manifest.json").read_text())
PROBLEM = MANIFEST["problem"]
DTYPE = getattr(torch, PROBLEM["dtype"])
# Several exports may be in one program: each has its names.
NAME = "tilewise_" + "_".join([PROBLEM["dtype"], *(each["sha256"][:8] for each in MANIFEST["binaries"].values())])
LIBRARY = HERE / "libtilewise_gemm.so"
OUTSIDE_CLASS = (1, 2)


class OutsideClass(ValueError):
    """A product that this export is not for; the text says why."""


def sizes_of(a, b):
    """m, n, k and batch of stored operands; raises OutsideClass where they do not fit each other."""
    if a.dim() not in (2, 3) or a.dim() != b.dim() or a.dtype != DTYPE or b.dtype != DTYPE or a.device != b.device:
        raise OutsideClass(
            f"A is {a.dtype} {list(a.shape)} on {a.device} and B {b.dtype} {list(b.shape)} on {b.device}: "
            f"two matrices of {DTYPE} on one device were expected, or two batches of them"
        )
    batch = a.shape[0] if a.dim() == 3 else 1
    m, k = (a.shape[-1], a.shape[-2]) if PROBLEM["trans_a"] else (a.shape[-2], a.shape[-1])
    depth, n = (b.shape[-1], b.shape[-2]) if PROBLEM["trans_b"] else (b.shape[-2], b.shape[-1])
    if depth != k or (a.dim() == 3 and b.shape[0] != batch):
        raise OutsideClass(f"A is {list(a.shape)} and B is {list(b.shape)}: they cannot be multiplied")
    return m, n, k, batch


@lru_cache(maxsize=None)
def library():
    """The C ABI."""
    if not LIBRARY.exists():
        raise FileNotFoundError(f"{LIBRARY} is missing: cc -O2 -shared -fPIC -o {LIBRARY} {HERE}/tilewise_gemm.c -ldl")
    found = ctypes.CDLL(str(LIBRARY))
    found.tw_error.restype = ctypes.c_char_p
    return found


@lru_cache(maxsize=None)
def opened(device, stream):
    """The kernel on a GPU. Each stream has its own: products of one handle share a workspace."""
    del stream
    handle = ctypes.c_void_p()
    checked(library().tw_open(ctypes.c_int32(device), ctypes.byref(handle)))
    return handle


def checked(status):
    """Raise what the C ABI refused."""
    if status:
        text = library().tw_error().decode()
        raise OutsideClass(text) if status in OUTSIDE_CLASS else RuntimeError(text)


@torch.library.custom_op(f"{NAME}::matmul", mutates_args=())
def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """op(A) x op(B)."""
    a, b = a.contiguous(), b.contiguous()
    c = shape_of(a, b)
    sizes = [ctypes.c_int64(each) for each in sizes_of(a, b)]
    places = [ctypes.c_void_p(each.data_ptr()) for each in (a, b, c)]
    if a.is_cuda:
        stream = torch.cuda.current_stream(a.device).cuda_stream
        handle = opened(a.device.index, stream)
        checked(library().tw_matmul(handle, *places, *sizes, ctypes.c_void_p(stream)))
    else:
        checked(library().tw_matmul_host(opened(0, None), *places, *sizes))
    return c


@matmul.register_fake
def shape_of(a, b):
    """C without its numbers."""
    m, n, _, batch = sizes_of(a, b)
    return a.new_empty((batch, m, n) if a.dim() == 3 else (m, n))


def kept(ctx, inputs, output):
    """What the gradients are computed of."""
    ctx.save_for_backward(*inputs)


def gradients(ctx, grad):
    """Those of A and B as they are stored, by PyTorch."""
    a, b = ctx.saved_tensors
    left, right = a.mT if PROBLEM["trans_a"] else a, b.mT if PROBLEM["trans_b"] else b
    of_a, of_b = grad @ right.mT, left.mT @ grad
    return of_a.mT if PROBLEM["trans_a"] else of_a, of_b.mT if PROBLEM["trans_b"] else of_b


matmul.register_autograd(gradients, setup_context=kept)


@lru_cache(maxsize=None)
def fast_matmul():
    """The operator of the C++ extension, which is built at the first call: it takes some seconds."""
    from torch.utils import cpp_extension

    library()
    name = f"{NAME}_fast"
    macros = {"TW_NAMESPACE": name, "TW_DTYPE": TYPES[PROBLEM["dtype"]]}
    macros |= {f"TW_{key.upper()}": int(PROBLEM[key]) for key in ("trans_a", "trans_b")}
    cpp_extension.load(
        name=name,
        sources=[str(HERE / "tilewise_torch.cpp")],
        extra_cflags=["-O2", f"-I{HERE}", *(f"-D{key}={value}" for key, value in macros.items())],
        extra_ldflags=[str(LIBRARY), f"-Wl,-rpath,{HERE}"],
        is_python_module=False,
    )
    torch.library.register_fake(f"{name}::matmul")(shape_of)
    torch.library.register_autograd(f"{name}::matmul", gradients, setup_context=kept)
    return getattr(torch.ops, name).matmul


TYPES = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16"}


def main(words):
    """Check one product by both operators, and time their calls; give the exit status."""
    own = [PROBLEM[name] for name in ("m", "n", "k", "batch")]
    m, n, k, batch = [*map(int, words), *(1,) * (4 - len(words))] if words else own
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(42)
    a = torch.randn((batch, k, m) if PROBLEM["trans_a"] else (batch, m, k), device=device).to(DTYPE)
    b = torch.randn((batch, n, k) if PROBLEM["trans_b"] else (batch, k, n), device=device).to(DTYPE)
    left, right = (a.mT if PROBLEM["trans_a"] else a).double(), (b.mT if PROBLEM["trans_b"] else b).double()
    bound = MANIFEST["error_bound"]["per_k"] * k + MANIFEST["error_bound"]["rounding"]
    told = {"m": m, "n": n, "k": k, "batch": batch, "bound": bound, "right": True}
    for name, operator in (("custom_op", matmul), ("extension", fast_matmul())):
        try:
            error = ((operator(a, b).double() - left @ right).abs() / (left.abs() @ right.abs())).max().item()
        except OutsideClass as refusal:
            print(refusal, file=sys.stderr)
            return 2
        began = time.perf_counter()
        for _ in range(1000):
            operator(a, b)
        told[name] = {"max_scaled": error, "us_a_call": 1e3 * (time.perf_counter() - began)}
        told["right"] = told["right"] and error <= bound
    print(json.dumps(told))
    return 0 if told["right"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
