"""The choice of a method as one self-contained HTML file, with plots and no scripts."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from html import escape

from foreword.cli.common.tables import figure
from foreword.registry import PLAIN
from foreword_lab.html_page import document, elements, table
from foreword_lab.tune.chosen import Arm, Chosen, Prediction

STYLE = """h2 { font-size: 1.15rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
th, td { text-align: right; padding: .3rem .8rem; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.best td { font-weight: bold; }
svg { width: 100%; max-width: 40rem; height: auto; }
svg text { fill: currentColor; font-size: 12px; }
.axis { stroke: var(--faint); }
"""
COLOURS = ("#2f6fde", "#d9730d", "#18a058", "#b4459c", "#8a8f98", "#c62a2f")
"""Colours of the lines of a plot, in order."""
LINES = len(COLOURS)
"""Most lines of a plot."""
WIDTH = 640
HEIGHT = 280
EDGE = 44
"""Pixels of a plot, and of the space for its labels."""

Points = Sequence[tuple[float, float]]


def page(chosen: Chosen, about: str) -> str:
    """Return the HTML of a choice; `about` says what was measured."""
    why = elements("p", chosen.why)
    costs = sorted(chosen.costs.items())
    forward = [(float(tokens), 1000 * seconds) for tokens, seconds in costs]
    depths = {
        _name(one.arm): [(0.0, 1.0), *_numbered(one.by_depth)]
        for one in best_of_each(chosen)
    }
    reasons = chosen.left_out.items()
    left_out = elements(
        "p", [f"Left out: {name} ({reason})" for name, reason in reasons]
    )
    body = f"""<h1>{escape(_name(chosen.best))}</h1>
<p>{escape(about)}, {chosen.prompts} prompts, temperature {chosen.temperature:g},
{date.today()}</p>
{why}
<h2>Predicted and measured, times plain decoding</h2>
<div class="wide">{_timed(chosen)}</div>
<h2>Accepted draft tokens by depth</h2>
<p>Share of the rounds that accepted at least so many draft tokens.</p>
{plot(depths, "draft tokens", "share of rounds")}
<h2>Cost of a forward</h2>
<p>Milliseconds of the target by the tokens it reads at once. While the line is flat,
draft tokens are nearly free to check.</p>
{plot({"target": forward}, "tokens", "ms")}
<h2>What would have to improve</h2>
<p>Predicted speed, if one thing were perfect.</p>
<div class="wide">{_limits(chosen)}</div>
<h2>All predictions</h2>
<div class="wide">{_predictions(chosen)}</div>
{left_out}"""
    return document(f"Foreword: {_name(chosen.best)}", STYLE, body)


def best_of_each(chosen: Chosen) -> list[Prediction]:
    """Return the fastest prediction of each method and rule, the fastest first."""
    best: dict[str, Prediction] = {}
    for row in chosen.predictions:
        if row.arm.method != PLAIN:
            best.setdefault(row.arm.name, row)
    return list(best.values())[:LINES]


def plot(lines: Mapping[str, Points], across: str, up: str) -> str:
    """Return a plot of these lines, from zero on both axes."""
    points = [point for line in lines.values() for point in line]
    if not points:
        return "<p>Nothing was drafted.</p>"
    right = max(x for x, _ in points) or 1.0
    top = max(y for _, y in points) or 1.0
    size = f"0 0 {WIDTH} {HEIGHT}"
    label = f"{escape(up)} by {escape(across)}"
    parts = [f'<svg viewBox="{size}" role="img" aria-label="{label}">']
    for share in (0.0, 0.5, 1.0):
        y = _down(share)
        parts.append(
            f'<line class="axis" x1="{EDGE}" y1="{y}" x2="{WIDTH - 8}" y2="{y}"/>'
            f'<text x="{EDGE - 6}" y="{y + 4}" text-anchor="end">'
            f"{share * top:.3g}</text>"
            f'<text x="{_along(share)}" y="{HEIGHT - EDGE + 18}" '
            f'text-anchor="middle">{share * right:.3g}</text>'
        )
    parts.append(f'<text x="{EDGE}" y="14">{escape(up)}</text>')
    parts.append(
        f'<text x="{WIDTH - 8}" y="{HEIGHT - 8}" text-anchor="end">'
        f"{escape(across)}</text>"
    )
    for number, (name, line) in enumerate(list(lines.items())[:LINES]):
        colour = COLOURS[number]
        path = ""
        for x, y in line:
            path += f"{_along(x / right)},{_down(y / top)} "
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" '
            'stroke-width="2"/>'
            f'<text x="{WIDTH - 8}" y="{20 + 16 * number}" text-anchor="end" '
            f'style="fill: {colour}">{escape(name)}</text>'
        )
    return "".join((*parts, "</svg>"))


def _along(share: float) -> float:
    return round(EDGE + share * (WIDTH - EDGE - 8), 1)


def _down(share: float) -> float:
    return round(HEIGHT - EDGE - share * (HEIGHT - EDGE - 24), 1)


def _numbered(values: Iterable[float]) -> list[tuple[float, float]]:
    return [(float(number), value) for number, value in enumerate(values, 1)]


def _timed(chosen: Chosen) -> str:
    rows = []
    for row in chosen.confirmations:
        predicted = figure(row.predicted, missing="–")
        error = "–" if row.error is None else f"{row.error:+.0%}"
        cells = (predicted, f"{row.measured.mid:.2f}", row.measured.ends, error)
        is_best = row.arm == chosen.best
        rows.append(_row(row.arm, cells, is_best=is_best))
    return table(("method", "predicted", "measured", "95 %", "off by"), rows)


def _limits(chosen: Chosen) -> str:
    rows = []
    for row in best_of_each(chosen):
        limits = row.limits
        speeds = (
            limits.free_drafting,
            limits.free_rows,
            limits.all_accepted,
        )
        cells = map(figure, (row.over_plain.mid, *speeds))
        is_best = row.arm.name == chosen.best.name
        rows.append(_row(row.arm, cells, is_best=is_best))
    heads = ("method", "now", "drafting free", "checking free", "all accepted")
    return table(heads, rows)


def _predictions(chosen: Chosen) -> str:
    rows = []
    for row in chosen.predictions:
        cells = (
            f"{row.over_plain.mid:.2f}",
            row.over_plain.ends,
            f"{row.tokens_per_pass:.2f}",
            f"{row.accepted:.0%}",
            f"{row.drafting:.0%}",
        )
        is_best = row.arm == chosen.best
        rows.append(_row(row.arm, cells, is_best=is_best))
    heads = ("method", "× plain", "95 %", "tokens a pass", "accepted", "drafting")
    return table(heads, rows)


def _row(arm: Arm, cells: Iterable[str], *, is_best: bool) -> str:
    kind = ' class="best"' if is_best else ""
    return f"<tr{kind}>{elements('td', (_name(arm), *cells))}</tr>"


def _name(arm: Arm) -> str:
    if arm.method == PLAIN:
        return "plain decoding"
    return f"{arm.name}, " + (
        "adaptive budget" if arm.nodes is None else f"{arm.nodes} draft tokens"
    )
