"""Every source by name, and which of them a record belongs to.

A new format is one file here with a `SOURCE`, its module in `_MODULES`, and one test file in `tests/data/sources/`.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from maskworld.data.sources import (
    intercode,
    mini_swe_agent,
    swe_agent,
    tau2_bench,
    tau_bench,
    toolathlon,
    webshop,
)
from maskworld.data.sources.base import Source
from maskworld.errors import DataError

_MODULES = (intercode, mini_swe_agent, swe_agent, tau2_bench, tau_bench, toolathlon, webshop)
SOURCES: dict[str, Source] = {module.SOURCE.name: module.SOURCE for module in _MODULES}


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
