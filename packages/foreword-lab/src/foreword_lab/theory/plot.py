"""Plots of the formulas as in the paper, with a measured pair. Needs matplotlib."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from foreword.options import NODES
from foreword_lab.theory.formulas import (
    PassCost,
    best_gamma,
    expected_tokens,
    speed_up,
    speeds,
)
from foreword_lab.theory.outlook import SHOWN, Outlook
from foreword_lab.theory.report import HeatReport, TheoryReport
from foreword_train.report.interval import Interval

INK = "#22303c"
FAINT = "#d9dee3"
LOSS = "#c8553d"
COLOURS = ("#2a6f97", "#c8553d", "#5b8c5a", "#8d6a9f", "#d09a3c")
GAMMAS = (1, 3, 5, 7, 10)
"""Curves of the tokens of a pass, as in figure 2."""
COSTS = (0.01, 0.02, 0.05, 0.1)
"""Curves of the best γ beside the pair's own cost, as in figure 3."""
ALPHAS = np.linspace(0, 0.98, 99)
"""At α = 1 the best γ is the longest there is."""
LEVELS = 12
"""Colours of the surface."""
SIDE = 4.6
"""Inches. Width of a panel."""


def draw(report: TheoryReport, path: Path) -> None:
    """Write a PNG: a row of panels for each temperature."""
    figure, rows = _figure(len(report.heats))
    for panels, heat in zip(rows, report.heats, strict=True):
        _row(panels, heat.outlook, heat)
        panels[0].set_title(
            f"Tokens of a pass, temperature {heat.temperature:g}", fontsize=9
        )
    about = (report.target, report.method, f"{report.prompts} prompts")
    _save(figure, ", ".join(about), path)


def draw_outlook(outlook: Outlook, path: Path) -> None:
    """Write a PNG of the formulas alone."""
    figure, rows = _figure(1)
    _row(rows[0], outlook, None)
    alpha, cost = outlook.alpha, outlook.cost
    _save(figure, f"α = {alpha:g}, c = {cost.token:g}", path)


def _figure(rows: int) -> tuple[Figure, np.ndarray]:
    size = (4 * SIDE, rows * 0.8 * SIDE + 0.5)
    figure = Figure(figsize=size, dpi=120)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, 4, squeeze=False)


def _save(figure: Figure, title: str, path: Path) -> None:
    figure.suptitle(title, color=INK, fontsize=11, x=0.01, ha="left")
    source = "Formulas: Leviathan et al. 2023"
    figure.text(0.01, 0.005, source, color=INK, fontsize=7.5)
    figure.tight_layout(rect=(0, 0.02, 1, 0.99))
    figure.savefig(path, format="png")


def _row(panels: np.ndarray, outlook: Outlook, heat: HeatReport | None) -> None:
    tokens, best, by_gamma, surface = panels
    _tokens(tokens, heat)
    _best(best, outlook)
    _speeds(by_gamma, outlook, heat)
    _surface(surface, outlook)
    for panel in panels:
        panel.tick_params(colors=INK, labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)


def _tokens(panel: Axes, heat: HeatReport | None) -> None:
    """Plot figure 2: tokens of a pass by α, with the measured points of the pair."""
    for gamma, colour in zip(GAMMAS, COLOURS, strict=True):
        curve = [expected_tokens(alpha, gamma) for alpha in ALPHAS]
        panel.plot(ALPHAS, curve, color=colour, label=f"γ = {gamma}")
        for point in heat.points if heat else ():
            if point.gamma == gamma and heat:
                _point(panel, heat.alpha.mid, point.tokens, colour)
    _label(panel, "Tokens of a pass", "α", "")
    panel.legend(fontsize=7, frameon=False)


def _point(panel: Axes, x: float, y: Interval, colour: str) -> None:
    """Draw an interval with its middle."""
    below = max(0.0, y.mid - y.low)
    above = max(0.0, y.high - y.mid)
    panel.errorbar(
        [x],
        [y.mid],
        yerr=[[below], [above]],
        fmt="o",
        color=colour,
        capsize=2,
        markersize=4,
    )


def _dot(panel: Axes, x: float, y: float, colour: str) -> None:
    panel.plot([x], [y], "o", color=colour, markersize=5)


def _best(panel: Axes, outlook: Outlook) -> None:
    """Plot figure 3: the best γ by α, at several costs."""
    for cost, colour in zip(COSTS, COLOURS, strict=False):
        _best_curve(panel, PassCost(token=cost), f"c = {cost:g}", colour, "-")
    _best_curve(panel, outlook.cost, "this cost", INK, "--")
    _dot(panel, outlook.alpha, outlook.best, INK)
    panel.set_ylim(0, SHOWN + 1)
    _label(panel, "Best γ", "α", "")
    panel.legend(fontsize=7, frameon=False)


def _best_curve(
    panel: Axes, cost: PassCost, label: str, colour: str, style: str
) -> None:
    best = [best_gamma(speeds(alpha, cost, NODES)) for alpha in ALPHAS]
    panel.step(ALPHAS, best, style, color=colour, label=label, where="mid")


def _speeds(panel: Axes, outlook: Outlook, heat: HeatReport | None) -> None:
    """Plot the speed-up by γ: the formulas, and what was measured."""
    gammas = range(SHOWN + 1)
    free = Outlook(outlook.alpha, PassCost(token=outlook.cost.token))
    theorem = free.speeds[: SHOWN + 1]
    panel.plot(gammas, theorem, color=COLOURS[0], label="theorem 3.8")
    if heat:
        priced = outlook.speeds[: SHOWN + 1]
        panel.plot(gammas, priced, color=COLOURS[1], label="measured costs")
        _measured(panel, heat)
    panel.axhline(1, color=LOSS, linewidth=0.8, linestyle=":")
    panel.set_ylim(bottom=0)
    _label(panel, "Speed over plain decoding", "γ", "")
    panel.legend(fontsize=7, frameon=False)


def _measured(panel: Axes, heat: HeatReport) -> None:
    """Plot the speed-up with measured tokens, and the speed-up of the clock."""
    panel.plot(
        [point.gamma for point in heat.points],
        [point.with_tokens for point in heat.points],
        color=COLOURS[2],
        label="measured costs and tokens",
    )
    panel.plot([], [], "o", color=INK, label="by the clock")
    for point in heat.points:
        if point.speed:
            _point(panel, point.gamma, point.speed, INK)


def _surface(panel: Axes, outlook: Outlook) -> None:
    """Plot the speed-up over α and γ, with the line where drafting loses."""
    gammas = range(1, SHOWN + 1)
    values = [
        [
            speed_up(expected_tokens(alpha, gamma), gamma, outlook.cost)
            for gamma in gammas
        ]
        for alpha in ALPHAS
    ]
    field = (list(gammas), ALPHAS, values)
    filled = panel.contourf(*field, LEVELS, cmap="viridis")
    panel.contour(*field, [1.0], colors=LOSS, linewidths=2)
    if outlook.best:
        _dot(panel, outlook.best, outlook.alpha, "white")
    if panel.figure:
        panel.figure.colorbar(filled, ax=panel)
    _label(panel, "Speed-up; red: drafting loses below", "γ", "α")


def _label(panel: Axes, title: str, x: str, y: str) -> None:
    panel.set_title(title, fontsize=9, color=INK)
    panel.set_xlabel(x, fontsize=8, color=INK)
    panel.set_ylabel(y, fontsize=8, color=INK)
    panel.grid(color=FAINT, linewidth=0.5)
