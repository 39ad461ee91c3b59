"""What does a comparison look like as a page? One file: two tables with their intervals drawn, and the words.

Names come from other people's files: whatever is said goes through ``_text``, and the page may load and run nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from esper_core._version import __version__
from esper_core.cli.figures import (
    in_full,
    left_out,
    probability,
    remarks,
    told_difference,
    told_interval,
    told_range,
    value,
)
from esper_core.cli.rendering import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from esper_core.runs.joining import Joined
    from esper_core.runs.records import Run

WIDTH: Final = 220
"""Pixels of a drawing."""

EDGE: Final = 8
"""Pixels at its ends that stay free."""

STYLE: Final = """
:root{color-scheme:light dark;--ink:#1c1e21;--dim:#55595f;--paper:#fff;--line:#d4d7dc;--mark:#0a58b8;--band:#e6e8ec;
--shade:#0003}
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--dim:#a9aeb6;--paper:#16181b;--line:#3d4148;--mark:#7fb4ff;
--band:#2a2e34;--shade:#fff4}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:72rem;margin:auto;
padding:1.5rem 1rem;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .5rem}p{margin:.25rem 0}
main>p:not(.dim){margin:.75rem 0}.dim{color:var(--dim)}
.wide{overflow-x:auto;container-type:scroll-state;background:
linear-gradient(to right,var(--paper) 40%,transparent) left/3rem 100% no-repeat local,
linear-gradient(to left,var(--paper) 40%,transparent) right/3rem 100% no-repeat local,
linear-gradient(to right,var(--shade),transparent) left/1rem 100% no-repeat scroll,
linear-gradient(to left,var(--shade),transparent) right/1rem 100% no-repeat scroll}
.wide:focus-visible{outline:2px solid var(--mark)}
@container scroll-state(scrollable:inline){.wide::before{content:"↔ wider than the screen";position:sticky;left:0;
color:var(--dim);font-size:.8rem}}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.35rem 1.25rem .35rem 0;border-bottom:1px solid var(--line);white-space:nowrap}
thead th{color:var(--dim);font-weight:600}tbody th{font-weight:600;white-space:normal;min-width:8rem}
svg{display:block}.mark{stroke:var(--mark);fill:var(--mark)}.rule{stroke:var(--dim)}.band{fill:var(--band)}
@media print{body{padding:0;font-size:12px}.wide{overflow:visible;background:none}.wide::before{content:none!important}
th,td{white-space:normal;padding-right:.6rem}tbody th{min-width:0}svg{width:150px}tr{break-inside:avoid}}
"""
"""At each edge of a table beyond which there is more a shadow is seen: what goes along with the table hides the others.
In words it is said where a browser knows by itself what scrolls; the page has no script."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """From which figure to which the drawings of a table reach; all of them the same."""

    low: float
    high: float

    @classmethod
    def over(cls, figures: Iterable[float | None]) -> _Axis:
        known = [float(one) for one in figures if one is not None and math.isfinite(one)]
        low, high = min(known, default=0.0), max(known, default=0.0)
        return cls(low, high) if high > low else cls(low - 0.5, high + 0.5)

    def place(self, figure: float) -> float:
        """Pixels from the left."""
        share = (figure / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return round(EDGE + share * (WIDTH - 2 * EDGE), 1)


def comparison_page(joined: Joined, runs: Sequence[Run], comparisons: Sequence[Mapping[str, Any]]) -> str:
    """The page of a comparison, whole."""
    metric = joined.metric
    ids = ", ".join(dict.fromkeys(run.name for run in runs))
    better = "more is better" if metric["direction"] == "up" else "less is better"
    parts = [
        "<h1>Which arm is better, as far as that is shown</h1>",
        f'<p class="dim">{_text(ids)}</p>',
        f'<p class="dim">{_text(metric["name"])} on the test data, {better}; intervals of 95 %</p>',
        "<h2>Arms</h2>",
        _arms(metric, {one.sample.name: one.figures for one in joined.arms}),
    ]
    if comparisons:
        parts += ["<h2>Comparisons</h2>", _comparisons(metric, comparisons, joined.margin), "<h2>In words</h2>"]
        for one in comparisons:
            lines = in_full(metric, one, together=len(comparisons), margin=joined.margin)
            told, *figures = [_text(line.strip()) for line in lines]
            parts.append(f"<p>{'<br>'.join([f'<strong>{told}</strong>', *figures])}</p>")
        parts += [f"<p>{_text(line)}</p>" for line in remarks(comparisons)]
    if len(joined.arms) == 1:
        parts.append("<p>There is one arm, and nothing to compare it with.</p>")
    elif joined.left_out:
        parts.append(f"<p>{_text(left_out(joined))}</p>")
    if joined.warnings:
        parts.append("<h2>To be known</h2>")
        parts += [f"<p>{_text(warning)}</p>" for warning in joined.warnings]
    parts.append(f'<p class="dim"><br>esper-core {_text(__version__)}</p>')
    return _page(f"Comparison of {ids}", parts)


def _page(title: str, parts: Sequence[str]) -> str:
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>",
            *parts,
            "</main>\n</body>\n</html>\n",
        ]
    )


def _arms(metric: Mapping[str, Any], arms: Mapping[str, Mapping[str, Any]]) -> str:
    tests = {name: own["test"] for name, own in arms.items()}
    axis = _Axis.over(one[key] for one in tests.values() for key in ("mean", "ci_low", "ci_high"))
    rows: list[list[str | _Drawing]] = []
    for name, own in arms.items():
        test = tests[name]
        mean, interval = value(metric, test["mean"]), told_interval(metric, test["ci_low"], test["ci_high"])
        drawing = _drawn(f"{name}: {mean}, {interval}", axis, test["mean"], test["ci_low"], test["ci_high"])
        reward = "unknown" if own.get("reward") is None else f"{own['reward']:+.1f}"
        rows.append([name, mean, drawing, interval, str(test["n"]), f"{own['params']:,.0f}", reward])
    head = [
        "arm",
        metric["name"],
        f"from {value(metric, axis.low)} to {value(metric, axis.high)}",
        "95 % interval",
        "n",
        "parameters",
        "reward",
    ]
    return _table("Arms", head, rows)


def _comparisons(metric: Mapping[str, Any], comparisons: Sequence[Mapping[str, Any]], margin: float) -> str:
    figures = [one[key] for one in comparisons for key in ("difference", "ci_low", "ci_high")]
    axis = _Axis.over([*figures, 0.0, margin, -margin])
    rows: list[list[str | _Drawing]] = []
    for one in comparisons:
        size, interval = told_difference(metric, one), told_range(metric, one)
        title = f"{one['a']} against {one['b']}: {size}, {interval}"
        drawing = _drawn(title, axis, one["difference"], one["ci_low"], one["ci_high"], zero=True, margin=margin)
        chances = [probability(one["p"]), probability(one.get("p_holm"))]
        rows.append(
            [f"{one['a']} against {one['b']}", one["verdict"], size, drawing, interval, str(one["n"]), *chances]
        )
    head = ["", "verdict", "by", "worse ← 0 → better", "95 % interval", "n", "p", "Holm"]
    return _table("Comparisons", head, rows)


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Markup that was made here."""

    markup: str


