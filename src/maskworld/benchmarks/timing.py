"""Measuring on one core: pinning, the clock, and the matrix-product speed that everything else is divided by.

Nothing here imports jax at the top: the flags that hold XLA to one thread count only before jax is imported.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

ONE_THREAD = ("--xla_cpu_multi_thread_eigen=false", "intra_op_parallelism_threads=1")
_ACCELERATORS = {"jax_cuda12_plugin": "cuda", "jax_cuda13_plugin": "cuda", "libtpu": "tpu"}


@dataclass(frozen=True)
class Conditions:
    """How the clock was read; printed above every table."""

    platform: str
    """`cpu`, `gpu` or `tpu`."""
    one_core: bool
    """Whether the process is held to one core and XLA to one thread."""
    device: str
    huge_pages: bool = False
    """Whether malloc asks for huge pages (GLIBC_TUNABLES=glibc.malloc.hugetlb=1): without, a tenth of a step may go
    into mapping the buffers that XLA returns to the system after each one."""

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds: process CPU time on a CPU, which hardly depends on who else runs; else wall time."""
        return time.process_time if self.platform == "cpu" else time.perf_counter

    def summary(self) -> str:
        """One sentence for the terminal."""
        if self.platform != "cpu":
            return f"{self.device}: wall time, every result waited for"
        held = "one core, one XLA thread" if self.one_core else "NOT held to one core (jax was imported before)"
        pages = "malloc asks for huge pages" if self.huge_pages else "malloc does not ask for huge pages"
        return f"{self.device}: {held}, CPU time of the process, {pages}"


def accelerator_expected() -> str | None:
    """The kind of accelerator that jax would take: what JAX_PLATFORMS says, else whose plugin is installed."""
    asked = os.environ.get("JAX_PLATFORMS", "").split(",")[0]
    if asked:
        return None if asked == "cpu" else asked
    return next((kind for name, kind in _ACCELERATORS.items() if importlib.util.find_spec(name)), None)


def hold_to_one_core() -> bool:
    """Pin this process to one core and XLA to one thread; whether both took effect.

    Does nothing where an accelerator is expected: there the host's threads only feed it.
    """
    if accelerator_expected() is not None:
        return False
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if "jax" in sys.modules:
        return False
    given = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = " ".join([given, *(flag for flag in ONE_THREAD if flag not in given)]).strip()
    return True


def conditions(one_core: bool) -> Conditions:
    """What the first device of this process is. Imports jax."""
    import jax

    device = jax.devices()[0]
    name = _cpu_name() if device.platform == "cpu" else device.device_kind
    huge_pages = "glibc.malloc.hugetlb=1" in os.environ.get("GLIBC_TUNABLES", "")
    return Conditions(device.platform, one_core and device.platform == "cpu", name, huge_pages)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "CPU"


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, each repetition beside the matrix-product speed measured just before and after it."""

    compile_seconds: float
    seconds: tuple[float, ...]
    peaks: tuple[float, ...]
    """FLOP/s of the reference product around each repetition."""

    @property
    def best(self) -> float:
        """Seconds of the quickest repetition: CPU seconds of one core on a CPU, wall-clock seconds elsewhere."""
        return min(self.seconds)

    def over(self, other: Timing) -> float:
        """How often this call fits into the other one's time, median over repetitions that took turns."""
        return statistics.median(theirs / ours for ours, theirs in zip(self.seconds, other.seconds, strict=True))

    @property
    def per_peak(self) -> float:
        """Seconds x peak, FLOPs that the reference product would have done in the time of one call.

        The median over repetitions: a neighbour that slows the core slows both, so it cancels.
        """
        return statistics.median(s * p for s, p in zip(self.seconds, self.peaks, strict=True))


def measure(
    prepare: Callable[[], Callable[[], Any]], repeats: int, where: Conditions, peak: Callable[[], float]
) -> Timing:
    """Time `prepare()()`: once to compile and warm up, then `repeats` times, `peak()` between all of them.

    Args:
        prepare: returns the call; the call returns arrays that are waited for.
        peak: FLOP/s of the reference product now.
    """
    return measure_in_turn([prepare], repeats, where, peak)[0]


def measure_in_turn(
    prepares: Sequence[Callable[[], Callable[[], Any]]], repeats: int, where: Conditions, peak: Callable[[], float]
) -> list[Timing]:
    """`measure` of several calls that take turns, so that what slows the core for a while slows all of them."""
    import jax

    def timed(call) -> float:
        begun = where.clock()
        jax.block_until_ready(call())
        return where.clock() - begun

    calls, warm = [], []
    for prepare in prepares:
        begun = where.clock()
        calls.append(prepare())
        jax.block_until_ready(calls[-1]())
        warm.append(where.clock() - begun)
    seconds: list[list[float]] = [[] for _ in calls]
    peaks: list[list[float]] = [[] for _ in calls]
    before = peak()
    for _ in range(repeats):
        for index, call in enumerate(calls):
            seconds[index].append(timed(call))
            after = peak()
            peaks[index].append((before + after) / 2)
            before = after
    return [
        Timing(max(first - min(times), 0.0), tuple(times), tuple(around))
        for first, times, around in zip(warm, seconds, peaks, strict=True)
    ]


def matmul_speed(shape: tuple[int, int, int], where: Conditions) -> Callable[[], float]:
    """A function that measures FLOP/s of one XLA float32 product [m, k] @ [k, n], best of three."""
    import jax
    import jax.numpy as jnp

    m, k, n = shape
    left, right = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate(((m, k), (k, n))))
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(left, right))
    # Small products repeat until the clock's ticks no longer matter.
    calls = max(1, int(1.5e10 / (2 * m * k * n)))

    def speed() -> float:
        times = []
        for _ in range(3):
            begun = where.clock()
            for _ in range(calls):
                product(left, right).block_until_ready()
            times.append((where.clock() - begun) / calls)
        return 2 * m * k * n / min(times)

    return speed
