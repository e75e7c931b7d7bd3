"""`maskworld bench data`: whether the data keep up. Preparing, and batches beside the train step that eats them.

Packs a folder of trajectories, then reads batches of its rows as training does, in threads and in a reader process,
and runs train steps of the peers' 19 M parameter model on such batches. Tokens are those of documents, without
padding; the clock is the wall's, because readers work beside the step.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from maskworld.errors import ConfigError

AIM = 20.0
"""Tokens that the readers must give for each one that a CPU's train step takes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what `arguments` (the words behind `bench data`) ask for. Raises ConfigError and DataError."""
    options = _checked(_parser().parse_args(arguments))
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 140)
    with tempfile.TemporaryDirectory() as folder:
        report = _measured(options, Path(folder), console.print)
    console.print(_table(report))
    if options.json:
        path = Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="maskworld bench data", description=__doc__.split("\n\n")[0])
    parser.add_argument("--trajectories", metavar="FOLDER", default="tests/data/alfworld_rooms")
    parser.add_argument("--tokenizer", metavar="PATH", default="", help="an existing one; else one is trained")
    parser.add_argument("--row-length", type=int, default=512, help="clean tokens L per row")
    parser.add_argument(
        "--batches", type=int, default=400, help="batches of 4 rows to read, after 20 that are not timed"
    )
    parser.add_argument("--steps", type=int, default=3, help="timed train steps, after one that compiles; 0 runs none")
    parser.add_argument("--json", metavar="OUT", help="write every number there")
    return parser


def _checked(options: argparse.Namespace) -> argparse.Namespace:
    """Raises ConfigError for a number that cannot be measured with."""
    if options.batches < 1 or options.steps < 0:
        raise ConfigError("--batches must be at least 1, --steps at least 0")
    if options.row_length < 8 or options.row_length % 8:
        raise ConfigError(f"--row-length: {options.row_length} is not a multiple of 8, the longest block here")
    return options


def _measured(options: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    from maskworld.benchmarks import workloads
    from maskworld.config import DataConfig, DiffusionConfig
    from maskworld.data.prepare import prepare

    data = DataConfig(trajectories=options.trajectories, tokenizer=options.tokenizer, row_length=options.row_length)
    say("  preparing ...")
    began = time.perf_counter()
    prepared = prepare(data, DiffusionConfig(block_length=4), folder / "rows", say=lambda line: None)
    taken = time.perf_counter() - began
    tokens = sum(facts["counts"]["tokens"] for facts in prepared.manifest["splits"].values())
    report: dict[str, Any] = {
        "prepare": {"seconds": taken, "tokens_per_second": tokens / taken},
        "packing": {split: facts["efficiency"] for split, facts in prepared.manifest["splits"].items()},
        "readers": {},
    }
    for workers in (0, 1):
        say(f"  reading batches {'in threads' if not workers else 'in a process'} ...")
        report["readers"]["process" if workers else "threads"] = _read(
            prepared.train_rows, workloads.ROWS, options.batches, workers
        )
    if options.steps:
        say("  train steps ...")
        report["train_step"] = _step(options)
    return report


def _read(rows: Path, batch_size: int, count: int, workers: int) -> float:
    """Tokens per second of `count` batches."""
    from maskworld.data.pipeline import batches

    with contextlib.closing(batches(rows, batch_size, workers=workers)) as stream:
        for _ in itertools.islice(stream, 20):
            pass
        began = time.perf_counter()
        tokens = sum(int((batch["document_ids"] > 0).sum()) for batch in itertools.islice(stream, count))
        return tokens / (time.perf_counter() - began)


def _step(options: argparse.Namespace) -> float:
    """Clean tokens per second of the peers' train step on full rows, all cores; the best of the repetitions."""
    import jax

    from maskworld.benchmarks import workloads
    from maskworld.benchmarks.train import TrainingRun

    experiment = workloads.peer_experiment(workloads.PEER_MODEL, microbatches=4)
    run = TrainingRun(experiment, workloads.PEER_VOCABULARY, workloads.MASK_ID)
    batch = workloads.full_batch(workloads.ROWS, options.row_length, 4, workloads.PEER_VOCABULARY)
    call = run.calls([batch])
    jax.block_until_ready(call())
    best = float("inf")
    for _ in range(options.steps):
        began = time.perf_counter()
        jax.block_until_ready(call())
        best = min(best, time.perf_counter() - began)
    return workloads.ROWS * options.row_length / best


def _table(report: dict[str, Any]):
    from rich.table import Table

    table = Table(title="The way of the data, tokens without padding, by the wall's clock")
    for column in ("", "tokens/s", "over the train step", f"aim {AIM:g}"):
        table.add_column(column, justify="right" if column else "left")
    step = report.get("train_step")
    rows = [("prepare, vocabulary included", report["prepare"]["tokens_per_second"])]
    rows += [(f"batches, read in {how}", rate) for how, rate in report["readers"].items()]
    for name, rate in rows:
        ratio = rate / step if step else None
        judged = "" if ratio is None or name.startswith("prepare") else "met" if ratio >= AIM else "not met"
        table.add_row(name, f"{rate:,.0f}", f"{ratio:,.0f}" if ratio else "", judged)
    if step:
        table.add_row("train step, 19 M parameters, batch 4", f"{step:,.0f}", "1", "")
    for split, shares in report["packing"].items():
        table.add_row(f"rows of {split} filled", f"{shares['tokens']:.1%}", "", "")
    return table
