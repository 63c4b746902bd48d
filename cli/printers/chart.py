"""Charts of a simulation: text for a terminal, SVG for a file."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import cycle
from typing import Final

Curves = Mapping[str, Sequence[float]]
"""By policy: the percentage of cards allocated, indexed by the percentage of arrived load."""

_MARKS: Final = "*o+x#@%&"
_COLOURS: Final = ("#1f77b4", "#ff7f0e", "#7f7f7f", "#2ca02c", "#d62728", "#9467bd", "#8c564b")
_FROM_PERCENT: Final = 70
_WIDE, _HIGH, _EDGE = 720, 420, 60


def text_chart(curves: Curves, *, width: int = 61, height: int = 16) -> Iterator[str]:
    """Yield the lines of a chart from 70 % load on, where the curves begin to differ."""
    low, high = _range(curves)
    last = max(len(curve) for curve in curves.values()) - 1
    grid = [[" "] * width for _ in range(height)]
    for mark, curve in zip(cycle(_MARKS), curves.values(), strict=False):
        for column in range(width):
            load = _FROM_PERCENT + (last - _FROM_PERCENT) * column / (width - 1)
            value = curve[min(max(round(load), 0), len(curve) - 1)]
            row = round((high - value) / (high - low) * (height - 1))
            if 0 <= row < height:
                grid[row][column] = mark
    for number, cells in enumerate(grid):
        value = high - (high - low) * number / (height - 1)
        yield f"{value:5.1f} % │{''.join(cells).rstrip()}"
    yield "        └" + "─" * width
    left, right = f"{_FROM_PERCENT} % load", f"{last} %"
    yield "         " + left + right.rjust(width - len(left))
    legend = zip(cycle(_MARKS), curves, strict=False)
    yield "         " + "   ".join(f"{mark} {name}" for mark, name in legend)


def svg_chart(curves: Curves, *, title: str) -> str:
    """Return the curves as an SVG image with axes and a legend."""
    low, high = _range(curves)
    last = max(len(curve) for curve in curves.values()) - 1

    def across(load: float) -> float:
        return _EDGE + (_WIDE - 2 * _EDGE) * (load - _FROM_PERCENT) / (last - _FROM_PERCENT)

    def down(value: float) -> float:
        return _EDGE + (_HIGH - 2 * _EDGE) * (high - value) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {_HIGH}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDE}" height="{_HIGH}" fill="white"/>',
        f'<text x="{_EDGE}" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="{_WIDE / 2:.0f}" y="{_HIGH - 12}" text-anchor="middle">arrived load, % of all '
        "cards</text>",
        f'<text x="14" y="{_EDGE - 14}">allocated, %</text>',
    ]
    for load in range(_FROM_PERCENT, last + 1, 10):
        x = across(load)
        parts.append(
            f'<path d="M{x:.1f} {_EDGE}V{_HIGH - _EDGE}" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="{_HIGH - _EDGE + 18}" text-anchor="middle">{load}</text>'
        )
    for step in range(5):
        value = low + (high - low) * step / 4
        y = down(value)
        parts.append(
            f'<path d="M{_EDGE} {y:.1f}H{_WIDE - _EDGE}" stroke="#ddd"/>'
            f'<text x="{_EDGE - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.1f}</text>'
        )
    legend = zip(cycle(_COLOURS), curves.items(), strict=False)
    for number, (colour, (name, curve)) in enumerate(legend):
        loads = range(_FROM_PERCENT, len(curve))
        points = " ".join(f"{across(load):.1f},{down(curve[load]):.1f}" for load in loads)
        y = _HIGH - _EDGE - 14 - 18 * (len(curves) - 1 - number)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<path d="M{_WIDE - _EDGE - 130} {y - 4}h24" stroke="{colour}" stroke-width="3"/>'
            f'<text x="{_WIDE - _EDGE - 100}" y="{y}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _range(curves: Curves) -> tuple[float, float]:
    values = [value for curve in curves.values() for value in curve[_FROM_PERCENT:]]
    low, high = min(values, default=0.0), max(values, default=100.0)
    return (low, high) if high > low else (low - 1.0, high + 1.0)
