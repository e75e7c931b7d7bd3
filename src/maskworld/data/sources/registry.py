"""Every source by name, and which of them a record belongs to.

A module of this folder that ends in a `SOURCE` is a format: adding one is one file here and its test.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data import sources
from maskworld.data.sources.common.base import Source
from maskworld.errors import DataError


def _found() -> Iterator[Source]:
    for entry in sorted(pkgutil.iter_modules(sources.__path__), key=lambda entry: entry.name):
        if not entry.ispkg and entry.name != __name__.rpartition(".")[2]:
            yield importlib.import_module(f"{sources.__name__}.{entry.name}").SOURCE


SOURCES: dict[str, Source] = {source.name: source for source in _found()}


def source_named(name: str) -> Source:
    """Raises DataError that names the nearest source, or all."""
    if name in SOURCES:
        return SOURCES[name]
    near = difflib.get_close_matches(name, SOURCES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(SOURCES))}"
    raise DataError(f"--source: {name!r} is no source; {hint}")


def detect_source(record: Any, path: Path) -> Source | None:
    """The one source that recognises a record of the file `path`; None where none does.

    Raises DataError where several do: then the data, not a guess, must decide, and `--source` says so.
    """
    found = [source for source in SOURCES.values() if source.matches(record, path)]
    if len(found) > 1:
        names = " and ".join(source.name for source in found)
        raise DataError(f"{path}: looks like {names}; give --source")
    return found[0] if found else None
