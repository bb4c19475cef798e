"""Kernels: a source, its space, its coverage and its plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import sha256
from typing import Final, Literal

from kernels.arithmetic import FMA
from kernels.device import Device
from kernels.launch import Build, Launch, Plan, dtype_macros
from kernels.packing import ragged
from kernels.problem import CLASSES, Problem, larger, smaller
from kernels.sources import code_digest, source
from kernels.space import Config, Space

# What kernels are for: products, or the lessons that are measured by the same service and never make one.
Role = Literal["serving", "lesson"]
SERVING: Final = "serving"
LESSON: Final = "lesson"
SQUARE: Final = 16  # rows and columns
_REMEMBERED: Final = 256  # builds of a kernel


def _everywhere(_: Problem, __: Device) -> bool:
    return True


def _itself(config: Config) -> Config:
    return config


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bounds on the sizes of problems, all of which a problem is to meet; None, 0 and True are no bound.

    `short` and `long` are C's shorter and longer side, `largest` is the largest of m, n and k, `emulated_k` the least k
    in emulated precision. The longer side is at least `long_times` the shorter one and k, each. `k_bytes_most` are
    those of a line along k. For a k over `deep_over` C has at most `deep_squares_most` squares of 16 x 16, whole or
    not. With `whole_rows` both operands' rows are multiples of 16 bytes in memory.
    """

    short_most: int | None = None
    short_over: int | None = None
    long_least: int = 0
    long_times: int = 0
    largest_most: int | None = None
    largest_over: int | None = None
    k_most: int | None = None
    k_bytes_most: int | None = None
    deep_over: int | None = None
    deep_squares_most: int = 0
    emulated_k: int = 0
    batch_most: int | None = None
    transposed: bool = True
    whole_rows: bool = False

    def admit(self, problem: Problem) -> bool:
        """Whether a problem meets the bounds; of traced sizes (app.exports) what is compared is taken down."""
        m, n, k = problem.m, problem.n, problem.k
        # Where the longer side counts, it is decided which that is: an export is for what is long the same way.
        short, long = (min(m, n), max(m, n)) if self.long_least else (smaller(m, n), 0)
        return (
            (self.short_most is None or short <= self.short_most)
            and (self.short_over is None or short > self.short_over)
            and (self.k_most is None or k <= self.k_most)
            and (self.k_bytes_most is None or k * problem.itemsize <= self.k_bytes_most)
            and (self.deep_over is None or k <= self.deep_over or self._squares(problem) <= self.deep_squares_most)
            and (not self.emulated_k or problem.precision != "emulated" or k >= self.emulated_k)
            and (not self.long_least or long >= max(self.long_least, self.long_times * max(short, k)))
            and (self.largest_most is None or larger(m, n, k) <= self.largest_most)
            and (self.largest_over is None or larger(m, n, k) > self.largest_over)
            and (self.batch_most is None or problem.batch <= self.batch_most)
            and (self.transposed or not (problem.trans_a or problem.trans_b))
            and (not self.whole_rows or not ragged(problem))
        )

    @staticmethod
    def _squares(problem: Problem) -> int:
        return problem.batch * -(-problem.m // SQUARE) * -(-problem.n // SQUARE)


@dataclass(frozen=True)
class Kernel:
    """A kernel of the ladder: source file, space, coverage and plan.

    What it computes is data, so that no kernel's own code runs where it is asked whether it computes a problem.

    `plan` takes legal configs; `default` is the cost model's choice, untuned. `sizes` are those of problems on which
    the kernel is tuned, which `shapes` says in words; `preferred_untuned`, the problems of those for which it is
    the untuned default, before the rungs below it. `arguments` are the parameters that are scalars of a launch and
    no macros: configs that differ in these alone share a binary. `auxiliary_sources` are the files of its steps.
    `architectures` limits it to some of its platforms'. `excluded_classes` are pairs of its `dtypes` and
    `precisions` that it does not compute. `min_capability` is the first CUDA architecture that has its
    instructions, such as 80, and `dtype_capabilities` that of a dtype whose are later. `instructions` names those
    (kernels.arithmetic). `role` is `serving` or `lesson`. `most_k` is the most of k for which a config has room,
    where a tile has all of it. `modelled` is a config in the parameters that the cost model reads: BM, BN and, with
    tiles in shared memory, BK. `seconds` are those of a launch by a model of the kernel's own, which knows the
    device better: its default has the least of them. `seeds` are the configs that a search begins with, the default
    among them, found without listing the space.
    """

    name: str
    summary: str
    file: str
    space: Space
    dtypes: tuple[str, ...]
    precisions: tuple[str, ...]
    platforms: tuple[str, ...]
    plan: Callable[[Config, Problem], Plan]
    default: Callable[[Problem, Device], Config]
    dynamic_smem: bool = False
    arguments: tuple[str, ...] = ()
    auxiliary_sources: tuple[str, ...] = ()
    sizes: Sizes = Sizes()
    preferred_untuned: Callable[[Problem, Device], bool] = _everywhere
    architectures: tuple[str, ...] = ()
    shapes: str = "any shape"
    excluded_classes: tuple[tuple[str, str], ...] = ()
    min_capability: int = 0
    dtype_capabilities: tuple[tuple[str, int], ...] = ()
    instructions: str = FMA
    role: Role = SERVING
    most_k: Callable[[Config, Problem], int] | None = None
    modelled: Callable[[Config], Config] = _itself
    seconds: Callable[[Config, Problem, Device], float] | None = None
    seeds: Callable[[Problem, Device], Sequence[Config]] | None = None

    @property
    def text(self) -> str:
        """The source with its headers, as the compiler reads it."""
        return source(self.file)

    @property
    def digest(self) -> str:
        """SHA-256 of the code and its steps': a stored result is stale once it changes.

        Comments and blanks do not count.
        """
        return sha256(
            "\0".join(map(code_digest, [self.text, *map(source, self.auxiliary_sources)])).encode()
        ).hexdigest()

    @cached_property
    def classes(self) -> tuple[tuple[str, str], ...]:
        """The pairs of dtype and precision that this kernel computes."""
        pairs = ((dtype, precision) for dtype in self.dtypes for precision in CLASSES[dtype])
        return tuple(pair for pair in pairs if pair[1] in self.precisions and pair not in self.excluded_classes)

    def covers(self, problem: Problem, device: Device) -> bool:
        """Whether the kernel supports the problem on the device."""
        return self.refusal(problem, device) is None

    def refusal(self, problem: Problem, device: Device) -> str | None:
        """Why the kernel does not support the problem on the device, as a clause; None if it does."""
        if (refused := self.class_refusal(problem, device)) is not None or self.supports(problem):
            return refused
        return f"it is for {self.shapes}, not for {problem.m} x {problem.n} x {problem.k}"

    def supports(self, problem: Problem) -> bool:
        """Whether the problem's sizes and transpositions are among those that the kernel is tuned on."""
        return self.sizes.admit(problem)

    def class_refusal(self, problem: Problem, device: Device) -> str | None:
        """Why it computes no problem of this class on the device, of whatever sizes; None if it does."""
        kind = problem.dtype, problem.precision, device.platform, device.architecture
        if kind not in self._class_refusals:
            self._class_refusals[kind] = self._refusal_of_class(problem, device)
        return self._class_refusals[kind]

    @cached_property
    def _class_refusals(self) -> dict[tuple[str, str, str, str], str | None]:
        """What class_refusal has said, by dtype, precision, platform and architecture, which are few."""
        return {}

    def _refusal_of_class(self, problem: Problem, device: Device) -> str | None:
        if (problem.dtype, problem.precision) not in self.classes:
            own = ", ".join(f"{dtype} ({precision})" for dtype, precision in self.classes)
            return f"it computes {own}, not {problem.dtype} ({problem.precision})"
        if device.platform not in self.platforms:
            return f"it is for {' and '.join(self.platforms)}, not {device.platform}"
        if self.architectures and device.architecture not in self.architectures:
            return f"it is for {', '.join(self.architectures)}, not {device.architecture}"
        first = max(self.min_capability, dict(self.dtype_capabilities).get(problem.dtype, 0))
        if device.platform == "cuda" and device.capability < first:
            return f"it is for sm_{first} and later, not {device.architecture}"
        return None

    def computed_precision(self, problem: Problem) -> str:
        """The precision that a problem is computed in: where TF32 is allowed, fused multiply-adds are strict."""
        is_strict = problem.precision == "tf32" and self.instructions == FMA
        return "strict" if is_strict else problem.precision

    def computes(self, config: Config, problem: Problem) -> bool:
        """Whether a config is right on a problem of its class, be it slow there: its tile has room for k."""
        return self.most_k is None or problem.k <= self.most_k(config, problem)

    def launch(self, config: Config, problem: Problem, device: Device) -> Launch:
        """Plan a launch; raises ValueError with the rule's name if the space refuses the config."""
        refusal = self.space.refusal(config, problem, device)
        if refusal is not None:
            raise ValueError(refusal)
        config, build = self._build(config, problem)
        return _planned(self.plan(config, problem), Launch(self.name, config, problem, build, 0, (0, 0), 0))

    def _build(self, config: Config, problem: Problem) -> tuple[Config, Build]:
        """The build of a config, and that config: one of each for all problems of a class, of which many are kept."""
        key = config, dtype_macros(problem), self.text
        found = self._builds.get(key)
        if found is None:
            own = ((name, str(value)) for name, value in config.items() if name not in self.arguments)
            found = config, Build(self.name, self.text, "matmul", (*own, *key[1]), self.dynamic_smem)
            if len(self._builds) >= _REMEMBERED:
                self._builds.clear()
            self._builds[key] = found
        return found

    @cached_property
    def _builds(self) -> dict[tuple[Config, tuple[tuple[str, str], ...], str], tuple[Config, Build]]:
        """What _build has given."""
        return {}

    def for_problem(self, launch: Launch, problem: Problem) -> Launch:
        """The same binary on another problem of its class, which the space is not asked for."""
        return _planned(self.plan(launch.config, problem), replace(launch, problem=problem))


def _planned(plan: Plan, launch: Launch) -> Launch:
    return replace(launch, **{each.name: getattr(plan, each.name) for each in fields(plan)})
