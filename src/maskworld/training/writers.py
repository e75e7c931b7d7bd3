"""Where a run's numbers go: `metrics.jsonl` (append-only, one JSON object a line) and TensorBoard events.

Lines: {"step": int, "kind": "train" | "validation" | "event", ...}. A resumed run appends again from its checkpoint, so
a (kind, step) may occur twice; `read_metrics` keeps the last.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any, Literal

from maskworld.errors import DataError
from maskworld.storage import writing

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
Kind = Literal["train", "validation", "event"]


class MetricsWriter:
    """Writes the numbers of one run; on processes other than 0 it writes nothing. Use as a context manager.

    Every line is flushed as it is written, so a kill loses at most the line it cuts in two, and that one is cut off
    when the run goes on.
    """

    def __init__(self, run: Path, *, enabled: bool = True):
        """Open the files in folder `run`, to append.

        Raises:
            StorageError: the folder cannot be written.
        """
        self._enabled = enabled
        self._path = run / METRICS_FILE
        self.torn_line = False
        """Whether the file ended in a line that a kill had cut; it has been removed."""
        if not enabled:
            return
        with writing(run):
            run.mkdir(parents=True, exist_ok=True)
            self.torn_line = _cut_torn_line(self._path)
            self._file = open(self._path, "a", encoding="utf-8")
            self._events = _Events(run / TENSORBOARD_FOLDER)

    def write(self, step: int, kind: Kind, **values: Any) -> None:
        """Append one line. Numbers that are not finite become null in the file: JSON has no NaN.

        Raises:
            StorageError: the files cannot be written; what was written before stays.
        """
        if not self._enabled:
            return
        line = {"step": step, "kind": kind} | {name: _plain(value) for name, value in values.items()}
        with writing(self._path):
            self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
            self._file.flush()
            if kind != "event":
                self._events.scalars(step, {f"{kind}/{name}": value for name, value in values.items()})

    def resumed(self, step: int) -> None:
        """Tell TensorBoard that what it has from beyond `step` is of the run that was stopped."""
        if self._enabled:
            with writing(self._path):
                self._events.restart(step)

    def close(self) -> None:
        """Flush and close both files. Raises StorageError when what is left cannot be written."""
        if self._enabled:
            with writing(self._path):
                try:
                    self._file.close()
                finally:
                    self._events.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        try:
            self.close()
        except Exception:
            if error is None:  # never hide the first error behind what follows from it
                raise


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl` in order, each train or validation step once (its last), every event.

    A last line without its line end, which a kill leaves, is left out.

    Raises:
        DataError: no such file, or a line in it is not one of ours; names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise DataError(f"no {path}: no training has written there") from None
    kept: dict[Any, dict[str, Any]] = {}
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            entry = json.loads(line)
            step, kind = entry["step"], entry["kind"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise DataError(f"{path}:{number}: not a line of metrics: {error}") from error
        key = (number,) if kind == "event" else (kind, step)
        kept.pop(key, None)
        kept[key] = entry
    return list(kept.values())


class _Events:
    """TensorBoard event file, written in this thread: tensorboardX's own writer thread dies on a full disk without a
    word, and then blocks its queue for ever."""

    def __init__(self, folder: Path):
        from tensorboardX.event_file_writer import EventsWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"), filename_suffix=f".{os.getpid()}")
        self._writer.flush()

    def scalars(self, step: int, values: dict[str, Any]) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        for name, value in values.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self._writer.write_event(Event(wall_time=time.time(), step=step, summary=scalar(name, value)))
        self._writer.flush()

    def restart(self, step: int) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        start = SessionLog(status=SessionLog.START)
        self._writer.write_event(Event(wall_time=time.time(), step=step + 1, session_log=start))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _cut_torn_line(path: Path) -> bool:
    """Remove an unfinished last line; whether there was one."""
    size = path.stat().st_size if path.exists() else 0
    if size == 0:
        return False
    with open(path, "rb+") as file:
        whole = size
        while whole > 0:
            start = max(whole - 65536, 0)
            file.seek(start)
            line_end = file.read(whole - start).rfind(b"\n")
            whole = start + line_end + 1
            if line_end >= 0:
                break
        if whole == size:
            return False
        file.truncate(whole)
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
