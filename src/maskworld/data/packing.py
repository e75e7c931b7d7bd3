"""Documents into rows: which go together, and how many target blocks a row should have room for."""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from maskworld.data.rendering import Document

WINDOW = 4096
"""Documents that are packed together: enough to fill rows well, few enough to hold in memory."""


@dataclass(frozen=True)
class Size:
    """What a document takes from a row, in blocks."""

    blocks: int
    target_blocks: int


def size_of(document: Document) -> Size:
    """What the packer needs to know of a document."""
    return Size(len(document) // document.block_length, document.target_blocks)


def pack_documents(
    documents: Iterable[Document], row_length: int, target_blocks: int, window: int = WINDOW
) -> Iterator[list[Document]]:
    """Rows of documents, packed within each `window` of consecutive documents.

    Every document is in exactly one row; a row holds at most `row_length` tokens (L) and `target_blocks` target
    blocks (K). A pure function of the sequence of documents.

    Raises:
        ValueError: a document is larger than a row; `render_windows` makes none that is.
    """
    documents = iter(documents)
    while some := list(itertools.islice(documents, window)):
        blocks = row_length // some[0].block_length
        for row in pack([size_of(document) for document in some], blocks, target_blocks):
            yield [some[index] for index in row]


@dataclass
class _Room:
    """What is left of an open row."""

    blocks: int
    target_blocks: int
    items: list[int]


def pack(sizes: Sequence[Size], blocks: int, target_blocks: int) -> list[list[int]]:
    """Best fit decreasing: the largest document first, each into the row that it fills up most.

    Args:
        sizes: one per document.
        blocks: L / S, blocks of a row.
        target_blocks: K, target blocks of a row.

    Returns:
        Rows as ascending lists of indices into `sizes`; every index is in exactly one row. Deterministic.
    """
    order = sorted(range(len(sizes)), key=lambda index: (-sizes[index].blocks, -sizes[index].target_blocks, index))
    rows: list[_Room] = []
    open_rows: list[list[int]] = [[] for _ in range(blocks + 1)]  # by free blocks; oldest first
    for index in order:
        size = sizes[index]
        if size.blocks > blocks or size.target_blocks > target_blocks:
            raise ValueError(f"document {index} takes {size}; a row has {blocks} blocks, {target_blocks} for targets")
        chosen = _best_row(open_rows, rows, size)
        if chosen is None:
            chosen = len(rows)
            rows.append(_Room(blocks, target_blocks, []))
        else:
            open_rows[rows[chosen].blocks].remove(chosen)
        room = rows[chosen]
        room.blocks -= size.blocks
        room.target_blocks -= size.target_blocks
        room.items.append(index)
        if room.blocks and room.target_blocks:  # a full row would only be looked at in vain
            insort(open_rows[room.blocks], chosen)
    return [sorted(room.items) for room in rows]


def _best_row(open_rows: list[list[int]], rows: list[_Room], size: Size) -> int | None:
    for candidates in open_rows[size.blocks :]:
        for row in candidates:
            if rows[row].target_blocks >= size.target_blocks:
                return row
    return None


def choose_target_blocks(sizes: Sequence[Size], blocks: int, noisy_copies: int) -> int:
    """K for which training on documents of these sizes computes the fewest positions.

    A row costs L positions in the clean stream and noisy_copies * K * S in the noisy one, used or not: a small K
    wastes little of the noisy stream, but fills up before the row does. The answer is the K with the smallest
    rows(K) * (L / S + noisy_copies * K), and not below what the largest document needs.
    Without noisy copies it is L / S.
    """
    if not sizes:
        return blocks
    sizes = sizes[:WINDOW]
    least_rows = len(pack(sizes, blocks, blocks))
    all_targets = sum(size.target_blocks for size in sizes)

    def cost(rows: int, k: int) -> int:
        return rows * (blocks + noisy_copies * k)

    def lower_bound(k: int) -> int:
        return cost(max(least_rows, -(-all_targets // k)), k)

    best, best_cost = blocks, cost(least_rows, blocks)
    smallest = max(1, max(size.target_blocks for size in sizes))
    for k in sorted(range(smallest, blocks), key=lower_bound):
        if lower_bound(k) >= best_cost:
            break
        cost_here = cost(len(pack(sizes, blocks, k)), k)
        if cost_here < best_cost:
            best, best_cost = k, cost_here
    return best
