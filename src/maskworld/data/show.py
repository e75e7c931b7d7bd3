"""One example as a person or as the model sees it: pieces of text of a kind each, targets among them, for a terminal.

Where the terminal has no colours, targets stand between the marks `[[` and `]]`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32

from maskworld.data.build.result import INDEX_FILE
from maskworld.data.rendering import render
from maskworld.data.rows import MANIFEST_FILE, RowReader
from maskworld.data.schema import Trajectory
from maskworld.data.state_text import chat_pieces, corpus_messages
from maskworld.data.tokenizer import CONTROLS, Tokenizer, load_tokenizer
from maskworld.data.trajectories import read_trajectories
from maskworld.errors import ConfigError, DataError

_SCHEMA = 160  # characters
FORMS = ("plain", "document", "corpus", "chat")


class Piece(NamedTuple):
    """A stretch of text of one kind."""

    text: str
    kind: str
    """`context`, `target`, `control` (what the model sees as a control token) or `note` (what it does not see)."""


def find_trajectory(path: str | Path, index: int, split: str = "train") -> Trajectory:
    """Trajectory `index` (from 0) of a file, of a split of a build, or of the files of a split in a folder.

    Raises:
        DataError: there is no such file or trajectory, or its line is damaged.
    """
    path = Path(path)
    if index < 0:
        raise ConfigError(f"index {index} is below 0")
    if not path.exists():
        raise DataError(f"there is no file or folder {path} (looked from {Path.cwd()})")
    if path.is_file():
        files, place = [path], index
    elif (path / INDEX_FILE).is_file():
        files, place = _place_in_build(path, index, split)
    else:
        files = sorted(file for file in path.glob(f"{split}*") if ".jsonl" in file.name)
        place = index
        if not files:
            raise DataError(f"{path}: holds no {split}*.jsonl, .jsonl.gz or .jsonl.zst")
    found = next(itertools.islice(read_trajectories(files), place, None), None)
    if found is None:
        raise DataError(f"{path} holds no trajectory {index} (they count from 0)")
    return found


def _place_in_build(folder: Path, index: int, split: str) -> tuple[list[Path], int]:
    """The file of a build that holds trajectory `index` of a split, and its line."""
    import pyarrow.compute as compute
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(folder / INDEX_FILE, columns=["split", "file", "line"])
    rows = table.filter(compute.equal(table.column("split"), split))
    if index >= len(rows):
        known = ", ".join(sorted(set(table.column("split").to_pylist())))
        raise DataError(f"{folder}: split {split} holds {len(rows)} trajectories; the splits are {known or 'empty'}")
    return [folder / rows.column("file")[index].as_py()], rows.column("line")[index].as_py()


def is_prepared(path: str | Path) -> bool:
    """Whether a folder holds packed rows of `maskworld data prepare`."""
    path = Path(path) / MANIFEST_FILE
    try:
        made = json.loads(path.read_text(encoding="utf-8"))["format"]
    except (OSError, ValueError, TypeError, KeyError):
        return False
    return isinstance(made, str) and made.startswith("maskworld.prepared/")


def shown(trajectory: Trajectory, form: str, step: int | None) -> Iterator[Piece]:
    """A trajectory in one of `FORMS`.

    Args:
        trajectory: to be shown.
        form: `plain` for a person; `document`, what training reads: every observation is a target; `corpus`, the three
            messages of one step in the released corpus's form; `chat`, the same in the Qwen3 chat template.
        step: whose messages; None for the last. `plain` and `document` show all.

    Raises:
        DataError: there is no such step.
    """
    if form == "plain":
        yield from _plain(trajectory)
    elif form == "document":
        yield from _document(trajectory)
    else:
        messages = corpus_messages(trajectory, len(trajectory.steps) - 1 if step is None else step)
        yield from _chat(messages) if form == "chat" else _messages(messages)


def _plain(trajectory: Trajectory) -> Iterator[Piece]:
    where = ", ".join(name for name in (trajectory.environment, trajectory.group) if name)
    yield Piece(f"{trajectory.id}  ({where}; played by {trajectory.player or '?'})\n", "note")
    made = ", ".join(text for text in (trajectory.source, trajectory.licence, trajectory.model_family) if text)
    if made:
        yield Piece(f"({made})\n", "note")
    for title, text in (
        ("initial state", trajectory.initial_state),
        ("task", trajectory.task_context),
        ("tools", "\n".join(_shortened(schema) for schema in trajectory.tool_schemas)),
        ("rules", "\n".join(trajectory.domain_rules)),
        ("directives", "\n".join(trajectory.directives)),
        ("first observation", trajectory.initial_observation),
    ):
        if text:
            yield Piece(f"\n{title}:\n", "note")
            yield Piece(_indented(text, "  "), "context")
    for number, step in enumerate(trajectory.steps, start=1):
        end = ", done" if step.done else ""
        note = f"  [reward {step.reward:g}{end}]" if step.reward or step.done else ""
        yield Piece(f"\n{number}. > ", "note")
        yield Piece(step.action, "context")
        yield Piece(note + ("  [failed]" if step.failed else "") + "\n", "note")
        for directive in step.directives:
            yield Piece(f"     # {directive}\n", "context")
        yield Piece(_indented(step.observation, "     "), "target")
        changed = [f"+{fact}" for fact in step.facts_added] + [f"-{fact}" for fact in step.facts_deleted]
        if changed:
            yield Piece(f"     ({' '.join(changed)})\n", "note")


def _shortened(schema: str) -> str:
    """As much of a tool's schema as a person wants to see of each."""
    return schema if len(schema) <= _SCHEMA else f"{schema[:_SCHEMA]} ..."


