"""The lessons: their size, their spaces, and their products on PoCL, as NVRTC compiles them, and interpreted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from app.devices.backend import Backend, Operands
from app.dtypes import numpy_dtype
from app.services.best.kernel_order import covering, untuned
from app.services.best.transfer_records import launch_of
from app.services.charts.lessons import tile_choices
from app.services.tuning.request import TuneSpec, kernels_to_search
from app.tuning.verify.tolerance import expect, review
from benchmarks.kernels.lessons import RESULTS, SHAPES, contests, launches
from kernels import CATALOGUE, KERNELS, kernel
from kernels.cost_model import analyse
from kernels.kernel import LESSON
from kernels.launch import Launch
from kernels.lessons import LESSONS, Lesson
from kernels.lessons.spaces import REACH
from kernels.lessons.traffic import accesses
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import H200, PROCESSOR
from tests.support.kernels.pocl_runner import Array, compiled, multiplied, operands
from tests.support.kernels.tensor_core_configs import rounded

FOLDER = Path(str(files("kernels").joinpath("lessons")))
NAMES = (
    *("naive", "coalesced", "tiled", "conflict_free", "thread_rows", "thread_tile", "vectorised", "double_buffer"),
    *("warp_tile", "split_k", "cp_async", "wmma", "mma_sync", "wgmma_tma"),
)
PORTABLE = [lesson for lesson in LESSONS if "opencl" in lesson.kernel.platforms]
named = partial(pytest.mark.parametrize, "lesson", ids=lambda lesson: lesson.kernel.name)
# Past every edge, with rows of whole 16 bytes, and more than two k tiles.
RAGGED = (132, 140, 72)
BAND = 4096  # bytes on either side of C
# The first architecture that has a lesson's instructions.
FIRST = {11: "sm_80", 12: "sm_70", 13: "sm_80", 14: "sm_90"}


def problem_of(lesson: Lesson, shape: tuple[int, int, int] = RAGGED) -> Problem:
    found = Problem(*shape, dtype=lesson.kernel.dtypes[0])
    wide = 16 // found.itemsize
    return replace(found, n=-(-found.n // wide) * wide, k=-(-found.k // wide) * wide)


def launched(lesson: Lesson, problem: Problem, **changed: int) -> Launch:
    chosen = lesson.kernel.default(replace(problem, m=4096, n=4096, k=4096), H200)
    return lesson.kernel.launch(Config.of({**chosen, **changed}), problem, H200)


def expected(problem: Problem, a: Array, b: Array) -> Array:
    return np.asarray(rounded(problem, a, b)) if problem.dtype == "float16" else a.astype(np.float64) @ b


def test_there_are_fourteen_lessons_in_the_order_of_the_ladder() -> None:
    assert [lesson.kernel.name for lesson in LESSONS] == [f"lesson{i:02}_{name}" for i, name in enumerate(NAMES, 1)]
    assert [lesson.number for lesson in LESSONS] == list(range(1, 15))
    assert all(kernel(lesson.kernel.name) is lesson.kernel for lesson in LESSONS)
    assert [each.kernel.file.startswith("lessons/") and each.kernel.role for each in LESSONS] == [LESSON] * 14
    assert list(KERNELS) == [*CATALOGUE, *(lesson.kernel.name for lesson in LESSONS)]
    assert not any(one.role == LESSON for one in CATALOGUE.values())


def test_a_lesson_has_60_lines_at_most_and_all_headers_together_150() -> None:
    for lesson in LESSONS:
        sources = FOLDER.glob(f"lesson{lesson.number:02}_*.cu")
        assert sum(len(path.read_text().splitlines()) for path in sources) <= 60, lesson.kernel.name
    assert sum(len(path.read_text().splitlines()) for path in FOLDER.glob("*.h")) <= 150


@named(argvalues=LESSONS)
def test_a_lesson_says_its_idea_in_three_sentences_and_speaks_as_the_articles(lesson: Lesson) -> None:
    idea = lesson.idea
    assert len(re.findall(r"[.](?= [A-Z]| cp|$)", idea)) == 3, idea
    words = set(re.findall(r"\w+", lesson.own_source))
    assert {"A", "B", "C", "M", "N", "K", "tile"} <= words or lesson.number < 3
    assert {"As", "Bs"} <= words or lesson.number < 3
    assert {"row", "col"} <= words or lesson.number == 14
    assert "TILE" in words or lesson.number > 4


def test_every_lesson_changes_the_one_below_by_its_idea_alone() -> None:
    """Most lines of a rung are its neighbour's; the platforms' own instructions replace more."""
    shares = {}
    for below, above in pairwise(LESSONS):
        one, other = (set(each.own_source.splitlines()[4:]) for each in (below, above))
        shares[above.number] = len(one & other) / len(other)
    assert all(share > (0.2 if number == 5 else 0.45) for number, share in shares.items() if number <= 10), shares
    assert shares[2] > 0.85 < shares[4]


@named(argvalues=LESSONS)
def test_problems_that_32_bits_do_not_reach_are_refused_by_that_reason(lesson: Lesson) -> None:
    side = 65_536 - 16
    reached = problem_of(lesson, (32_768, 32_768, 32_768))
    beyond = problem_of(lesson, (side, side, 64))
    assert side * side > REACH >= 32_768 * 32_768
    chosen = lesson.kernel.default(reached, H200)
    reason = "more elements of a matrix than 32-bit indices reach"
    assert lesson.kernel.space.refusal(chosen, beyond, H200) == reason
    assert lesson.kernel.space.refusal(chosen, reached, H200) != reason
    with pytest.raises(ValueError, match=reason):
        lesson.kernel.launch(chosen, beyond, H200)


def test_lessons_are_for_a_pair_of_matrices_as_they_are_stored() -> None:
    for lesson in LESSONS:
        problem = problem_of(lesson)
        assert lesson.kernel.covers(problem, H200)
        for other in (replace(problem, batch=2), replace(problem, trans_a=True), replace(problem, trans_b=True)):
            assert "neither transposed" in str(lesson.kernel.refusal(other, H200))
        assert lesson.kernel.covers(problem, PROCESSOR) == (lesson.number <= 10)


@pytest.mark.parametrize(("number", "architecture"), FIRST.items())
def test_instructions_of_an_architecture_are_for_it_and_later(number: int, architecture: str) -> None:
    lesson, older = LESSONS[number - 1], {"sm_70": "sm_60", "sm_80": "sm_75", "sm_90": "sm_89"}[architecture]
    problem = problem_of(lesson)
    assert lesson.kernel.covers(problem, replace(H200, architecture=architecture))
    assert not lesson.kernel.covers(problem, replace(H200, architecture=older))


@named(argvalues=LESSONS)
def test_defaults_are_legal_and_a_value_to_change_is_legal_too(lesson: Lesson) -> None:
    sizes = (64, 64, 16384) if lesson.number == 10 else (4096, 4096, 4096)
    problem = problem_of(lesson, sizes)
    chosen = lesson.kernel.default(problem, H200)
    changed = lesson.kernel.space.config({**chosen, **lesson.next})
    for config in (chosen, changed):
        assert lesson.kernel.space.refusal(config, problem, H200) is None
    assert changed != chosen
    assert 2 <= len(lesson.kernel.space.legal(problem, H200)) <= 100


@pytest.mark.rotating
@pytest.mark.drawn(2)
@named(argvalues=PORTABLE)
def test_products_of_integers_are_exact_on_the_processor(lesson: Lesson) -> None:
    problem = problem_of(lesson)
    launch = lesson.kernel.launch(lesson.kernel.default(problem, PROCESSOR), problem, PROCESSOR)
    a, b = operands(problem, np.random.default_rng(3), integers=True)
    assert np.array_equal(multiplied(compiled(launch.build), launch, a, b), expected(problem, a, b))


@pytest.mark.rotating
def test_parts_of_split_k_are_added_up_on_the_processor() -> None:
    lesson = LESSONS[9]
    problem = Problem(64, 72, 500)
    a, b = operands(problem, np.random.default_rng(3), integers=True)
    for splits in (4, 16):
        config = {"BM": 64, "BN": 64, "BK": 16, "TM": 4, "TN": 4, "WN": 32, "SPLIT_K": splits}
        launch = lesson.kernel.launch(lesson.kernel.space.config(config), problem, PROCESSOR)
        assert np.array_equal(multiplied(compiled(launch.build), launch, a, b), expected(problem, a, b))


INTERPRETED = [
    pytest.param(
        number,
        changed,
        marks=[] if number in {10, 12, 13, 14} and not changed else [pytest.mark.slow],
        id=f"{number}-{mark}",
    )
    for number, mark, changed in (
        *((number, "first", {}) for number in range(1, 14) if number != 10),
        (10, "first", {"SPLIT_K": 4}),
        (11, "two-stages", {"STAGES": 2, "BK": 8}),
        (13, "deep", {"STAGES": 4, "BK": 64}),
        (14, "first", {}),
        (14, "narrow", {"BN": 128, "GROUP_M": 1}),
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "changed"), INTERPRETED)
def test_products_of_integers_are_exact_as_interpreted(number: int, changed: dict[str, int]) -> None:
    interpreter = pytest.importorskip("tests.ptx_interpreter.launches")
    lesson = LESSONS[number - 1]
    problem = problem_of(lesson, (64, 72, 256) if number == 10 else RAGGED)
    launch = launched(lesson, problem, **changed, **({"BLOCKS": 0} if number == 14 else {}))
    a, b = operands(problem, np.random.default_rng(3), integers=True)
    c, conflicts = interpreter.interpreted(launch, a, b, H200)
    assert np.array_equal(c, expected(problem, a, b))
    assert conflicts == 0 or number in {6, 7, 8}, conflicts


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("lesson", "architecture"),
    [
        pytest.param(
            lesson,
            architecture,
            marks=[] if architecture == FIRST.get(lesson.number) else [pytest.mark.slow],
            id=f"{lesson.kernel.name}-{architecture}",
        )
        for lesson in LESSONS
        for architecture in ("sm_75", "sm_80", "sm_90", "sm_120")
        if lesson.kernel.covers(problem_of(lesson), replace(H200, architecture=architecture))
    ],
)
def test_lessons_compile_without_spills_and_warnings(lesson: Lesson, architecture: str, tmp_path: Path) -> None:
    cuda = pytest.importorskip("app.devices.cuda")
    problem = problem_of(lesson, (64, 64, 16384) if lesson.number == 10 else (4096, 4096, 4096))
    device = replace(H200, architecture=architecture)
    chosen = lesson.kernel.default(problem, device)
    for config in (chosen, Config.of({**chosen, **lesson.next})):
        launch = lesson.kernel.launch(config, problem, device)
        cubin = cuda.compile_cubin(launch.build, architecture, tmp_path)
        assert (cubin.spills, cubin.warnings) == (0, ()), config
        assert cubin.registers * launch.threads <= 65536, config


def test_the_model_tells_how_much_a_lesson_reads() -> None:
    """Of a cube of 1024: naive reads each element 1024 times, tiles of 32 a 32nd of that."""
    read = {}
    for lesson in LESSONS[:6]:
        problem = problem_of(lesson, (1024, 1024, 1024))
        read[lesson.number] = analyse(lesson.kernel, lesson.kernel.default(problem, H200), problem, H200).bytes_read
    assert read == {
        1: 2 * 4 * 1024**3,
        2: 2 * 4 * 1024**3,
        3: 2 * 4 * 1024**3 // 32,
        4: 2 * 4 * 1024**3 // 32,
        5: 2 * 4 * 1024**3 // 64,
        6: 2 * 4 * 1024**3 // 128,
    }


def test_no_choice_of_the_service_takes_a_lesson() -> None:
    """Neither an untuned choice nor a default tune: only a request that names lessons has them, and these alone."""
    for device in (H200, PROCESSOR):
        for lesson in LESSONS:
            problem = problem_of(lesson)
            if problem.dtype == "float16" and device is PROCESSOR:
                continue
            assert not {one.name for one in covering(problem, device)} - set(CATALOGUE)
            assert not {one.name for one in untuned(problem, device)} - set(CATALOGUE)
            assert not {one.name for one in kernels_to_search(problem, device, TuneSpec((problem,)))} - set(CATALOGUE)
            if lesson.kernel.covers(problem, device):
                asked = TuneSpec((problem,), kernels=(lesson.kernel.name,))
                assert kernels_to_search(problem, device, asked) == [lesson.kernel]
                assert launch_of(lesson.kernel.name, lesson.kernel.default(problem, device), problem, device) is None


def test_a_padded_line_leaves_no_two_threads_on_one_bank() -> None:
    """The challenge of the articles: a column of a tile of 32 is on one bank, and on 32 with a line of 33."""
    cube = Problem(1024, 1024, 1024)
    told = {}
    for number, config in ((3, {"TILE": 32}), (4, {"TILE": 32, "PAD": 1}), (4, {"TILE": 32, "PAD": 0})):
        found = {one.what: (one.taken, one.least) for one in accesses(number, Config.of(config), cube)}
        told[number, config.get("PAD")] = found.pop("stores to As")
        assert all(taken == least for taken, least in found.values())
    assert told == {(3, None): (32, 1), (4, 1): (1, 1), (4, 0): (32, 1)}


def test_neighbours_down_a_column_read_a_sector_each() -> None:
    config, cube = Config.of({"TILE": 32}), Problem(1024, 1024, 1024)
    naive, coalesced = ({one.what: one.taken for one in accesses(each, config, cube)} for each in (1, 2))
    assert (naive["loads of A"], naive["loads of B"]) == (32, 1)
    assert (coalesced["loads of A"], coalesced["loads of B"]) == (1, 4)


@named(argvalues=[lesson for lesson in LESSONS if lesson.number in {6, 7, 8, 9, 11, 13}])
def test_where_the_model_sees_conflicts_of_loads_the_interpreted_kernel_has_them(lesson: Lesson) -> None:
    chosen = lesson.kernel.default(problem_of(lesson, (4096, 4096, 4096)), H200)
    loads = [one for one in accesses(lesson.number, chosen, problem_of(lesson)) if one.what.startswith("loads of")]
    assert any(one.taken > one.least for one in loads if one.memory == "shared") == (lesson.number in {6, 7, 8})


def test_the_articles_decision_tree_is_answered_for_a_device() -> None:
    """The seeds' bytes: 8 KiB of shared memory for a tile of 32, 32 for 64, 128 for 128."""
    advice, tiles = tile_choices(H200)
    assert [(one.tile, one.shared_bytes) for one in tiles] == [(32, 2**13), (64, 2**15), (128, 2**17)]
    assert [one.advised for one in tiles] == [False, True, True]
    assert "64 or 128" in advice
    old = replace(H200, architecture="sm_61", limits=replace(H200.limits, shared_bytes=48 * 1024))
    advice, tiles = tile_choices(old)
    assert [(one.fits, one.advised) for one in tiles] == [(True, True), (True, False), (False, False)]
    advice, tiles = tile_choices(PROCESSOR)
    assert not any(one.advised for one in tiles)
    assert "no branch" in advice


