"""What a notebook shows of answers: tables and bars as HTML, and charts as SVG of an option of ECharts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from typing import Any, Final

_ROWS: Final = 50  # of a page that are shown
_BAR, _LINE, _LABEL = 320, 24, 120  # pixels of the longest bar, of a line, of a name
_BEST, _OTHER = "#2e7d32", "#9e9e9e"
_TRIAL: Final = ("kernel", "config", "state", "round", "timing", "gflops", "reason")


@dataclass(frozen=True)
class Chart:
    """A bar chart of times: `option` is one of ECharts, and a notebook shows it as SVG."""

    option: Mapping[str, Any]

    def _repr_svg_(self) -> str:
        return svg(self.option)


class ShownBest:
    """A best config as a notebook shows it."""

    __slots__ = ()

    def plot(self) -> Chart:
        """Give the times of the best and of what was measured beside it as a chart."""
        times = _ladder(self)
        title = f"{_of(self, 'problem')} on {_of(self, 'device')}"
        return Chart(bar_option(title, times, best=str(_of(self, "kernel"))))

    def _repr_html_(self) -> str:
        names = ("problem", "device", "kernel", "config", "match", "timing", "gflops")
        picture = svg(self.plot().option) if _ladder(self) else ""
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


def bar_option(title: str, times: Mapping[str, float], best: str) -> dict[str, Any]:
    """The option of ECharts of horizontal bars, the first on top."""
    bars = [{"value": time, "itemStyle": {"color": _BEST if name == best else _OTHER}} for name, time in times.items()]
    return {
        "title": {"text": title},
        "aria": {"enabled": True},
        "xAxis": {"type": "value", "name": "ms", "min": 0},
        "yAxis": {"type": "category", "inverse": True, "data": list(times)},
        "series": [{"type": "bar", "name": "median", "data": bars, "label": {"show": True, "position": "right"}}],
    }


def svg(option: Mapping[str, Any]) -> str:
    """The option's bars as SVG, for where there is no ECharts."""
    names, bars = option["yAxis"]["data"], option["series"][0]["data"]
    longest = max((bar["value"] for bar in bars), default=1.0) or 1.0
    title, height = escape(option["title"]["text"]), _LINE * (len(bars) + 1)
    lines = [f'<text x="0" y="16" font-weight="bold">{title}</text>']
    for number, (name, bar) in enumerate(zip(names, bars, strict=True), 1):
        length, top = _BAR * bar["value"] / longest, _LINE * number
        colour = escape(bar["itemStyle"]["color"])
        lines.append(f'<text x="0" y="{top + 16}">{escape(name)}</text>')
        lines.append(f'<rect x="{_LABEL}" y="{top + 4}" width="{length:.1f}" height="16" fill="{colour}"/>')
        lines.append(f'<text x="{_LABEL + length + 6:.1f}" y="{top + 16}">{bar["value"]:.4g} ms</text>')
    size = f'width="{_LABEL + _BAR + 100}" height="{height}" role="img" aria-label="{title}"'
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


def _ladder(best: object) -> dict[str, float]:
    """The times of what was measured in one round, naive first and the vendor's library last."""
    entries, own = _of(best, "baselines") or {}, _of(best, "timing")
    found = {}
    for name in ("naive", "tiled", "default"):
        entry = entries.get(name)
        if entry is not None and entry.timing is not None and name != _of(best, "kernel"):
            found["untuned" if name == "default" else name] = float(entry.timing.median_ms)
    if own is not None:
        found[str(_of(best, "kernel"))] = float(own.median_ms)
    vendor = entries.get("vendor")
    if vendor is not None and vendor.timing is not None:
        found["vendor"] = float(vendor.timing.median_ms)
    return found


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
