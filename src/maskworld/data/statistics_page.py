"""The statistics of a data set as a page to look at, and as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from maskworld.data.statistics import Group, Statistics
from maskworld.report_style import STYLE

if TYPE_CHECKING:
    from rich.table import Table

PAGE_FILE = "stats.html"
_MORE = """
.amount { display: grid; grid-template-columns: minmax(16ch, 34%) 1fr max-content; gap: 3px 14px; font-size: 14px;
  align-items: center; margin: 10px 0; }
.amount i { display: block; height: 11px; border-radius: 2px; background: var(--first); min-width: 1px; }
.amount .bad { background: var(--second); }
.amount span { overflow-wrap: anywhere; }
.histogram { width: 100%; height: auto; margin-top: 12px; }
.histogram rect { fill: var(--first); }
.histogram text { font-size: 12.5px; }
"""
_HEADS = (
    "", "trajectories", "steps", "steps each", "characters of an observation", "error", "empty", "truncated", "cut",
    "revealed",
)  # fmt: skip
_SHORT_HEADS = ("", "traj.", "steps", "each", "characters", "error", "empty", "trunc.", "cut", "reveal")


def render_page(found: Statistics) -> str:
    """The page: one HTML document without script or outside resource."""
    lost = sum(found.rejected.values())
    parts = [
        f"<header><h1>{escape(found.folder)}</h1>",
        f'<p class="lead">{found.rows_in:,} rows in, {found.trajectories:,} trajectories out, {lost:,} rejected.</p>',
        "</header>",
        "<h2>Splits</h2>",
        _table(found.splits),
        "<h2>Sources</h2>",
        _table(found.sources),
        '<p class="note">Steps of a trajectory at 50, 90 and 100 % of them, characters also at 99 %. Error, empty and '
        "truncated are shares of the steps; cut counts observations that the build shortened; revealed is the share of "
        "named things in observations that no earlier text holds.</p>",
        "<h2>Length of observations</h2>",
        _histogram(found.lengths),
        "<h2>Rejected rows</h2>" + (_amounts(found.rejected, "bad") if lost else "<p>None.</p>"),
        "<h2>Environments</h2>" + _amounts(found.environments),
        "<h2>Model families</h2>" + _amounts(found.model_families),
        "<h2>Licences</h2>" + _amounts(found.licences),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(found.folder)}</title><style>{STYLE}{_MORE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _table(groups: Sequence[Group]) -> str:
    heads = "".join(f"<th>{head}</th>" for head in _HEADS)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(group)) + "</tr>" for group in groups)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cells(group: Group) -> list[str]:
    half, most_of, _, most = group.steps_of_trajectory
    return [
        group.name,
        f"{group.trajectories:,}",
        f"{group.steps:,}",
        f"{half:,} / {most_of:,} / {most:,}",
        " / ".join(f"{size:,}" for size in group.characters),
        *(f"{count / max(1, group.steps):.1%}" for count in group.outcomes.values()),
        f"{group.cut:,}",
        f"{group.revealed:.0%}",
    ]


def _amounts(amounts: dict[str, int], kind: str = "", most: int = 40) -> str:
    largest = max(amounts.values(), default=1)
    shown = list(amounts.items())[:most]
    rows = "".join(
        f'<span>{escape(name)}</span><i class="{kind}" style="width:{100 * count / largest:.2f}%"></i>'
        f"<span>{count:,}</span>"
        for name, count in shown
    )
    more = f'<p class="note">and {len(amounts) - most} more</p>' if len(amounts) > most else ""
    return f'<div class="amount">{rows}</div>{more}'


def _histogram(lengths: Sequence[tuple[int, int]]) -> str:
    """One bar per doubling of the length."""
    if not lengths:
        return ""
    width, height, bottom = 960, 240, 204
    step = width / len(lengths)
    largest = max(count for _, count in lengths)
    parts = [f'<svg class="histogram" viewBox="0 0 {width} {height}" role="img" aria-label="Observations by length">']
    for place, (bound, count) in enumerate(lengths):
        tall = (bottom - 22) * count / largest
        x, middle = place * step + 2, (place + 0.5) * step
        parts.append(f'<rect x="{x:.1f}" y="{bottom - tall:.1f}" width="{step - 4:.1f}" height="{tall:.1f}"/>')
        parts.append(f'<text x="{middle:.1f}" y="{bottom + 16}" text-anchor="middle">{_short(bound)}</text>')
        if count:
            parts.append(
                f'<text x="{middle:.1f}" y="{bottom - tall - 5:.1f}" text-anchor="middle">{_short(count)}</text>'
            )
    parts.append(f'<text x="{width}" y="{height - 2}" text-anchor="end">characters, at most</text></svg>')
    return "".join(parts)


def _short(number: int) -> str:
    for size, unit in ((1_000_000, "M"), (10_000, "k")):
        if number >= size:
            return f"{number / (1000 if unit == 'k' else size):.3g}{unit}"
    return str(number)


def tables(found: Statistics) -> list[Table]:
    """Splits, sources and rejected rows as rich tables. Steps each at 50, 90 and 100 %, characters also at 99 %."""
    from rich.table import Table

    shown = []
    for title, groups in (("Splits", found.splits), ("Sources", found.sources)):
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for index, head in enumerate(_SHORT_HEADS):
            table.add_column(head, justify="right" if index else "left", no_wrap=True)
        for group in groups:
            table.add_row(*_cells(group))
        shown.append(table)
    if found.rejected:
        table = Table(title="Rejected rows", title_justify="left", box=None, pad_edge=False, show_header=False)
        table.add_column(justify="right")
        table.add_column()
        for kind, count in list(found.rejected.items())[:20]:
            table.add_row(f"{count:,}", kind)
        shown.append(table)
    return shown
