"""The plot and the table as one HTML file that needs nothing else: the plot is SVG, written here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from octavo.bench.report import Json
from octavo.sweep.marks import COLOURS, SHAPES, X_TITLE, Y_TITLE, Axis, Mark, Panel, panels

WIDTH, HEIGHT = 560, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 48
SIZE = 5.0  # of a mark
LINE, LETTER = 13.0, 6.6  # of the labels' text
Box = tuple[float, float, float, float]  # left, top, right, bottom

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --faint: #8884; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #161616; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1rem; margin: 0 0 .3rem; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1.5rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font: 11px system-ui, sans-serif; }
pre { overflow-x: auto; font: 12px/1.4 ui-monospace, monospace; }
.legend span { margin-right: 1.2rem; white-space: nowrap; } .legend svg { width: 14px; height: 14px; vertical-align: -2px; }
"""


def page(rows: Sequence[Json], sentences: Sequence[str], table: Sequence[str], about: Sequence[str]) -> str:
    """The whole file. about: what was swept, in lines. table: as for the terminal."""
    drawn = panels(rows)
    layouts = dict.fromkeys(mark.setup.layout for panel in drawn for mark in panel.marks)
    legend = "".join(
        f'<span><svg viewBox="-7 -7 14 14">{_shape(layout, 0, 0)}</svg> {escape(layout)}</span>' for layout in layouts
    )
    figures = "".join(f"<figure><h2>{escape(panel.title)}</h2>{svg(panel)}</figure>" for panel in drawn)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>octavo sweep</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>KV memory against p99 latency</h1>\n"
        + "".join(f"<p>{escape(line)}</p>\n" for line in about)
        + f'<p class="legend">{legend} numbers are block sizes; bars: lowest and highest round</p>\n'
        + f'<div class="panels">{figures}</div>\n'
        + "".join(f"<p>{escape(sentence)}</p>\n" for sentence in sentences)
        + f"<pre>{escape(chr(10).join(table))}</pre>\n</body></html>\n"
    )


def svg(panel: Panel) -> str:
    """One panel."""
    x_axis = Axis([mark.x for mark in panel.marks])
    y_axis = Axis([value for mark in panel.marks for value in (mark.low, mark.high)])
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + width * x_axis.at(x), TOP + height * (1 - y_axis.at(y))

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(panel.title)}: {Y_TITLE} against {X_TITLE}">']
    for tick in x_axis.ticks():
        x = LEFT + width * x_axis.at(tick)
        parts.append(f'<path d="M{x:.1f} {TOP}V{TOP + height}" stroke="var(--faint)"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + height + 16}" text-anchor="middle">{tick:g}</text>')
    for tick in y_axis.ticks():
        y = TOP + height * (1 - y_axis.at(tick))
        parts.append(f'<path d="M{LEFT} {y:.1f}H{LEFT + width}" stroke="var(--faint)"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    x_scale, y_scale = (", log scale" if axis.log else "" for axis in (x_axis, y_axis))
    parts.append(f'<text x="{LEFT + width / 2}" y="{HEIGHT - 8}" text-anchor="middle">{X_TITLE}{x_scale}</text>')
    parts.append(f'<text transform="translate(14 {TOP + height / 2}) rotate(-90)" text-anchor="middle">{Y_TITLE}{y_scale}</text>')
    for curve in panel.curves:
        points = " ".join("{:.1f},{:.1f}".format(*place(mark.x, mark.y)) for mark in curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[curve[0].setup.layout]}" stroke-opacity=".45"/>')
    taken: list[Box] = []
    for mark in panel.marks:
        x, y = place(mark.x, mark.y)
        taken.append((x - SIZE, y - SIZE, x + SIZE, y + SIZE))
    parts += [
        _draw(mark, *place(mark.x, mark.y), place(mark.x, mark.low)[1], place(mark.x, mark.high)[1], taken)
        for mark in panel.marks
    ]
    return "".join(parts) + "</svg>"


def _draw(mark: Mark, x: float, y: float, low: float, high: float, taken: list[Box]) -> str:
    colour = COLOURS[mark.setup.layout]
    parts = [
        f"<g><title>{escape(mark.text)}</title>",
        f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{colour}"/>',
        _shape(mark.setup.layout, x, y),
    ]
    spot = _spot(x, y, len(mark.label) * LETTER, taken)
    if spot is not None:
        parts.append(f'<text x="{spot[0]:.1f}" y="{spot[3] - 3:.1f}">{escape(mark.label)}</text>')
        taken.append(spot)
    return "".join(parts) + "</g>"


def _spot(x: float, y: float, width: float, taken: list[Box]) -> Box | None:
    """Where a label hides nothing; None where there is no such place: then only the pointer shows it."""
    for left, top in (
        (x + SIZE + 3, y - LINE / 2), (x - SIZE - 3 - width, y - LINE / 2), (x - width / 2, y - SIZE - LINE),
        (x - width / 2, y + SIZE), (x + SIZE, y - LINE - 2), (x + SIZE, y + 2),
        (x - width - SIZE, y - LINE - 2), (x - width - SIZE, y + 2),
    ):  # fmt: skip
        box = (left, top, left + width, top + LINE)
        inside = box[0] > LEFT and box[2] < WIDTH and box[1] > TOP and box[3] < HEIGHT - BOTTOM
        if inside and not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
            return box
    return None


def _shape(layout: str, x: float, y: float) -> str:
    colour, s = COLOURS[layout], SIZE
    kind = SHAPES[layout]
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{s}" fill="{colour}"/>'
    corners = {
        "square": ((-s, -s), (s, -s), (s, s), (-s, s)),
        "diamond": ((0, -1.3 * s), (1.3 * s, 0), (0, 1.3 * s), (-1.3 * s, 0)),
        "triangle": ((0, -1.2 * s), (1.2 * s, s), (-1.2 * s, s)),
    }[kind]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" fill="{colour}"/>'