@pytest.mark.parametrize("path", sorted(RESULTS.glob("lessons-*.json")), ids=lambda path: path.stem)
def test_what_was_measured_is_of_the_table_and_of_the_spaces(path: Path) -> None:
    report = json.loads(path.read_text(encoding="utf-8"))
    shapes = SHAPES["cuda" if report["architecture"].startswith("sm_") else "opencl"]
    assert {row["number"]: row["problem"] for row in report["rungs"]} == {one: shapes[one].key for one in shapes}
    for row in report["rungs"]:
        kernel = LESSONS[row["number"] - 1].kernel
        assert row["kernel"] == kernel.name
        assert kernel.space.config(row["config"])
        assert row["gflops"] == pytest.approx(shapes[row["number"]].flops / row["median_ms"] / 1e6)


def test_the_table_names_a_shape_for_every_rung_and_what_is_tried_is_of_its_space() -> None:
    assert set(SHAPES["cuda"]) == set(range(1, 15))
    assert set(SHAPES["opencl"]) == {lesson.number for lesson in PORTABLE}
    for platform, device in (("cuda", H200), ("opencl", PROCESSOR)):
        for contest in contests(platform):
            for lesson in contest.rungs:
                assert launches(lesson, contest.problem, device), (lesson.kernel.name, contest.problem)
    assert [contest.vendor for contest in contests("cuda")] == [False, False, True, False, False, True]


