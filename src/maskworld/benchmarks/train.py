"""`maskworld bench train`: what a training step costs on this machine, and what whole trajectories save.

Everything is measured on one core with one thread, in CPU time, beside the speed of this core's float32 matrix
product: machines differ, so speeds are compared per unit of that. Where PyTorch is installed the peers' own step runs
here too (`benchmarks.peer`). On an accelerator the same steps are timed by wall clock and no peer is run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from maskworld.benchmarks import peer
from maskworld.benchmarks.timing import (
    Conditions,
    Timing,
    conditions,
    hold_to_one_core,
    matmul_speed,
    measure,
    measure_in_turn,
)
from maskworld.errors import ConfigError

PARTS = ("step", "doubled", "peer", "trajectories")
LAYOUTS = {"step": "two streams", "doubled": "doubled, dense mask", "peer": "peer in PyTorch"}
PEER = {512: 312.0, 1024: 221.0}
"""SDAR's own training step on the doubled sequence (PyTorch 2.13, eager, SDPA with a mask, batch 4, this model):
clean tokens per core-second."""
PEER_MATMUL = 95.6e9
"""Float32 FLOP/s of torch.mm 2048^3 on the core where the peer was measured."""
TARGETS = {512: 1.3, 1024: 1.6}
TRAJECTORY_TARGET = 4.0
MATMULS = ((2048, 2048, 2048), (4096, 384, 1024), (4096, 1024, 384))
"""Shapes [m, k, n] of the matrix products measured; the first is what everything else is divided by."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """One step at one length; rates are per core-second on a CPU, per second elsewhere."""

    length: int
    rows: int
    timing: Timing
    executed: dict[str, float] | None = None
    """FLOPs by kind, mean over the repetitions; None where they are not counted."""
    useful: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Clean tokens L, padding excluded by construction, per core-second on a CPU and per second elsewhere."""
        return self.rows * self.length / self.timing.best

    @property
    def tokens_per_flop(self) -> float:
        """Clean tokens in the time in which the matrix product does one FLOP: comparable between machines."""
        return self.rows * self.length / self.timing.per_peak

    def share(self, flops: float) -> float:
        """Of the matrix-product speed."""
        return flops / self.timing.per_peak

    def over_peer(self) -> float | None:
        """Against the recorded peer, each per unit of its own core's matrix-product speed."""
        return self.tokens_per_flop / (PEER[self.length] / PEER_MATMUL) if self.length in PEER else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what `arguments` (the words behind `bench train`) ask for. Raises ConfigError and DataError."""
    options = _checked(_parser().parse_args(arguments))
    where = conditions(hold_to_one_core())
    if options.microbatches is None:  # a core is fastest on what its cache holds
        options.microbatches = 4 if where.platform == "cpu" else 1
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 140)  # a file gets the tables uncut
    console.print(f"[bold]maskworld bench train[/] on {where.summary()}")
    peak = matmul_speed(MATMULS[0], where)
    report: dict[str, Any] = {
        "conditions": dataclasses.asdict(where),
        "matmul_flops_per_second": _matmuls(peak, where, console),
    }
    model = _model(options)
    if set(options.parts) & {"step", "doubled", "peer"}:
        report["steps"] = _steps(options, model, where, peak, console)
    if "trajectories" in options.parts:
        report["trajectories"] = _trajectories(options, model, where, peak, console)
    if options.json:
        path = Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        console.print(f"written to {path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="maskworld bench train", description=__doc__.split("\n\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024], help="clean tokens L per row")
    parser.add_argument("--repeats", type=int, default=3, help="timed steps, after one that compiles")
    parser.add_argument("--layers", type=int, help="another depth than the peers' 8 (no comparison with them then)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure")
    parser.add_argument("--unrolled", action="store_true", help="layers unrolled, not scanned: slow to compile")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of activations")
    parser.add_argument("--trajectories", metavar="FOLDER", default="tests/data/alfworld_rooms")
    parser.add_argument("--count", type=int, default=60, help="trajectories to take from its train split")
    parser.add_argument("--row-length", type=int, default=1024, help="row length for the trajectories")
    parser.add_argument(
        "--microbatches", type=int, help="pieces of a batch taken one after another: 4 on a CPU, else 1"
    )
    parser.add_argument("--json", metavar="OUT", help="write every number there")
    return parser


def _checked(options: argparse.Namespace) -> argparse.Namespace:
    """Raises ConfigError for a number that cannot be measured with."""
    for name in ("repeats", "count", "layers", "microbatches"):
        number = getattr(options, name)
        if number is not None and number < 1:
            raise ConfigError(f"--{name}: {number} is below 1")
    if options.microbatches is not None and options.microbatches not in (1, 2, 4):
        raise ConfigError(f"--microbatches: a batch of 4 rows is not cut into {options.microbatches}")
    for length in (*options.lengths, options.row_length):
        if length < 8 or length % 8:
            raise ConfigError(f"--lengths, --row-length: {length} is not a multiple of 8, the longest block here")
    return options


def _model(options: argparse.Namespace):
    from maskworld.benchmarks.workloads import PEER_MODEL

    return dataclasses.replace(PEER_MODEL, layers=options.layers or PEER_MODEL.layers, scan_layers=not options.unrolled)


def _matmuls(peak, where: Conditions, console) -> dict[str, float]:
    """The reference product and two of the model's own."""
    others = (matmul_speed(shape, where) for shape in MATMULS[1:])
    speeds = {"x".join(map(str, s)): speed() for s, speed in zip(MATMULS, (peak, *others), strict=True)}
    listed = ", ".join(f"{name} {speed / 1e9:.1f}" for name, speed in speeds.items())
    console.print(f"float32 matrix product, GFLOP/s {_per(where)}: {listed}")
    return speeds


