"""The chart of docs/numbers.md: speed by method, at two temperatures, by machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from website.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE = "docs/pictures/numbers.svg"
RUNS = ("350m-amx", "350m-avx2")
"""One run a machine."""
METHODS = {
    "lm": "Foreword, draft model",
    "ngram": "Foreword, prompt lookup",
    "plain": "Foreword, plain",
    "transformers.assisted": "transformers, draft model",
    "transformers.lookup": "transformers, prompt lookup",
    "transformers.generate": "transformers, plain",
}
FIGURE = "speedup_over_generate"
COLORS = {0: "#2f6fb0", 1: "#d9822b"}
"""Temperature -> colour; both are legible without colour vision."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "foreword",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
BAR = 0.38
"""Height of a bar; two of them share a method's line."""


def is_current(picture: Path, runs: Mapping[str, Run]) -> bool:
    """Return whether the picture was drawn from these runs, by this code."""
    if not any(name in runs for name in RUNS):
        return True
    if not picture.exists():
        return False
    return _digest(runs) in picture.read_text(encoding="utf-8")


def draw(picture: Path, runs: Mapping[str, Run]) -> None:
    """Draw the chart; its description holds a digest of the runs."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    shown = [runs[name] for name in RUNS if name in runs]
    with mpl.rc_context(STYLE):
        figure, grid = plt.subplots(
            1,
            len(shown),
            figsize=(8.4, 3.6),
            sharey=True,
            sharex=True,
            squeeze=False,
            layout="constrained",
        )
        for axes, run in zip(grid[0], shown, strict=True):
            _panel(axes, run)
            axes.set_xlabel("times the speed of transformers' generate")
            axes.set_title(run.short)
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
        # White, because the same picture stands on light and dark pages.
        metadata = {"Date": None, "Description": _digest(runs)}
        figure.savefig(picture, format="svg", facecolor="white", metadata=metadata)
        plt.close(figure)


def _panel(axes: Axes, run: Run) -> None:
    for place, temperature in enumerate(COLORS):
        found = {
            row["name"]: row for row in run.rows if row["temperature"] == temperature
        }
        for line, method in enumerate(METHODS):
            interval = found.get(method, {}).get(FIGURE)
            height = line + (place - 0.5) * BAR
            label = f"temperature {temperature}" if line == 0 else None
            _bar(axes, height, interval, COLORS[temperature], label)
    axes.axvline(1, color="#555555", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(METHODS)), list(METHODS.values()))
    axes.set_ylim(len(METHODS) - 0.5, -0.5)
    axes.margins(x=0.15)


def _bar(
    axes: Axes, height: float, interval: Any, color: str, label: str | None
) -> None:
    """Draw one bar with its interval, and its number to the right."""
    if interval is None:
        return
    low, mid, high = interval if isinstance(interval, list) else [interval] * 3
    low, high = (mid, mid) if low is None else (low, high)
    axes.barh(height, mid, BAR, color=color, label=label)
    axes.hlines(height, low, high, color="#222222", linewidth=0.9)
    axes.annotate(
        f"{mid:.1f}",
        (high, height),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
    )


def _digest(runs: Mapping[str, Run]) -> str:
    """Return a digest of what is drawn and of the code that draws it."""
    rows = [[run.short, run.rows] for name in RUNS if (run := runs.get(name))]
    code = Path(__file__).read_text(encoding="utf-8")
    return hashlib.sha256(f"{rows}{code}".encode()).hexdigest()