@pytest.fixture(scope="module")
def gpu(driver: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    del driver
    from app.devices.cuda import CudaBackend  # noqa: PLC0415 - CuPy is not everywhere

    backend: Backend = CudaBackend("cuda:0", tmp_path_factory.mktemp("cache"))
    yield backend
    backend.close()


def multiplied_on(gpu: Backend, launch: Launch, a: Array, b: Array) -> Array:
    """C of one launch, which was poisoned before, between guard bands that stay as they were."""
    problem, guarded = launch.problem, gpu.allocate(launch.problem.c_bytes + 2 * BAND)
    gpu.fill(guarded, 0xFF)
    gpu.run(
        gpu.compile(launch.build),
        launch,
        Operands(gpu.upload(a), gpu.upload(b), guarded.window(BAND, problem.c_bytes)),
    )
    landing = np.empty(guarded.nbytes, np.uint8)
    gpu.download(guarded, landing)
    inside = slice(BAND, BAND + problem.c_bytes)
    assert (np.delete(landing, inside) == 0xFF).all(), "something beside C was written"
    return landing[inside].view(numpy_dtype(problem.dtype)).reshape(problem.batch, problem.m, problem.n)


@pytest.mark.cuda
@named(argvalues=LESSONS)
def test_a_lesson_is_exact_on_a_gpu(lesson: Lesson, gpu: Backend) -> None:
    """Its default, the value to change and four more configs; past edges, within one tile, and of a long k."""
    if not lesson.kernel.covers(problem_of(lesson), gpu.device):
        pytest.skip(f"{gpu.device.architecture} does not have its instructions")
    for shape in ((16, 16, 16), RAGGED, (257, 392, 520), (64, 64, 4096)):
        problem = problem_of(lesson, shape)
        chosen = lesson.kernel.default(problem, gpu.device)
        changed = Config.of({**chosen, **lesson.next})
        legal = lesson.kernel.space.legal(problem, gpu.device)
        a, b = operands(problem, np.random.default_rng(3), integers=True)
        for config in dict.fromkeys([chosen, changed, *legal[:: max(1, len(legal) // 4)]]):
            if config in legal:
                launch = lesson.kernel.launch(config, problem, gpu.device)
                gpu.warm(gpu.compile(launch.build), launch)
                assert np.array_equal(multiplied_on(gpu, launch, a, b), expected(problem, a, b)), (config, shape)


@pytest.mark.cuda
@named(argvalues=LESSONS)
def test_a_lesson_is_as_accurate_as_the_service_asks_on_a_gpu(lesson: Lesson, gpu: Backend) -> None:
    problem = problem_of(lesson, (512, 640, 768))
    if not lesson.kernel.covers(problem, gpu.device):
        pytest.skip(f"{gpu.device.architecture} does not have its instructions")
    launch = lesson.kernel.launch(lesson.kernel.default(problem, gpu.device), problem, gpu.device)
    a, b = operands(problem, np.random.default_rng(7))
    reference = np.asarray(a.astype(np.float64) @ b.astype(np.float64))
    told = review(problem, expect(problem, a, b, reference), multiplied_on(gpu, launch, a, b))
    assert told.reason is None