def _per(where: Conditions) -> str:
    return "per core-second" if where.platform == "cpu" else "per second"


def _steps(options, model, where: Conditions, peak, console) -> list[dict[str, Any]]:
    from maskworld.benchmarks import workloads

    comparable = where.platform == "cpu" and not options.layers and options.dtype == "float32"
    layouts = {"step": two_stream_call, "doubled": doubled_call}
    if comparable and peer.peer_available():
        layouts["peer"] = peer_call
    layouts = {part: prepare for part, prepare in layouts.items() if part in options.parts}
    results: dict[str, dict[int, StepResult]] = {part: {} for part in LAYOUTS}
    for length in options.lengths:
        console.print(f"  {', '.join(LAYOUTS[part] for part in layouts)} in turn, L = {length} ...")
        prepares = [partial(prepare, model, length, options) for prepare in layouts.values()]
        timings = measure_in_turn(prepares, options.repeats, where, peak)
        for part, timing in zip(layouts, timings, strict=True):
            counted = count_flops(model, length, options) if part == "step" else ()
            results[part][length] = StepResult(length, workloads.ROWS, timing, *counted)
    console.print(_step_table(results, where, comparable))
    if comparable and results["step"]:
        console.print(
            f"'x recorded' is beside SDAR's step on another core, whose product gave {PEER_MATMUL / 1e9:.1f} GFLOP/s: "
            f"{_recorded()} clean tokens per core-second; both are divided by their own core's product speed."
        )
        if "peer" in options.parts and not results["peer"]:
            console.print("The peer was not run here: that takes `pip install torch` and --parts peer.")
    return [_as_json(LAYOUTS[part], result) for part, some in results.items() for result in some.values()]


def _recorded() -> str:
    return ", ".join(f"{rate:.0f} at {length}" for length, rate in PEER.items())


def _as_json(kind: str, result: StepResult) -> dict[str, Any]:
    facts = dataclasses.asdict(result) | {"layout": kind, "clean_tokens_per_second": result.tokens_per_second}
    if result.executed:
        facts["share_of_matmul"] = {
            "executed": result.share(sum(result.executed.values())),
            "useful": result.share(result.useful),
        }
    if kind == LAYOUTS["step"]:
        facts["over_recorded_peer"] = result.over_peer()
    return facts


