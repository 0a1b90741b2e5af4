"""Plot of a training: acceptance by depth, and metrics by step. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from foreword_train.log import Row
from foreword_train.report.metrics import ALL, TrainReport

COLOURS = ("#2a6f97", "#c8553d", "#5b8c5a")
INK, FAINT = "#22303c", "#d9dee3"


def draw(report: TrainReport, rows: Sequence[Row], path: Path) -> None:
    """Write a PNG: acceptance by depth, and acceptance and loss by step."""
    figure = Figure(figsize=(10, 3.6), dpi=150)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _depths(left, report)
    _steps(right, rows)
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(colors=INK, labelsize=8)
        panel.grid(color=FAINT, linewidth=0.6)
    figure.tight_layout()
    figure.savefig(path, format="png")


def _depths(panel: Axes, report: TrainReport) -> None:
    """Plot all domains together in colour with intervals, each faintly behind."""
    heats = sorted({row.temperature for row in report.metrics})
    for row in report.metrics:
        colour = COLOURS[heats.index(row.temperature) % len(COLOURS)]
        depths = range(1, len(row.acceptance) + 1)
        mids = [value.mid for value in row.acceptance]
        if row.domain != ALL:
            panel.plot(depths, mids, color=colour, alpha=0.18, linewidth=1)
            continue
        ends = [
            [v.mid - v.low for v in row.acceptance],
            [v.high - v.mid for v in row.acceptance],
        ]
        ends = [[max(0.0, length) for length in side] for side in ends]
        label = f"temperature {row.temperature:g}"
        panel.errorbar(
            depths,
            mids,
            yerr=ends,
            color=colour,
            capsize=3,
            marker="o",
            markersize=4,
            label=label,
        )
    panel.set(
        ylim=(0, 1), xlabel="depth of the draft token", title="draft tokens accepted"
    )
    panel.set_xticks(range(1, 1 + max(len(row.acceptance) for row in report.metrics)))
    panel.legend(frameon=False, fontsize=8)


def _steps(panel: Axes, rows: Sequence[Row]) -> None:
    measured = [row for row in rows if row.held_out]
    for colour, name in zip(COLOURS, ("acceptance", "agreement"), strict=False):
        points = [row for row in measured if name in row.held_out]
        panel.plot(
            [r.step for r in points],
            [r.held_out[name] for r in points],
            color=colour,
            label=f"{name}, held out",
        )
    panel.set(ylim=(0, 1), xlabel="step", title="training")
    losses = panel.twinx()
    learnt = [(row.step, row.loss) for row in rows if row.loss is not None]
    losses.plot(
        [step for step, _ in learnt],
        [loss for _, loss in learnt],
        color=INK,
        alpha=0.35,
        linewidth=0.8,
    )
    losses.set_ylabel("loss", color=INK, fontsize=8)
    losses.spines["top"].set_visible(False)
    panel.legend(frameon=False, fontsize=8, loc="lower right")