def _drawn(
    title: str,
    axis: _Axis,
    middle: float | None,
    low: float | None,
    high: float | None,
    *,
    zero: bool = False,
    margin: float = 0.0,
) -> _Drawing:
    """A figure as a dot with its interval as a line, against 0 and what counts for nothing, where they matter."""
    parts = [f"<title>{_text(title)}</title>"]
    if margin > 0:
        left, right = axis.place(-margin), axis.place(margin)
        parts.append(f'<rect class="band" x="{left}" y="0" width="{right - left:.1f}" height="24"/>')
    if zero:
        place = axis.place(0.0)
        parts.append(f'<line class="rule" x1="{place}" x2="{place}" y1="0" y2="24" stroke-dasharray="3 3"/>')
    if _is_known(low) and _is_known(high):
        ends = f'x1="{axis.place(low)}" x2="{axis.place(high)}"'
        parts.append(f'<line class="mark" {ends} y1="12" y2="12" stroke-width="2.5"/>')
    if _is_known(middle):
        parts.append(f'<circle class="mark" cx="{axis.place(middle)}" cy="12" r="4.5"/>')
    size = f'width="{WIDTH}" height="24" viewBox="0 0 {WIDTH} 24"'
    return _Drawing(f'<svg role="img" {size}>{"".join(parts)}</svg>')


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str | _Drawing]]) -> str:
    titles = "".join(f'<th scope="col">{_text(one)}</th>' for one in head)
    body = []
    for first, *rest in rows:
        cells = "".join(f"<td>{_cell(one)}</td>" for one in rest)
        body.append(f'<tr><th scope="row">{_cell(first)}</th>{cells}</tr>')
    inside = f"<table>\n<thead><tr>{titles}</tr></thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody>\n</table>"
    name = _text(f"{title}; where it is wider than the screen, it scrolls sideways")
    return f'<div class="wide" role="region" aria-label="{name}" tabindex="0">\n{inside}\n</div>'


def _cell(content: str | _Drawing) -> str:
    return content.markup if isinstance(content, _Drawing) else _text(content)


def _text(text: str) -> str:
    """What is said, and nothing else: no markup, and no character that turns or hides what follows."""
    return escape(visible(text), quote=True)


def _is_known(figure: float | None) -> TypeGuard[float]:
    return figure is not None and math.isfinite(figure)