def _step_table(results, where: Conditions, comparable: bool):
    from rich.table import Table

    table = Table(title=f"One training step, batch 4, block 4, every token a target, AdamW included ({_per(where)})")
    for column in ("layout", "L", "compile s", "s / step", "clean tok/s", "GFLOP executed", "% of matmul"):
        table.add_column(column, justify="left" if column == "layout" else "right")
    for column in ("useful %", "x doubled", "x peer", "x recorded", "target"):
        table.add_column(column, justify="right")
    for part, some in results.items():
        for length, result in some.items():
            cells = ["", "", ""]
            if result.executed:
                total = sum(result.executed.values())
                cells = [
                    f"{total / 1e9:.0f}",
                    f"{100 * result.share(total):.0f}",
                    f"{100 * result.share(result.useful):.0f}",
                ]
            for other in ("doubled", "peer"):
                beside = results[other].get(length) if part == "step" else None
                cells.append(f"{result.timing.over(beside.timing):.2f}" if beside else "")
            ratio = result.over_peer() if comparable and part != "peer" else None
            target = f"{TARGETS[length]:.1f}" if part == "step" and ratio and length in TARGETS else ""
            table.add_row(
                LAYOUTS[part],
                str(length),
                f"{result.timing.compile_seconds:.0f}",
                f"{result.timing.best:.2f}",
                f"{result.tokens_per_second:.0f}",
                *cells,
                f"{ratio:.2f}" if ratio else "",
                target,
            )
    return table


def _peer_run(model, length: int, options) -> tuple[TrainingRun, dict]:
    """The peers' setting in this project: the run and its only batch."""
    from maskworld.benchmarks import workloads

    experiment = workloads.peer_experiment(model, options.dtype, microbatches=options.microbatches)
    run = TrainingRun(experiment, workloads.PEER_VOCABULARY, workloads.MASK_ID)
    if model == workloads.PEER_MODEL and run.parameters != workloads.PEER_PARAMETERS:
        raise AssertionError(f"the model has {run.parameters} parameters, the peers' {workloads.PEER_PARAMETERS}")
    block_length = experiment.diffusion.block_length
    return run, workloads.full_batch(workloads.ROWS, length, block_length, workloads.PEER_VOCABULARY)


def two_stream_call(model, length: int, options):
    """The real train step."""
    run, batch = _peer_run(model, length, options)
    return run.calls([batch])


def doubled_call(model, length: int, options):
    """The same model and optimizer on [noisy ; clean] under a dense mask."""
    from maskworld.benchmarks import doubled

    run, batch = _peer_run(model, length, options)
    run.step = doubled.make_doubled_step(run.experiment, run.network, run.optimizer, run.mask_id)
    return run.calls([batch])


def peer_call(model, length: int, options):
    """The peers' step in PyTorch."""
    from maskworld.benchmarks import workloads

    return peer.peer_call(model, workloads.PEER_VOCABULARY, workloads.ROWS, length, 4)


def count_flops(model, length: int, options) -> tuple[dict[str, float], float]:
    """(executed by kind, useful) FLOPs of the timed two-stream steps, mean over them."""
    from maskworld.benchmarks import flops

    run, batch = _peer_run(model, length, options)
    executed, useful = [], 0.0
    for step in range(1, options.repeats + 1):
        for piece, masked in run.masked(batch, step):
            counted = (model, run.network.vocabulary_size, run.experiment.diffusion, piece, masked)
            executed.append(dataclasses.asdict(flops.executed_flops(*counted)))
            useful += flops.useful_flops(*counted).total
    mean = {kind: sum(one[kind] for one in executed) / options.repeats for kind in executed[0]}
    return mean, useful / options.repeats


