"""Reader processes: each answers requests for batches of rows. Imports neither jax nor grain.

A plain child process over two pipes, not `multiprocessing`: that would import the parent's main module again in
every child, and with it whatever an experiment file imports (jax among it) or starts.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from maskworld.data.rows import RowReader, stack
from maskworld.errors import DataError


class ReaderProcess:
    """One child that reads batches from a folder of rows, in the order in which they were asked for."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._child = subprocess.Popen(
            [sys.executable, "-m", __name__, os.fspath(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        )

    def ask(self, indices: Sequence[int]) -> None:
        """Ask for one batch; the answer waits in the child until `answer` fetches it."""
        with contextlib.suppress(OSError):  # the child is gone; `answer` says so
            pickle.dump(list(indices), self._child.stdin)
            self._child.stdin.flush()

    def answer(self) -> dict[str, np.ndarray]:
        """The batch that was asked for longest ago.

        Raises:
            DataError: the rows are damaged, or the process has died.
        """
        try:
            result = pickle.load(self._child.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise DataError(
                f"a reader process of {self._folder} died (exit status {self._child.wait()}; out of memory?); "
                "start the run again, with fewer data.workers if it happens again"
            ) from None
        if isinstance(result, DataError):
            raise result
        return result

    def close(self) -> None:
        """Stop the child, whatever it is doing."""
        self._child.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):  # a request that never reached the child cannot be flushed either
                pipe.close()
        self._child.wait()


def serve(folder: Path, requests: Any, answers: Any) -> None:
    """Answer pickled lists of row indices from `requests` with pickled batches to `answers`, until the end."""
    reader: RowReader | None = None
    while True:
        try:
            indices = pickle.load(requests)
        except EOFError:
            return
        try:
            reader = reader or RowReader(folder)
            result: Any = stack(reader.read(indices), len(indices), reader.shape)
        except DataError as error:
            result = error
        pickle.dump(result, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()


def main() -> None:
    """`python -m maskworld.data.reader_process FOLDER`: serve over standard input and output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not end up among the answers
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):  # the parent is gone, or Ctrl-C reached the group
        serve(Path(sys.argv[1]), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
