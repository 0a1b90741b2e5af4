"""Plot of forwards against what the machine allows. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from foreword_lab.bench.plot import FAINT, INK, OURS, THEIRS
from foreword_lab.bench.roofline.limit import NODES, Limit


def draw(results: Sequence[Limit], path: Path) -> None:
    """Write a PNG: by model and context, forwards' time by tokens, and the least."""
    figure = Figure(figsize=(4.2 * len(results), 3.6), dpi=160)
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(results), squeeze=False)[0]
    for panel, run in zip(panels, results, strict=True):
        _panel(panel, run)
    figure.tight_layout()
    figure.savefig(path, format="png")


def _panel(panel: Axes, run: Limit) -> None:
    times = [row.ms.mid for row in run.rows]
    least = [1e3 * run.roof.seconds(row.size, run.context) for row in run.rows]
    panel.plot(NODES, times, "o-", color=OURS, label="measured")
    panel.plot(NODES, least, "--", color=THEIRS, label="least time")
    panel.fill_between(
        NODES,
        [row.ms.low for row in run.rows],
        [row.ms.high for row in run.rows],
        color=OURS,
        alpha=0.2,
        linewidth=0,
    )
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter("{x:g}")
    panel.tick_params(which="both", labelsize=8)
    panel.set_xticks(NODES, [str(nodes) for nodes in NODES])
    panel.set_xlabel("tokens of a forward", color=INK)
    panel.set_ylabel("ms", color=INK)
    panel.set_title(
        f"{run.shape}, {run.context} tokens before", color=INK, fontsize=10, loc="left"
    )
    panel.grid(color=FAINT, linewidth=0.6)
    panel.legend(frameon=False, fontsize=8)
