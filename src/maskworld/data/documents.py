"""Trajectories into documents for rows, with a count of all that was cut or could not be used."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from maskworld.data.rendering import Document, Unfit, render_windows
from maskworld.data.schema import Trajectory
from maskworld.data.tokenizer_memory import RememberingTokenizer
from maskworld.data.turns import rendered_texts

_BATCH = 1_000_000  # characters that are encoded together
CUTS = {
    "context": "contexts cut in the middle",
    "action": "actions cut in the middle",
    "observation": "observations cut at their end",
    "targets": "observations taught without their end (over K target blocks)",
}
"""What a split counts under `cut`: contexts once for each trajectory, the others once for each step."""


@dataclass
class Losses:
    """What does not reach the rows of a split."""

    file: Path
    """Where steps that fit into no row are written down, beside the rows that break the schema."""
    split: str
    unfit: Counter[str] = field(default_factory=Counter)
    """Reason -> steps."""
    cut: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(CUTS, 0)))
    """A name of CUTS -> how often."""

    def add(self, trajectory: str, documents: Sequence[Document], unfit: Sequence[Unfit]) -> None:
        """Count what one trajectory lost."""
        self.cut["context"] += any(document.context_cut for document in documents)
        for span in (span for document in documents for span in document.steps if span.is_target):
            self.cut["action"] += bool(span.action_cut)
            self.cut["observation"] += bool(span.observation_cut)
            end = span.observation_end if span.observation_cut else span.end
            self.cut["targets"] += span.target_end < end
        for item in unfit:
            self.unfit[item.reason] += 1
            line = {
                "split": self.split,
                "trajectory": trajectory,
                "step": item.step,
                "reason": item.reason,
                "detail": item.detail,
            }
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def make_documents(
    trajectories: Iterable[Trajectory],
    tokenizer: RememberingTokenizer,
    block_length: int,
    row_length: int,
    target_blocks: int | None,
    context: Sequence[str],
    losses: Losses | None = None,
) -> Iterator[Document]:
    """The documents of the trajectories, in order, as `render_windows` makes them; `losses` counts what is lost."""
    for some, texts in _batches(trajectories, context):
        tokenizer.encode_batch(texts)  # on all cores at once; rendering then only remembers
        for trajectory in some:
            documents, unfit = render_windows(trajectory, tokenizer, block_length, row_length, target_blocks, context)
            if losses:
                losses.add(trajectory.id, documents, unfit)
            yield from documents


def _batches(
    trajectories: Iterable[Trajectory], context: Sequence[str]
) -> Iterator[tuple[list[Trajectory], list[str]]]:
    """Consecutive trajectories of about _BATCH characters, and their texts."""
    some, texts, characters = [], [], 0
    for trajectory in trajectories:
        found = rendered_texts(trajectory, context)
        some.append(trajectory)
        texts += found
        characters += sum(map(len, found))
        if characters > _BATCH:
            yield some, texts
            some, texts, characters = [], [], 0
    yield some, texts
