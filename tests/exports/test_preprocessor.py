"""A source as its macros leave it: what a C preprocessor makes of it is what it makes of the source with -D macros."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Final

import pytest

from app.exports.preprocessor import preprocessed
from app.services.exports.architectures import device_of
from app.services.exports.assembly import builds
from kernels import KERNELS
from kernels.kernel import Kernel
from kernels.launch import Build
from kernels.problem import Problem

_CUDA: Final = {"__CUDA_ARCH__": "900"}
_KINDS: Final = [(dtype, precision) for dtype in ("float32", "float64", "float16") for precision in ("strict", "tf32")]


def by_c(text: str, macros: dict[str, str]) -> str:
    """What the C preprocessor makes of a text, without its blanks; files of the system are not read."""
    program = shutil.which("cpp")
    if program is None:
        pytest.skip("there is no C preprocessor")
    given = [f"-D{name}={value}" for name, value in macros.items()]
    read = re.sub(r"^\s*#\s*include.*", "", text, flags=re.MULTILINE)
    done = subprocess.run([program, "-P", "-undef", *given], input=read, capture_output=True, text=True, check=True)
    return re.sub(r"\s+", "", done.stdout)


def expect_same(build: Build) -> None:
    """The lines that stay of a build mean what its source means, and each is the source's but for values."""
    macros = dict(build.macros)
    lines, written = preprocessed(build.text, macros, _CUDA), build.text.split("\n")
    assert by_c("\n".join(line.text for line in lines), _CUDA) == by_c(build.text, macros | _CUDA)
    assert not [line for line in lines if re.match(r"\s*#\s*(if|elif|else|endif)", line.text)]
    assert [line.number for line in lines] == sorted({line.number for line in lines})
    for line in lines:
        before = written[line.number - 1]
        assert line.text == before or any(name in before for name in macros)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_compiler_makes_the_same_of_it(kernel: Kernel) -> None:
    device, tried = device_of("sm_90"), 0
    for kind in _KINDS:
        problem = Problem(1024, 1024, 1024, 1, *kind)
        if kernel.refusal(problem, device):
            continue
        config = kernel.default(problem, device)
        if kernel.space.refusal(config, problem, device):
            continue
        for build in builds(kernel.launch(config, problem, device)):
            expect_same(build)
        tried += 1
    if not tried:
        pytest.skip("no such problem on sm_90")


def test_conditions_are_those_of_c() -> None:
    def kept(condition: str, **macros: str) -> list[str]:
        text = f'#define TWICE (2 * N)\n#define F(x) x\n#if {condition}\nyes N // N\n#else\nno "N"\n#endif'
        return [line.text for line in preprocessed(text, macros, {})][2:]

    assert kept("TWICE == 6 && !defined(M)", N="3") == ["yes 3 // N"]
    assert kept("TWICE - 1 - 2 == 5", N="4") == ["yes 4 // N"]
    assert kept("!N == 1 || 1 + 2 * 3 != 7", N="4") == ['no "N"']
    assert kept("(1 | 2) == 3 && defined N && 7 % 4 >= 3 // why", N="4") == ["yes 4 // N"]
    assert kept("defined(F) && UNKNOWN == 0", N="1") == ["yes 1 // N"]
    for wrong in ("1 +", "(1", "1 1", "F(1)", "$"):
        with pytest.raises(ValueError, match="no condition"):
            kept(wrong)
