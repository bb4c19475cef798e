"""Nsight Compute's report, in the forms that its manual documents: tables with units, thousands, and refusals."""

from __future__ import annotations

import pytest

from app.profiling.ncu_report import longest, read_report, refusal

RAW = """\
==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "pack_k_major" - 0: 0%....50%....100% - 9 passes
==PROF== Profiling "matmul" - 1: 0%....50%....100% - 9 passes
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"dram__bytes_read.sum","dram__bytes_write.sum","dram__bytes.sum.per_second","gpu__time_duration.sum",\
"l1tex__t_sector_hit_rate.pct","launch__registers_per_thread","launch__shared_mem_per_block_dynamic",\
"launch__shared_mem_per_block_static","lts__t_sector_hit_rate.pct","l1tex__data_bank_conflicts_pipe_lsu.sum",\
"sm__throughput.avg.pct_of_peak_sustained_elapsed",\
"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_selected_per_issue_active.ratio","sm__warps_active.avg.pct_of_peak_sustained_active"
"","","","","","","","","","","","Mbyte","byte","Gbyte/second","usecond","%","register/thread","Kbyte/block",\
"byte/block","%","","%","inst","inst","%"
"0","4711","python3.12","127.0.0.1","pack_k_major","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0","1.5","0","100.5",\
"12.25","0","16","0","0","50","0","3.5","1","1","80"
"1","4711","python3.12","127.0.0.1","matmul","1","7","(16, 16, 1)","(16384, 1, 1)","0","9.0","33.554432",\
"16,777,216","263.18","1,091.5","2.43","40","1.024","2,048","48.61","1,234,567","95.16","7.5","1","99.8"
"""
LONG = """\
"ID","Process ID","Process Name","Host Name","Kernel Name","Kernel Time","Context","Stream","Section Name",\
"Metric Name","Metric Unit","Metric Value"
"0","1","python","127.0.0.1","matmul(float*)","2026-Jan-01 00:00:00","1","7","Command line profiler metrics",\
"dram__bytes_read.sum","Gbyte","1.5"
"0","1","python","127.0.0.1","matmul(float*)","2026-Jan-01 00:00:00","1","7","Command line profiler metrics",\
"gpu__time_duration.sum","ms","2.5"
"0","1","python","127.0.0.1","matmul(float*)","2026-Jan-01 00:00:00","1","7","Command line profiler metrics",\
"lts__t_sector_hit_rate.pct","%","n/a"
"1","1","python","127.0.0.1","reduce","2026-Jan-01 00:00:00","1","7","Command line profiler metrics",\
"gpu__time_duration.sum","nsecond","900"
"""
REFUSED = """\
==PROF== Connected to process 9 (/usr/bin/python3.12)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target \
device 0. For instructions on enabling permissions and to get more information see \
https://developer.nvidia.com/ERR_NVGPUCTRPERM
==PROF== Disconnected from process 9
==WARNING== No kernels were profiled.
"""


def test_the_raw_page_has_a_row_a_kernel_and_its_units_are_scaled() -> None:
    first, second = read_report(RAW)
    assert (first.name, second.name) == ("pack_k_major", "matmul")
    assert first.seconds == pytest.approx(12.25e-6)
    assert second.seconds == pytest.approx(1091.5e-6)
    assert longest([first, second]) is second
    assert second.figures() == pytest.approx(
        {
            "dram_bytes": 33_554_432 + 16_777_216,
            "dram_bytes_per_second": 263.18e9,
            "l1_hit_percent": 2.43,
            "l2_hit_percent": 48.61,
            "registers": 40,
            "shared_bytes": 1024 + 2048,
            "bank_conflicts": 1_234_567,
            "sm_throughput_percent": 95.16,
            "occupancy_percent": 99.8,
            "stall_long_scoreboard": 7.5,
        }
    )


def test_the_details_page_has_a_row_a_metric_and_what_is_no_number_is_left_out() -> None:
    first, second = read_report(LONG)
    assert first.metrics == pytest.approx({"dram__bytes_read.sum": 1.5e9, "gpu__time_duration.sum": 2.5e-3})
    assert second.seconds == pytest.approx(9e-7)
    assert "dram_bytes" not in first.figures(), "half of the bytes were told as all of them"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (REFUSED, "ERR_NVGPUCTRPERM - The user does not have permission"),
        ("==WARNING== No kernels were profiled.\n", "No kernels were profiled"),
        ("", "wrote no table"),
        ("\x00\x01 what is this?\n1,2,3\n", "wrote no table"),
        (RAW.splitlines()[4] + "\n", "profiled no kernel"),
    ],
)
def test_a_report_without_kernels_says_why(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_report(text)


def test_the_tools_own_words_are_told() -> None:
    assert refusal(RAW) is None
    assert (refusal(REFUSED) or "").startswith("Nsight Compute: ERR_NVGPUCTRPERM")


def test_a_row_that_is_cut_is_no_kernel() -> None:
    cut = RAW[: RAW.rindex('"48.61"')]
    assert [one.name for one in read_report(cut)] == ["pack_k_major"]
