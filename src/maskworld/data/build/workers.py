"""Independent pieces of work over several processes, in any order. A killed parent takes its workers along."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from maskworld.errors import DataError

_AHEAD = 2  # tasks per worker that are handed out at one time


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_tasks(task: Callable[..., Any], arguments: Iterable[tuple], workers: int) -> Iterator[Any]:
    """Results of `task(*a)` for all a, as they are finished. With one worker it runs in this process.

    Raises whatever a task raises, and DataError where a worker dies.
    """
    if workers == 1:
        for some in arguments:
            yield task(*some)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks of pyarrow and of the bar
    pool = ProcessPoolExecutor(workers, context, initializer=_leave_with_parent, initargs=(os.getpid(),))
    waiting = iter(arguments)
    running = set()
    others = set(multiprocessing.active_children())
    try:
        while True:
            while len(running) < _AHEAD * workers and (some := next(waiting, None)) is not None:
                running.add(pool.submit(task, *some))
            if not running:
                return
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for one in finished:
                yield one.result()
    except BaseException as error:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()  # what is unfinished is done again
        if not isinstance(error, BrokenProcessPool):
            raise
        raise DataError(
            "a worker process died (out of memory?); run the same command again, with fewer --workers or a smaller "
            "--longest_record if it happens again: what is finished is kept"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_with_parent(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, who ends the workers
