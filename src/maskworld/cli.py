"""The `maskworld` command. Nothing heavy is imported before a sub-command needs it."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from maskworld import __version__
from maskworld.errors import ConfigError, StorageError, UserError

BENCHMARKS = {"train": "maskworld.benchmarks.train"}

# Every option of the sub-commands themselves; any other --word is an override of a configuration.
_OPTIONS = {"--checkpoint", "--help", "--index", "--out", "--preset", "--quick", "--run", "--split", "--version"}

_OVERRIDES = "Any field of the configuration can be overridden: --training.steps 100 --model.width=256"

_EXAMPLES = """
examples:
  maskworld quickstart                     train a small world model, score it, write a report
  maskworld quickstart --quick             the same with few steps, to see that all of it works
  maskworld train experiments/world_model_small.py
  maskworld train experiments/quickstart.py --run runs/wide --model.width 256 --training.steps 400
  maskworld evaluate runs/wide             score its best checkpoint on held-out rooms
  maskworld data show tests/data/alfworld_rooms/test.jsonl.gz
  maskworld bench train                    training speed on this machine

A run that was stopped goes on from its last checkpoint when the same command is given again.
`maskworld COMMAND --help` says more, for `train` every field of the configuration.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0, 2 for something the user can mend, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words)
    except StorageError as error:
        return _refused(error, leave=arguments is None)
    except UserError as error:
        return _refused(error)
    except OSError as error:
        from maskworld.storage import storage_error

        translated = storage_error(error, error.filename or "the output")
        if translated is None:
            raise
        return _refused(translated, leave=arguments is None)
    except KeyboardInterrupt:
        resumes = words[:1] in (["train"], ["quickstart"])
        told = "stopped; the same command goes on from the last checkpoint" if resumes else "stopped"
        print(f"\nmaskworld: {told}", file=sys.stderr)
        return 130


def _run(words: list[str]) -> int:
    if words[:1] == ["bench"] and words[1:2] and words[1] in BENCHMARKS:
        return importlib.import_module(BENCHMARKS[words[1]]).main(words[2:]) or 0
    parser = _parser()
    options, unknown = parser.parse_known_args(_with_joined_values(words))
    if not hasattr(options, "do"):
        parser.print_help()
        return 2 if words else 0
    return options.do(options, unknown) or 0


def _refused(error: UserError, leave: bool = False) -> int:
    print(f"maskworld: {error}", file=sys.stderr)
    if leave:
        # Threads whose write has failed may wait twenty minutes for each other, and Python would wait for them.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(2)
    return 2


def _with_joined_values(words: Sequence[str]) -> list[str]:
    """`--a.b value` as one word `--a.b=value`, so that argparse never takes the value for an argument of its own."""
    joined: list[str] = []
    for word in words:
        before = joined[-1] if joined else ""
        open_override = before.startswith("--") and "=" not in before and before not in _OPTIONS
        if open_override and not word.startswith("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


class _Parser(argparse.ArgumentParser):
    """Keeps the layout of examples, takes no abbreviations, and can end its help with the fields of a configuration."""

    def __init__(self, *, fields_of: Callable[[], type] | None = None, **options):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)
        self._fields_of = fields_of

    def format_help(self) -> str:
        text = super().format_help()
        if self._fields_of is None:
            return text
        from maskworld.configure import override_help

        return f"{text}\n{override_help(self._fields_of())}\n"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="maskworld",
        description="Train masked block-diffusion language models as text world models, and score them.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"maskworld {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)

    quickstart = _command(
        commands, "quickstart", _quickstart, "Train, score and report the small example, start to end."
    )
    quickstart.add_argument(
        "--quick",
        action="store_true",
        help="fewer steps and transitions, under three minutes: shows that all of it works",
    )
    quickstart.add_argument("--run", metavar="DIR", help="run folder; default runs/quickstart or runs/quickstart-quick")

    train = _command(
        commands,
        "train",
        _train,
        f"Train an experiment, from its last checkpoint if there is one. {_OVERRIDES}",
        fields_of=_experiment_type,
    )
    train.add_argument("experiment", metavar="EXPERIMENT", help="FILE.py, or FILE.py:NAME for another Experiment in it")
    train.add_argument("--run", metavar="DIR", help="run folder; default runs/NAME, NAME from the configuration")

    evaluate = _command(
        commands,
        "evaluate",
        _evaluate,
        "Generate held-out observations, score them beside the baselines and write RUN/report.html. The fields of "
        "sampler and evaluation and data.trajectories can be overridden: --evaluation.transitions 64",
    )
    evaluate.add_argument("run", metavar="RUN", help="folder of a trained run")
    evaluate.add_argument("--split", default="test", help="which trajectories: test (default), validation, train")
    evaluate.add_argument(
        "--checkpoint", default="best", metavar="WHICH", help="best (default, by validation loss), latest, or a step"
    )

    data = _command(commands, "data", None, "Record, prepare and look at trajectories.")
    _add_data_commands(data.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser, required=True))

    bench = _command(commands, "bench", _unknown_benchmark, "Measure speed on this machine.")
    bench.add_argument("what", metavar="WHAT", choices=sorted(BENCHMARKS), help=", ".join(sorted(BENCHMARKS)))
    return parser


def _add_data_commands(commands) -> None:
    record = _command(
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

    prepare = _command(
        commands,
        "prepare",
        _data_prepare,
        f"Train the tokenizer and pack the rows of an experiment, as `train` does first. {_OVERRIDES}",
    )
    prepare.add_argument("experiment", metavar="EXPERIMENT", help="FILE.py, or FILE.py:NAME")
    prepare.add_argument("--out", metavar="DIR", required=True, help="folder to write")

    show = _command(commands, "show", _data_show, "Print a trajectory as a person reads it.")
    show.add_argument("file", metavar="FILE", help=".jsonl of trajectories, also .gz or .zst")
    show.add_argument("--index", type=int, default=0, help="which one, from 0 (default)")


def _command(commands, name: str, do: Callable | None, help: str, **options) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help.split(". ")[0].rstrip("."), description=textwrap.fill(help), **options)
    if do is not None:
        parser.set_defaults(do=do)
    return parser


def _quickstart(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    from maskworld.configure import load_experiment

    _refuse(unknown, ("--quick", "--run"))
    file = _quickstart_file()
    config = load_experiment(f"{file}:quick" if options.quick else str(file))
    run = Path(options.run or ("runs/quickstart-quick" if options.quick else "runs/quickstart"))
    begun = time.perf_counter()
    print(f"quickstart: training {config.name} in {run}, then scoring it on rooms it has never seen", flush=True)
    _train_run(config, run)
    _evaluate_run(run)
    print(f"all of it took {(time.perf_counter() - begun) / 60:.1f} minutes", flush=True)
    _print_last_lines(run)


def _quickstart_file() -> Path:
    """experiments/quickstart.py of the folder one is in: its data lie there too."""
    file = Path("experiments") / "quickstart.py"
    if not file.is_file():
        raise ConfigError(f"no {file} here; run it in a checkout of maskworld")
    return file


def _train(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    from maskworld.configure import load_experiment, override

    config = override(load_experiment(options.experiment), _overrides(unknown, ("--run",)))
    run = Path(options.run or f"runs/{config.name}")
    _train_run(config, run)
    print(f"run folder: {run}; score it with: maskworld evaluate {run}")


def _train_run(config, run: Path) -> None:
    from maskworld.configure import validate

    validate(config)  # before the seconds that importing jax takes
    from maskworld.training.loop import train

    train(config, run)


def _evaluate(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    overrides = _overrides(unknown, ("--split", "--checkpoint"))
    _evaluate_run(Path(options.run), options.split, options.checkpoint, overrides)
    _print_last_lines(Path(options.run))


def _evaluate_run(run: Path, split: str = "test", checkpoint: str = "best", overrides: Sequence[str] = ()) -> None:
    from maskworld.configure import CONFIG_FILE, differences, load_config, override, validate

    if checkpoint not in ("best", "latest") and not checkpoint.isdecimal():
        raise ConfigError(f"--checkpoint: {checkpoint!r} is not best, latest or a step")
    if Path(split).name != split:
        raise ConfigError(f"--split: {split!r} is not the beginning of file names such as test or validation")
    saved = load_config(run / CONFIG_FILE)
    config = validate(override(saved, overrides))
    for key, *_ in differences(saved, config):
        if key != "data.trajectories" and not key.startswith(("sampler.", "evaluation.")):
            raise ConfigError(f"--{key}: cannot be changed after training; sampler, evaluation, data.trajectories can")
    from maskworld.evaluation.evaluate import evaluate
    from maskworld.evaluation.report import write_report

    which = int(checkpoint) if checkpoint.isdecimal() else checkpoint
    evaluate(run, split, experiment=config, checkpoint=which)
    write_report(run)


def _print_last_lines(run: Path) -> None:
    from maskworld.evaluation.report import last_lines

    print("\n".join(last_lines(run)), flush=True)


def _data_record(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    from maskworld.configure import override
    from maskworld.environments.recorder import PRESETS, record

    if options.preset not in PRESETS:
        raise ConfigError(f"--preset: no preset {options.preset}; there are {', '.join(sorted(PRESETS))}")
    overrides = _overrides(unknown, ("--preset",))
    manifest = record(override(PRESETS[options.preset], overrides), Path(options.out))
    counts = ", ".join(f"{facts['episodes']} {name}" for name, facts in manifest["splits"].items())
    print(f"recorded {options.out}: episodes: {counts}")


def _data_prepare(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    from maskworld.configure import load_experiment, override, validate
    from maskworld.data.prepare import prepare

    config = validate(override(load_experiment(options.experiment), _overrides(unknown, ("--out",))))
    prepared = prepare(config.data, config.diffusion, options.out)
    print(prepared.summary())


def _data_show(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    from itertools import islice

    from maskworld.data.trajectories import read_trajectories
    from maskworld.errors import DataError

    _refuse(unknown, ("--index",))
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


def _unknown_benchmark(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    raise ConfigError(f"no benchmark {options.what}")  # argparse has refused it before


def _experiment_type() -> type:
    from maskworld.config import Experiment

    return Experiment


def _record_type() -> type:
    from maskworld.environments.recorder import RecordConfig

    return RecordConfig


def _overrides(unknown: Sequence[str], options: Sequence[str]) -> list[str]:
    """The words argparse did not know, if they are overrides; else a refusal that names what comes nearest."""
    import difflib

    for word in unknown:
        name = word.partition("=")[0]
        near = difflib.get_close_matches(name, options, n=1, cutoff=0.75)
        if name.startswith("-") and near and "." not in name:
            raise ConfigError(f"unknown option {name}; did you mean {near[0]}?")
    return list(unknown)


def _refuse(unknown: Sequence[str], options: Sequence[str]) -> None:
    if unknown:
        _overrides(unknown, options)
        raise ConfigError(f"unknown option {unknown[0]}; this command takes {', '.join(options)}")


if __name__ == "__main__":
    sys.exit(main())
