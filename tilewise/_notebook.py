"""What a notebook shows of answers: tables as HTML, and the ladder that a shape's page draws, as SVG of its option."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from typing import Any, Final

_ROWS: Final = 50  # of a page that are shown
_BAR, _LINE, _LABEL = 320, 24, 170  # pixels of the longest bar, of a line, of a name
_BEST, _VENDOR, _OTHER = "#2e7d32", "#b08800", "#9e9e9e"
_TRIAL: Final = ("kernel", "config", "state", "round", "timing", "gflops", "reason")


@dataclass(frozen=True)
class Chart:
    """A bar chart of rates: `option` is one of ECharts, and a notebook shows it as SVG."""

    option: Mapping[str, Any]

    def _repr_svg_(self) -> str:
        return svg(self.option)


class ShownBest:
    """A best config as a notebook shows it."""

    __slots__ = ()

    def plot(self) -> Chart:
        """Give the rates of the best and of what was measured beside it as a chart: the ladder of the shape's page."""
        title = f"{_of(self, 'problem')} on {_of(self, 'device')}"
        return Chart(ladder_option(title, rungs(self)))

    def _repr_html_(self) -> str:
        names = ("problem", "device", "kernel", "config", "match", "timing", "gflops")
        picture = svg(self.plot().option) if rungs(self) else ""
        return f"{table(names, [self], upright=True)}{picture}"


class ShownJob:
    """A job as a notebook shows it."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        told = table(("id", "kind", "state"), [self], upright=True)
        winners = table(("problem", "kernel", "config", "median_ms", "gflops"), _of(self, "best"))
        return told + winners


class ShownPage:
    """A page of a list as a notebook shows it."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        entries = list(self) if isinstance(self, list) else []
        if not entries or not is_dataclass(entries[0]):
            return f"<p>{len(entries)} entries</p>"
        own = [member.name for member in fields(entries[0])]
        names = [name for name in _TRIAL if name in own] if "round" in own else own[:7]
        more = f"<p>{_ROWS} of {len(entries)} shown</p>" if len(entries) > _ROWS else ""
        return table(names, entries[:_ROWS]) + more


@dataclass(frozen=True, slots=True)
class LadderBar:
    """A bar of the ladder: `interval` is the 95 % interval of its time, None where one sample says nothing of it."""

    name: str
    kernel: str
    ms: float
    gflops: float
    interval: tuple[float, float] | None
    is_best: bool = False


def rungs(best: object) -> list[LadderBar]:
    """The best and what was measured in its round, each config once, from slow to fast."""
    own, kernel = _of(best, "timing"), str(_of(best, "kernel"))
    found = []
    if own is not None and _of(best, "gflops") is not None:
        found.append(
            LadderBar(f"{kernel}, tuned", kernel, own.median_ms, _of(best, "gflops"), own.ci95_ms, is_best=True)
        )
    for what, one in (_of(best, "baselines") or {}).items():
        if one is None or one.timing is None or one.gflops is None:
            continue
        name = f"{one.name}, untuned" if what == "default" else str(one.name)
        bar = LadderBar(
            name, "vendor" if what == "vendor" else str(one.name), one.timing.median_ms, one.gflops, one.timing.ci95_ms
        )
        if own is None or (bar.kernel, bar.ms) != (kernel, own.median_ms):
            found.append(bar)
    return sorted(found, key=lambda bar: bar.gflops)


def ladder_option(title: str, bars: Sequence[LadderBar]) -> dict[str, Any]:
    """The option of ECharts of horizontal bars in GFLOP/s, the fastest on top, as the page of a shape has them."""
    data = [
        {"value": float(f"{bar.gflops:.4g}"), "name": bar.name, "ms": bar.ms, "itemStyle": {"color": _colour(bar)}}
        for bar in bars
    ]
    return {
        "title": {"text": title},
        "aria": {"enabled": True},
        "xAxis": {"type": "value", "name": "GFLOP/s", "min": 0},
        "yAxis": {"type": "category", "data": [bar.name for bar in bars]},
        "series": [{"type": "bar", "data": data, "label": {"show": True, "position": "right"}}],
    }


def _colour(bar: LadderBar) -> str:
    return _BEST if bar.is_best else _VENDOR if bar.kernel == "vendor" else _OTHER


def svg(option: Mapping[str, Any]) -> str:
    """The option's bars as SVG, for where there is no ECharts: its last is on top, as ECharts has a category axis."""
    bars = option["series"][0]["data"][::-1]
    longest = max((bar["value"] for bar in bars), default=1.0) or 1.0
    title, height = escape(option["title"]["text"]), _LINE * (len(bars) + 1)
    lines = [f'<text x="0" y="16" font-weight="bold">{title}</text>']
    for number, bar in enumerate(bars, 1):
        length, top = _BAR * bar["value"] / longest, _LINE * number
        colour = escape(bar["itemStyle"]["color"])
        lines.append(f'<text x="0" y="{top + 16}">{escape(bar["name"])}</text>')
        lines.append(f'<rect x="{_LABEL}" y="{top + 4}" width="{length:.1f}" height="16" fill="{colour}"/>')
        told = f"{bar['value']:.4g} GFLOP/s, {bar['ms']:.4g} ms"
        lines.append(f'<text x="{_LABEL + length + 6:.1f}" y="{top + 16}">{told}</text>')
    size = f'width="{_LABEL + _BAR + 200}" height="{height}" role="img" aria-label="{title}"'
    style = 'font-family="sans-serif" font-size="13" fill="currentColor"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(lines)}</svg>'


def table(names: Sequence[str], entries: Iterable[Any], *, upright: bool = False) -> str:
    """The members of entries as a table, a row each, or upright, a row a member."""
    rows = [[_text(_of(entry, name)) for name in names] for entry in entries]
    if upright:
        pairs = [pair for row in rows for pair in zip(names, row, strict=True)]
        lines = [f"<tr><th>{escape(name)}</th><td>{text}</td></tr>" for name, text in pairs]
    else:
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        lines = [f"<tr>{head}</tr>", *("<tr>" + "".join(f"<td>{text}</td>" for text in row) + "</tr>" for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _of(value: object, name: str) -> Any:
    return getattr(value, name, None)


def _text(value: Any) -> str:
    """A member as HTML."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return escape(", ".join(f"{name}={each}" for name, each in value.items()))
    if isinstance(value, float):
        return f"{value:.4g}"
    median = _of(value, "median_ms")
    return escape(str(value)) if median is None else f"{median:.4g} ms"
