"""Pictures of the report as inline SVG: loss curves, intervals, and an observation being denoised. Pure text out.

Colours are CSS variables of the page (`report_style`), so that a picture follows its light and dark themes.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from html import escape

from maskworld.evaluation.predictions import Commit, Prediction

Point = tuple[float, float]

CHARACTER = 7.3
"""Width in pixels of one monospaced character at the picture's 12 px."""
_ROW, _CELL, _LABEL = 25, 19, 118
_MOST_POINTS, _MOST_DOTS = 500, 40


def number(value: float) -> str:
    """A number for the eye, to three significant digits where it is no small whole one: 950, 9,820, 12.3k, 4.56M."""
    for size, unit, least in ((1e9, "B", 1), (1e6, "M", 1), (1e3, "k", 10)):
        if abs(value) >= 0.9995 * size * least:
            scaled = value / size
            return f"{scaled:.3g}{unit}" if abs(scaled) < 999.5 else f"{scaled:,.0f}{unit}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) inside [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten inside [low, high]; evenly spaced numbers where that gives fewer than three."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]
    return ticks if len(ticks) >= 3 else nice_ticks(low, high, 4)


def thin(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """At most `most` points: averages of equal runs, so that a thinned curve keeps its level."""
    if len(points) <= most:
        return list(points)
    run = -(-len(points) // most)
    groups = [points[i : i + run] for i in range(0, len(points), run)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def loss_chart(curves: Sequence[tuple[str, Sequence[Point]]], tokens_per_step: float | None = None) -> str:
    """Loss on a logarithmic axis against steps (below) and, where known, tokens (above).

    Args:
        curves: (name, [(step, loss), ...]) each; values that are not finite and positive are left out.
        tokens_per_step: tokens the model has seen per optimizer step.
    """
    width, height = 960, 330
    left, right, top, bottom = 52, width - 128, 40, height - 44
    curves = [(name, [(x, y) for x, y in points if math.isfinite(y) and y > 0]) for name, points in curves]
    curves = [(name, points) for name, points in curves if points]
    if not curves:
        return ""
    last = max(max(x for x, _ in points) for _, points in curves) or 1
    low, high = (f(f(y for _, y in points) for _, points in curves) for f in (min, max))
    low, high = low / 1.08, high * 1.08

    def at_x(step: float) -> float:
        return left + (right - left) * step / last

    def at_y(loss: float) -> float:
        return bottom - (bottom - top) * math.log(loss / low) / math.log(high / low)

    parts = [_svg(width, height, "loss", "Loss of training and validation against optimizer steps and tokens")]
    for tick in log_ticks(low, high):
        y = at_y(tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:.3g}</text>')
    axes = [(1.0, bottom, 18, "optimizer steps", bottom + 37)]
    if tokens_per_step:
        axes.append((tokens_per_step, top, -8, "tokens seen", top - 26))
    for scale, y, offset, name, name_y in axes:
        parts.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>')
        for tick in nice_ticks(0, last * scale):
            x = at_x(tick / scale)
            parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + math.copysign(4, offset)}"/>')
            parts.append(f'<text class="tick" x="{x:.1f}" y="{y + offset}" text-anchor="middle">{number(tick)}</text>')
        parts.append(f'<text class="name" x="{right}" y="{name_y}" text-anchor="end">{name}</text>')
    ends = _apart([at_y(points[-1][1]) for _, points in curves], 17)
    for index, ((name, points), end) in enumerate(zip(curves, ends, strict=True)):
        line = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in thin(points))
        parts.append(f'<polyline class="curve c{index}" points="{line}"/>')
        if len(points) <= _MOST_DOTS:
            dots = (f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="2.6"/>' for x, y in points)
            parts.append(f'<g class="dots c{index}">{"".join(dots)}</g>')
        text = f"{escape(name)} {points[-1][1]:.3g}"
        parts.append(f'<text class="label c{index}" x="{right + 9}" y="{end + 4:.1f}">{text}</text>')
    return "".join(parts) + "</svg>"


def _apart(values: Sequence[float], distance: float) -> list[float]:
    """The values moved so that neighbours are at least `distance` apart, each as little as a pass downwards needs."""
    moved = list(values)
    order = sorted(range(len(values)), key=lambda i: values[i])
    for before, after in zip(order, order[1:], strict=False):
        moved[after] = max(moved[after], moved[before] + distance)
    return moved


def interval_bar(value: float, low: float, high: float, emphasis: bool = False) -> str:
    """A share in [0, 1] as a dot on its interval, over a line that spans 0 to 1."""
    width, middle = 132, 8

    def at(share: float) -> float:
        return 4 + (width - 8) * min(max(share, 0.0), 1.0)

    kind = "bar strong" if emphasis else "bar"
    return (
        f'<svg class="{kind}" width="{width}" height="16" viewBox="0 0 {width} 16" aria-hidden="true">'
        f'<line class="span" x1="4" x2="{width - 4}" y1="{middle}" y2="{middle}"/>'
        f'<line class="interval" x1="{at(low):.1f}" x2="{at(high):.1f}" y1="{middle}" y2="{middle}"/>'
        f'<circle cx="{at(value):.1f}" cy="{middle}" r="3.6"/></svg>'
    )


def visible(token: str) -> str:
    """A token as it stands in the picture: line breaks and tabs as signs, the outer spaces left to the layout."""
    if token == "<end>":
        return "end"
    shown = token.replace("\n", "↵").replace("\t", "⇥").replace("\r", "␍")
    return shown.strip(" ") or "␣"


def text_width(text: str) -> float:
    """Pixels of a monospaced text; East Asian wide characters take two columns, combining ones none."""
    columns = 0
    for character in text:
        if not unicodedata.combining(character):
            columns += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return columns * CHARACTER


def denoising_picture(prediction: Prediction) -> str:
    """One row per denoising step, one column per position: masks, what each step committed, what was there before.

    The shade of a fresh commit is the denoiser's confidence in it. Empty text if the prediction has no trace.
    """
    columns = _columns(prediction)
    if not columns:
        return ""
    tokens = {commit.position: commit for step in prediction.trace for commit in step}
    block_of, blocks = _block_numbers(prediction, len(columns))
    width = columns[-1][0] + columns[-1][1] + 34
    height = _ROW * (len(prediction.trace) + 2) + 12
    parts = [_svg(width, height, "denoising", "An observation being denoised step by step", fixed=True)]
    for start in prediction.block_starts:
        if 0 < start < len(columns):
            x = columns[start][0] - 6
            parts.append(f'<line class="block" x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="{height - _ROW - 8}"/>')
    done: set[int] = set()
    steps_in_block: dict[int, int] = {}
    for row, step in enumerate(({}, *prediction.trace)):
        now = {commit.position: commit for commit in step}
        block = max((block_of[p] for p in now), default=0)
        if row:
            steps_in_block[block] = steps_in_block.get(block, 0) + 1
        label = f"block {block + 1}, step {steps_in_block[block]}" if row else "start"
        y = 4 + row * _ROW
        parts.append(f'<text class="row" x="{_LABEL - 12}" y="{y + 14}" text-anchor="end">{label}</text>')
        for position, (x, wide) in enumerate(columns):
            if position in now:
                parts.append(_fresh(now[position], x, y, wide))
            elif position in done:
                parts.append(_text(visible(tokens[position].token), x, y, wide, "old"))
            else:
                state = "mask" if block_of[position] == block else "later"
                parts.append(f'<rect class="{state}" x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{_CELL}" rx="3"/>')
        if now:
            parts.append(f'<text class="count" x="{width - 4:.1f}" y="{y + 14}" text-anchor="end">{len(now)}</text>')
        done |= now.keys()
    y = 10 + _ROW * (len(prediction.trace) + 1)
    parts.append(f'<line class="axis" x1="{_LABEL}" x2="{width - 34:.1f}" y1="{y - 5}" y2="{y - 5}"/>')
    parts.append(f'<text class="row" x="{_LABEL - 12}" y="{y + 14}" text-anchor="end">result</text>')
    for position, (x, wide) in enumerate(columns):
        kind = "end" if tokens[position].token == "<end>" else "final"
        parts.append(_text(visible(tokens[position].token), x, y, wide, kind))
    return "".join(parts) + "</svg>"


def picture_width(prediction: Prediction) -> float:
    """Pixels that `denoising_picture` needs; 0 without a trace."""
    columns = _columns(prediction)
    return columns[-1][0] + columns[-1][1] + 34 if columns else 0.0


def _columns(prediction: Prediction) -> list[tuple[float, float]]:
    """(left edge, width) of every position from 0 on; none if the trace is absent or has holes."""
    commits = sorted((c for step in prediction.trace for c in step), key=lambda c: c.position)
    if [c.position for c in commits] != list(range(len(commits))):
        return []
    columns: list[tuple[float, float]] = []
    x = float(_LABEL)
    for commit in commits:
        if columns:
            joined = not commit.token[:1].isspace()  # the rest of a word, or a sign that follows it
            x += 13 if commit.position in prediction.block_starts else 1 if joined else 5
        wide = max(text_width(visible(commit.token)), 2 * CHARACTER) + 6
        columns.append((x, wide))
        x += wide
    return columns


def _block_numbers(prediction: Prediction, count: int) -> tuple[list[int], int]:
    """The block of every position, counted from 0 at the first generated one, and how many there are."""
    numbers, block = [], 0
    for position in range(count):
        if position > 0 and position in prediction.block_starts:
            block += 1
        numbers.append(block)
    return numbers, block + 1


def _fresh(commit: Commit, x: float, y: float, wide: float) -> str:
    shade = 0.12 + 0.78 * min(max(commit.confidence, 0.0), 1.0) ** 2
    title = f"{commit.token!r} committed with confidence {commit.confidence:.3f}"
    return (
        f"<g><title>{escape(title)}</title>"
        f'<rect class="fresh" style="fill-opacity:{shade:.2f}" x="{x:.1f}" y="{y}" width="{wide:.1f}" '
        f'height="{_CELL}" rx="3"/>' + _text(visible(commit.token), x, y, wide, "new") + "</g>"
    )


def _text(text: str, x: float, y: float, wide: float, kind: str) -> str:
    middle = x + wide / 2
    return f'<text class="token {kind}" x="{middle:.1f}" y="{y + 14}" text-anchor="middle">{escape(text)}</text>'


def _svg(width: float, height: float, kind: str, title: str, fixed: bool = False) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" ' if fixed else ""
    return f'<svg class="{kind}" {size}viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">'
