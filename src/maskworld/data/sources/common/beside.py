"""Files that lie near a file of trajectories and say more about them: questions, databases, policies.

Each is read once in a process. What is missing or unreadable counts as absent: a trajectory without its neighbours is
poorer, not wrong, and the file itself is reported where it is met.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

_CLIMB = 6
_LARGEST = 64 << 20


def find_beside(path: Path, relative: str) -> Path | None:
    """The file `relative` of the nearest folder above `path` that holds it, at most six folders up."""
    return _found(path.parent, relative)


def text_beside(path: Path, relative: str) -> str:
    """The text of that file; empty where there is none."""
    found = find_beside(path, relative)
    return _text(found) if found else ""


def json_beside(path: Path, relative: str) -> Any:
    """The JSON document of that file; None where there is none. Callers share the value and must not change it."""
    found = find_beside(path, relative)
    return _document(found) if found else None


def lines_beside(path: Path, relative: str) -> tuple[Any, ...]:
    """The values of that JSON Lines file; lines that are no JSON are left out."""
    found = find_beside(path, relative)
    return _lines(found) if found else ()


@lru_cache(maxsize=4096)
def _found(folder: Path, relative: str) -> Path | None:
    for above in (folder, *folder.parents)[:_CLIMB]:
        candidate = above / relative
        if candidate.is_file() and candidate.stat().st_size <= _LARGEST:
            return candidate
    return None


@lru_cache(maxsize=256)
def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


@lru_cache(maxsize=256)
def _document(path: Path) -> Any:
    try:
        return json.loads(_text(path) or "null")
    except (ValueError, RecursionError):
        return None


@lru_cache(maxsize=64)
def _lines(path: Path) -> tuple[Any, ...]:
    return tuple(_values(_text(path)))


def _values(text: str) -> Iterator[Any]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue
