"""The commands `maskworld data ...`: record, build, prepare and look at trajectories."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from maskworld.cli_parser import OVERRIDES, command, overrides, refuse
from maskworld.errors import ConfigError


def add_data_commands(commands) -> None:
    record = command(
        commands,
        "record",
        _data_record,
        "Play the real ALFWorld engine in rooms made from a seed and write the trajectories, split by room. "
        "Needs the extra: pip install 'maskworld[envs]'. Fields can be overridden: --train_rooms 100 --seed 1",
        fields_of=_record_type,
    )
    record.add_argument("out", metavar="DIR", help="folder to write train, validation and test into")
    record.add_argument(
        "--preset",
        default="rooms",
        metavar="NAME",
        help="settings that the fields override: rooms (the default) or house (flats with one thing to a place)",
    )

    build = command(
        commands,
        "build",
        _data_build,
        "Turn raw public dumps of trajectories (JSON, JSON Lines, Parquet; plain, gzip or zstd) into one data set: "
        "cleaned, without duplicates, split by group, with everything that was left out in rejected.jsonl. A build "
        "that was stopped goes on when the same command is given again. Fields can be overridden: --test_share 0.1",
        fields_of=_build_type,
    )
    build.add_argument("paths", metavar="PATH", nargs="+", help="files, and folders that are searched for files")
    build.add_argument("--out", metavar="DIR", required=True, help="folder to write")
    build.add_argument(
        "--source", default="", metavar="NAME", help="format of all files; left out, it is told from each record"
    )

    prepare = command(
        commands,
        "prepare",
        _data_prepare,
        f"Train the tokenizer and pack the rows of an experiment, as `train` does first. {OVERRIDES}",
    )
    prepare.add_argument("experiment", metavar="EXPERIMENT", help="FILE.py, or FILE.py:NAME")
    prepare.add_argument("--out", metavar="DIR", required=True, help="folder to write")

    stats = command(
        commands,
        "stats",
        _data_stats,
        "Count what is in a build, or in any folder of trajectories: splits, sources, lengths, outcomes, duplicates, "
        "rejected rows by reason. Prints tables and writes a page with pictures",
    )
    stats.add_argument("folder", metavar="DIR", help="folder of a build, or with files of trajectories")
    stats.add_argument("--out", metavar="FILE", help="the page; default DIR/stats.html")

    show = command(
        commands,
        "show",
        _data_show,
        "Print one example with its targets marked: a trajectory, or a packed row of a prepared folder",
    )
    show.add_argument(
        "path",
        metavar="PATH",
        help="a build, a prepared folder, a folder or a file of trajectories (.jsonl, .gz, .zst)",
    )
    show.add_argument("index", metavar="INDEX", nargs="?", type=int, help="which one, from 0 (default)")
    show.add_argument("--index", dest="index_option", type=int, help="the same as an option")
    show.add_argument("--split", default="train", help="of a folder: train (default), validation, test, ood_test")
    show.add_argument(
        "--form",
        default="plain",
        choices=("plain", "document", "corpus", "chat"),
        help="plain: for people; document: what training reads; corpus: the three messages of one step as in the "
        "released corpus; chat: those in the Qwen3 chat template",
    )
    show.add_argument("--step", type=int, help="of corpus and chat: which step, from 0; default the last")


def _data_record(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    from maskworld.configure import override
    from maskworld.environments.recorder import PRESETS, record

    if options.preset not in PRESETS:
        raise ConfigError(f"--preset: no preset {options.preset}; there are {', '.join(sorted(PRESETS))}")
    given = overrides(unknown, ("--preset",))
    manifest = record(override(PRESETS[options.preset], given), Path(options.out))
    counts = ", ".join(f"{facts['episodes']} {name}" for name, facts in manifest["splits"].items())
    print(f"recorded {options.out}: episodes: {counts}")


def _data_build(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    from maskworld.configure import override
    from maskworld.data.build.build import build
    from maskworld.data.build.config import BuildConfig

    fields = [word for word in unknown if word.startswith("-")]
    paths = options.paths + [word for word in unknown if not word.startswith("-")]  # those behind an option
    config = override(BuildConfig(), overrides(fields, ("--out", "--source")))
    build(paths, options.out, options.source, config)
    print(f"built {options.out}; look at it with: maskworld data stats {options.out}")


def _data_prepare(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    from maskworld.configure import load_experiment, override, validate
    from maskworld.data.prepare import prepare

    config = validate(override(load_experiment(options.experiment), overrides(unknown, ("--out",))))
    prepared = prepare(config.data, config.diffusion, options.out)
    print(prepared.summary())


def _data_stats(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    from rich.console import Console

    from maskworld.data.statistics import statistics
    from maskworld.data.statistics_page import PAGE_FILE, render_page, tables
    from maskworld.storage import write_text

    refuse(unknown, ("--out",))
    found = statistics(options.folder)
    console = Console()
    console = Console(width=max(console.width, 110))  # the tables' own width: wrapped cells cannot be read
    rejected = sum(found.rejected.values())
    console.print(f"{found.rows_in:,} rows in, {found.trajectories:,} trajectories out, {rejected:,} rejected\n")
    for table in tables(found):
        console.print(table)
        console.print()
    page = Path(options.out) if options.out else Path(options.folder) / PAGE_FILE
    write_text(page, render_page(found))
    print(f"page: {page}")


def _data_show(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    from maskworld.data.show import find_trajectory, is_prepared, print_pieces, shown, shown_row

    refuse(unknown, ("--index", "--split", "--form", "--step"))
    index = next((one for one in (options.index, options.index_option) if one is not None), 0)
    if index < 0:
        raise ConfigError(f"--index: {index} is below 0")
    if is_prepared(options.path):
        print_pieces(shown_row(options.path, index, options.split))
    else:
        trajectory = find_trajectory(options.path, index, options.split)
        print_pieces(shown(trajectory, options.form, options.step))


def _record_type() -> type:
    from maskworld.environments.recorder import RecordConfig

    return RecordConfig


def _build_type() -> type:
    from maskworld.data.build.config import BuildConfig

    return BuildConfig
