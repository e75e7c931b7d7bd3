"""Keeps Orbax and TensorStore from telling one failed write dozens of times, with traces: it is told once, by us."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any


def quieten_orbax() -> None:
    """Silence, for this process, what their threads log and print after a failure that is raised anyway."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)
    if not isinstance(sys.excepthook, _WithoutClosedLoops):
        sys.excepthook = _WithoutClosedLoops(sys.excepthook)
    if not isinstance(sys.unraisablehook, _WithoutClosedLoops):
        sys.unraisablehook = _WithoutClosedLoops(sys.unraisablehook)


class _WithoutClosedLoops:
    """An exception hook that passes over one kind: after one write has failed, TensorStore reports the others to an
    event loop that is gone by then."""

    def __init__(self, hook: Callable[..., Any]):
        self._hook = hook

    def __call__(self, *arguments: Any) -> None:
        error = arguments[1] if len(arguments) == 3 else arguments[0].exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            self._hook(*arguments)