class TrainingRun:
    """A state and the step that consumes it, on one device."""

    def __init__(self, experiment, vocabulary_size: int, mask_id: int):
        import jax

        from maskworld.models.transformer import Network
        from maskworld.parallel.mesh import make_mesh
        from maskworld.training.step import create_state, make_optimizer, make_train_step, state_shardings

        self.experiment, self.mask_id = experiment, mask_id
        self.network = Network(experiment.model, vocabulary_size, experiment.training.compute_dtype)
        self.optimizer, schedule = make_optimizer(experiment.optimizer, steps=1000)
        mesh = make_mesh(experiment.mesh, jax.devices()[:1])
        self.step = make_train_step(experiment, self.network, self.optimizer, schedule, mesh, mask_id)
        # Placed as the step returns it, or the second step would compile anew and be timed with that.
        self.create = jax.jit(
            lambda: create_state(self.network, self.optimizer, jax.random.key(0)),
            out_shardings=state_shardings(self.network, self.optimizer, mesh),
        )
        self.parameters = sum(leaf.size for leaf in jax.tree.leaves(self.network.abstract_params()))

    def calls(self, batches):
        """A call that takes one step, on the next batch each time (after the last the first again)."""
        import itertools

        state, order = self.create(), itertools.cycle(batches)

        def call():
            nonlocal state
            state, metrics = self.step(state, next(order))
            return metrics

        return call

    def masked(self, batch, step: int):
        """The microbatches of `batch`, each with the noisy positions [B, N] that step `step` masks in it."""
        import jax
        import numpy as np

        from maskworld.diffusion.corruption import corrupt
        from maskworld.training.loss import noisy_targets
        from maskworld.training.step import split_microbatches

        count, config = self.experiment.training.gradient_accumulation, self.experiment.diffusion
        blocks = batch["target_blocks"].shape[1]
        key = jax.random.fold_in(jax.random.key(self.experiment.training.seed), step)
        mask = jax.jit(lambda key, b: corrupt(key, *noisy_targets(b, config), blocks, self.mask_id, config).masked)
        pieces = split_microbatches(batch, count)
        for index in range(count):
            piece = jax.tree.map(lambda x: x[index], pieces)  # noqa: B023
            yield piece, np.asarray(mask(jax.random.fold_in(key, index) if count > 1 else key, piece))


def _trajectories(options, model, where: Conditions, peak, console) -> dict[str, Any]:
    from rich.table import Table

    from maskworld.benchmarks import workloads

    recording = workloads.load_recording(options.trajectories, options.count)
    tokenizer = recording.tokenizer
    experiment = workloads.peer_experiment(model, options.dtype, block_length=8, microbatches=options.microbatches)
    results = {}
    for name, render in (
        ("whole trajectories", workloads.whole_documents),
        ("one row per step", workloads.step_documents),
    ):
        console.print(f"  {name} ...")
        documents = render(recording, experiment.diffusion.block_length, options.row_length)
        work = workloads.pack_work(documents, options.row_length, tokenizer.pad_id, workloads.ROWS)
        chosen = [round(i * (len(work.batches) - 1) / max(options.repeats - 1, 1)) for i in range(options.repeats)]
        run = TrainingRun(experiment, tokenizer.vocabulary_size, tokenizer.mask_id)
        # The first call compiles; the batches that are timed come after it.
        calls = [work.batches[0], *(work.batches[i] for i in chosen)]
        timing = measure(lambda run=run, calls=calls: run.calls(calls), options.repeats, where, peak)
        observations = sum(work.observations[i] for i in chosen)
        cost = sum(s * p for s, p in zip(timing.seconds, timing.peaks, strict=True))
        results[name] = {
            "documents": len(documents),
            "rows": work.rows,
            "target_blocks": work.target_blocks,
            "filled": work.filled,
            "observations_per_row": observations / (len(chosen) * workloads.ROWS),
            "seconds": timing.seconds,
            "compile_seconds": timing.compile_seconds,
            "observations_per_second": observations / sum(timing.seconds),
            "observations_per_flop": observations / cost,
        }
    whole, single = results.values()
    ratio = whole["observations_per_flop"] / single["observations_per_flop"]
    table = Table(
        title=f"{len(recording.trajectories)} trajectories of {recording.source}, rows of {options.row_length}, "
        f"batch 4, block 8, vocabulary {tokenizer.vocabulary_size} ({_per(where)})"
    )
    for column in ("layout", "documents", "rows", "filled", "K", "observations / row", "s / step", "observations / s"):
        table.add_column(column, justify="left" if column == "layout" else "right")
    for name, facts in results.items():
        table.add_row(
            name,
            str(facts["documents"]),
            str(facts["rows"]),
            f"{facts['filled']:.0%}",
            str(facts["target_blocks"]),
            f"{facts['observations_per_row']:.1f}",
            f"{sum(facts['seconds']) / len(facts['seconds']):.2f}",
            f"{facts['observations_per_second']:.2f}",
        )
    console.print(table)
    console.print(f"supervised observations per unit of compute: {ratio:.2f}x (target {TRAJECTORY_TARGET:.0f}x)")
    return results | {"ratio": ratio}