def _indented(text: str, by: str) -> str:
    return "".join(f"{by}{line}\n" for line in text.split("\n"))


class _WholeTexts:
    """A vocabulary in which every text is one token, so that a document can be shown without a real one."""

    def __init__(self) -> None:
        self._texts: list[str] = [f"<{name}>" for name in CONTROLS]
        for number, name in enumerate(CONTROLS):
            setattr(self, f"{name}_id", number)

    def encode(self, text: str) -> list[int]:
        self._texts.append(text)
        return [len(self._texts) - 1] if text else []

    def encode_batch(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " n"]]:
        return [np.asarray(self.encode(text), np.int32) for text in texts]

    def piece(self, token: int) -> str:
        return self._texts[token]


def _document(trajectory: Trajectory) -> Iterator[Piece]:
    texts: Any = _WholeTexts()
    document = render(trajectory, texts, block_length=1)
    yield from _tokens(document.tokens.tolist(), document.targets.tolist(), texts.piece, range(len(CONTROLS)))


def _tokens(
    tokens: Iterable[int], targets: Iterable[bool], piece: Callable[[int], str], controls: Iterable[int]
) -> Iterator[Piece]:
    known = set(controls)
    for token, target in zip(tokens, targets, strict=True):
        text = piece(token)
        if token in known:
            yield Piece(f"\n{text} " if text not in ("<end>", "<observation>") else f" {text} ", "control")
        else:
            yield Piece(text, "target" if target else "context")
    yield Piece("\n", "note")


def _messages(messages: list[dict[str, Any]]) -> Iterator[Piece]:
    for message in messages:
        yield Piece(f"--- {message['role']} ---\n", "note")
        yield Piece(f"{message['content']}\n", "target" if message["role"] == "assistant" else "context")


def _chat(messages: list[dict[str, Any]]) -> Iterator[Piece]:
    for text, control in chat_pieces(messages[:-1], prompt=True):
        yield Piece(text, "control" if control else "context")
    yield Piece(messages[-1]["content"], "target")
    yield Piece(chat_pieces(messages[-1:])[2][0], "control")
    yield Piece("\n", "note")


def shown_row(folder: str | Path, index: int, split: str) -> Iterator[Piece]:
    """A packed row as the model reads it: its documents, block by block, with control tokens and targets.

    Raises:
        DataError: the folder is damaged, or there is no such split or row.
    """
    folder = Path(folder)
    tokenizer: Tokenizer = load_tokenizer(folder / "tokenizer")
    reader = RowReader(folder / split)
    if not 0 <= index < len(reader):
        raise DataError(f"{folder / split}: holds {len(reader)} rows; there is no row {index} (they count from 0)")
    (row,) = reader.read([index])
    controls = {getattr(tokenizer, f"{name}_id") for name in CONTROLS}
    size = reader.shape.block_length
    for document in range(1, int(row["document_ids"].max(initial=0)) + 1):
        mine = row["document_ids"] == document
        tokens, targets = row["tokens"][mine], row["targets"][mine]
        yield Piece(f"document {document}: {len(tokens)} tokens, {int(targets.sum())} of them targets\n", "note")
        for start in range(0, len(tokens), size):
            block = slice(start, start + size)
            yield Piece(f"{start // size:5d} | ", "note")
            for token, target in zip(tokens[block].tolist(), targets[block].tolist(), strict=True):
                text = tokenizer.piece(token).replace("\n", "\\n")
                yield Piece(text, "target" if target else "control" if token in controls else "context")
            yield Piece("\n", "note")


def print_pieces(pieces: Iterable[Piece]) -> None:
    """Print them, in colours where the terminal has some."""
    from rich.console import Console
    from rich.text import Text

    styles = {"context": "", "target": "bold green", "control": "cyan", "note": "dim"}
    console = Console(soft_wrap=True, highlight=False)
    plain = console.color_system is None
    for piece in pieces:
        text = piece.text
        if plain and piece.kind == "target" and text.strip():
            body = text.rstrip("\n")
            text = f"[[{body}]]{text[len(body) :]}"
        console.print(Text(text, styles[piece.kind]), end="")
