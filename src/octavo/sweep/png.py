"""The plot as a PNG, by matplotlib, which is in the extra ``plot``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from octavo.bench.report import Json
from octavo.sweep.marks import COLOURS, SHAPES, X_TITLE, Y_TITLE, Axis, panels

MISSING = "matplotlib is not installed (pip install 'octavo[plot]')"
MARKERS = {"square": "s", "circle": "o", "diamond": "D", "triangle": "^"}
ACROSS = 2  # panels in a row


def write_png(rows: Sequence[Json], path: Path) -> str | None:
    """Draw it. Returns why there is no file, where there is none."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return MISSING
    drawn = panels(rows)
    if not drawn:
        return "no request was answered"
    across = min(ACROSS, len(drawn))
    down = -(-len(drawn) // across)
    figure = Figure(figsize=(6.4 * across, 4.4 * down), layout="constrained")
    FigureCanvasAgg(figure)
    for number, panel in enumerate(drawn, 1):
        axes = figure.add_subplot(down, across, number)
        for curve in panel.curves:
            axes.plot([m.x for m in curve], [m.y for m in curve], color=COLOURS[curve[0].setup.layout], alpha=0.45, linewidth=1)
        seen = set()
        for mark in panel.marks:
            layout = mark.setup.layout
            axes.errorbar(
                mark.x, mark.y, [[mark.y - mark.low], [mark.high - mark.y]],
                fmt=MARKERS[SHAPES[layout]], color=COLOURS[layout], markersize=5, elinewidth=1,
                label=None if layout in seen else layout,
            )  # fmt: skip
            seen.add(layout)
            axes.annotate(mark.label, (mark.x, mark.y), xytext=(6, 3), textcoords="offset points", fontsize=7)
        if Axis([m.x for m in panel.marks]).log:
            axes.set_xscale("log")
        if Axis([value for m in panel.marks for value in (m.low, m.high)]).log:
            axes.set_yscale("log")
        axes.set(title=panel.title, xlabel=X_TITLE, ylabel=Y_TITLE)
        axes.title.set_fontsize(9)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    return None
