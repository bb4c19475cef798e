"""What a notebook shows of answers: the figures that they have, and nothing that a page would run."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tilewise import Best, Chart, Job, Page, Problem, Timing, Trial
from tilewise.models import Baseline

_PROBLEM = Problem(64, 64, 64)
_BEST = Best(
    "opencl:0",
    _PROBLEM,
    "register_tiled",
    {"BM": 16, "BN": 32},
    "exact",
    timing=Timing(0.5, (0.4, 0.6), 9),
    gflops=80.0,
    baselines={
        "naive": Baseline("naive", Timing(2.0, None, 1), 20.0),
        "tiled": Baseline("tiled", None, reason="no time"),
        "default": Baseline("register_tiled", Timing(0.5, None, 1), 80.0),
        "vendor": Baseline("<script>", Timing(0.25, None, 1), 160.0),
    },
)


def test_a_plot_has_a_bar_for_each_config_that_was_measured_from_slow_to_fast() -> None:
    chart = _BEST.plot()
    assert isinstance(chart, Chart)
    assert chart.option["yAxis"]["data"] == ["naive", "register_tiled, tuned", "<script>"]
    bars = chart.option["series"][0]["data"]
    assert [(bar["value"], bar["ms"]) for bar in bars] == [(20.0, 2.0), (80.0, 0.5), (160.0, 0.25)]
    assert len({bar["itemStyle"]["color"] for bar in bars}) == 3, "the best and the vendor's stand out"
    picture = ET.fromstring(chart._repr_svg_())  # noqa: S314 - it is our own
    widths = [float(each.attrib["width"]) for each in picture.iter("{http://www.w3.org/2000/svg}rect")]
    assert [width / widths[0] for width in widths] == [1.0, 0.5, 0.125], "the fastest is on top"


def test_answers_show_their_figures_as_tables() -> None:
    shown = _BEST._repr_html_()
    assert all(text in shown for text in ("64x64x64", "BM=16, BN=32", "0.5 ms", "<svg"))
    winner = {"problem": {"m": 64, "n": 64, "k": 64}, "kernel": "tiled", "config": {"BM": 8}, "median_ms": 0.125}
    job = Job("a" * 32, "tune", "succeeded", result={"best": [winner]})
    assert all(text in job._repr_html_() for text in ("succeeded", "BM=8", "0.125"))
    trials = Page(
        Trial(number, "job", _PROBLEM, "tiled", {"BM": 8}, "rejected", reason="<b>wrong</b>") for number in range(60)
    )
    page = trials._repr_html_()
    assert page.count("<tr>") == 51
    assert "50 of 60 shown" in page
    assert "<b>" not in page
    assert "&lt;b&gt;wrong" in page
    assert Page[Trial]()._repr_html_() == "<p>0 entries</p>"
