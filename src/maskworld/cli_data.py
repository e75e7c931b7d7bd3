"""The commands `maskworld data ...`: record, build, prepare and look at trajectories."""

from __future__ import annotations

import argparse
import textwrap
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

    show = command(commands, "show", _data_show, "Print a trajectory as a person reads it.")
    show.add_argument("file", metavar="FILE", help=".jsonl or .jsonl.gz of trajectories")
    show.add_argument("--index", type=int, default=0, help="which one, from 0 (default)")


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

    config = override(BuildConfig(), overrides(unknown, ("--out", "--source")))
    build(options.paths, options.out, options.source, config)
    print(f"built {options.out}; look at it with: maskworld data stats {options.out}")


def _data_prepare(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    from maskworld.configure import load_experiment, override, validate
    from maskworld.data.prepare import prepare

    config = validate(override(load_experiment(options.experiment), overrides(unknown, ("--out",))))
    prepared = prepare(config.data, config.diffusion, options.out)
    print(prepared.summary())


def _data_show(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    from itertools import islice

    from maskworld.data.trajectories import read_trajectories
    from maskworld.errors import DataError

    refuse(unknown, ("--index",))
    if options.index < 0:
        raise ConfigError(f"--index: {options.index} is below 0")
    trajectory = next(islice(read_trajectories(Path(options.file)), options.index, None), None)
    if trajectory is None:
        raise DataError(f"{options.file} holds no trajectory {options.index} (they count from 0)")
    print("\n".join(_shown(trajectory)))


def _shown(trajectory) -> list[str]:
    lines = [f"{trajectory.id}  ({trajectory.environment}, {trajectory.group}, played by {trajectory.player or '?'})"]
    for title, text in (
        ("initial state", trajectory.initial_state),
        ("task", trajectory.task_context),
        ("commands", "\n".join(trajectory.tool_schemas)),
        ("rules", "\n".join(trajectory.domain_rules)),
        ("directives", "\n".join(trajectory.directives)),
        ("first observation", trajectory.initial_observation),
    ):
        if text:
            lines += ["", f"{title}:", textwrap.indent(text, "  ")]
    for number, step in enumerate(trajectory.steps, start=1):
        end = ", done" if step.done else ""
        reward = f"  [reward {step.reward:g}{end}]" if step.reward or step.done else ""
        changed = [f"+{fact}" for fact in step.facts_added] + [f"-{fact}" for fact in step.facts_deleted]
        lines += ["", f"{number}. > {step.action}{reward}", textwrap.indent(step.observation, "     ")]
        lines += [f"     ({' '.join(changed)})"] if changed else []
    return lines


def _record_type() -> type:
    from maskworld.environments.recorder import RecordConfig

    return RecordConfig


def _build_type() -> type:
    from maskworld.data.build.config import BuildConfig

    return BuildConfig
