"""Plot of a report: speed-up over plain decoding, with intervals. Needs matplotlib."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from foreword_lab.bench.lineup import OUTSIDE
from foreword_lab.bench.oracle import NAME as ORACLE
from foreword_lab.bench.report import Report, Row

OURS = "#2a6f97"
PREDICTED = "#a9c7d9"
THEIRS = "#b9b4ab"
INK = "#22303c"
FAINT = "#d9dee3"


def draw(report: Report, path: Path) -> None:
    """Write a PNG: one panel for each temperature, one bar for each entry, a line of
    plain decoding at 1.
    """
    temperatures = sorted({row.temperature for row in report.rows})
    figure = Figure(
        figsize=(
            5.6 * len(temperatures),
            0.42 * len(report.rows) / len(temperatures) + 1.9,
        ),
        dpi=160,
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(temperatures), squeeze=False, sharex=True)[0]
    for panel, temperature in zip(panels, temperatures, strict=True):
        _panel(panel, [row for row in report.rows if row.temperature == temperature])
        panel.set_xlim(0, 1.6 * max(row.speedup_over_plain.high for row in report.rows))
        panel.set_title(
            f"temperature {temperature:g}", color=INK, fontsize=11, loc="left"
        )
    figure.suptitle(
        f"Speed-up over plain decoding: {report.target}",
        color=INK,
        fontsize=12,
        x=0.01,
        ha="left",
    )
    machine, versions = report.machine, report.versions
    note = (
        f"{machine.get('gpu', machine['cpu'])}, threads: {machine['threads']} "
        f"· torch {versions['torch']} · 95 % intervals over prompts"
    )
    figure.text(0.01, 0.01, note, color=INK, fontsize=7.5)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(path, format="png")


def _panel(panel: Axes, rows: list[Row]) -> None:
    places = range(len(rows))
    ratios = [row.speedup_over_plain for row in rows]
    ends = [
        [ratio.mid - ratio.low for ratio in ratios],
        [ratio.high - ratio.mid for ratio in ratios],
    ]
    ends = [[max(0.0, length) for length in side] for side in ends]
    colours = [
        THEIRS if row.name in OUTSIDE else PREDICTED if row.name == ORACLE else OURS
        for row in rows
    ]
    panel.barh(places, [ratio.mid for ratio in ratios], color=colours, height=0.66)
    panel.errorbar(
        [ratio.mid for ratio in ratios],
        places,
        xerr=ends,
        fmt="none",
        ecolor=INK,
        elinewidth=1,
        capsize=2,
    )
    for bar, row, ratio in zip(places, rows, ratios, strict=True):
        text = f"  {ratio.mid:.2f}×   {row.tokens_per_second:.0f} tokens/s"
        panel.text(
            max(ratio.high, 1),
            bar,
            text,
            va="center",
            color=INK,
            fontsize=8,
            in_layout=False,
        )
    panel.axvline(1, color=INK, linewidth=0.8, linestyle=":")
    panel.set_yticks(places, [row.name for row in rows], color=INK, fontsize=9)
    panel.invert_yaxis()
    panel.tick_params(axis="both", length=0, labelsize=9, colors=INK)
    for side in ("top", "right", "left", "bottom"):
        panel.spines[side].set_color(FAINT)
        panel.spines[side].set_visible(side == "bottom")
