"""The `maskworld` command. Nothing heavy is imported before a sub-command needs it."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from maskworld import __version__
from maskworld.cli_convert import add_convert_commands
from maskworld.cli_data import add_data_commands
from maskworld.cli_parser import OVERRIDES, Parser, command, overrides, refuse, with_joined_values
from maskworld.errors import ConfigError, StorageError, UserError

BENCHMARKS = {"data": "maskworld.benchmarks.data", "train": "maskworld.benchmarks.train"}

_EXAMPLES = """
examples:
  maskworld quickstart                     train a small world model, score it, write a report
  maskworld quickstart --quick             the same with few steps, to see that all of it works
  maskworld train experiments/world_model_small.py
  maskworld train experiments/quickstart.py --run runs/wide --model.width 256 --training.steps 400
  maskworld evaluate runs/wide             score its best checkpoint on held-out rooms
  maskworld data show tests/data/alfworld_rooms/test.jsonl.gz
  maskworld convert hf SDAR-4B-Chat --to runs/sdar
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
        told = "stopped"
        if words[:1] in (["train"], ["quickstart"]):
            told = "stopped; the same command goes on from the last checkpoint"
        elif words[:2] == ["data", "build"]:
            told = "stopped; the same command goes on with what is not converted yet"
        print(f"\nmaskworld: {told}", file=sys.stderr)
        return 130


def _run(words: list[str]) -> int:
    if words[:1] == ["bench"] and words[1:2] and words[1] in BENCHMARKS:
        return importlib.import_module(BENCHMARKS[words[1]]).main(words[2:]) or 0
    parser = _parser()
    options, unknown = parser.parse_known_args(with_joined_values(words))
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


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="maskworld",
        description="Train masked block-diffusion language models as text world models, and score them.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"maskworld {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)

    quickstart = command(
        commands, "quickstart", _quickstart, "Train, score and report the small example, start to end."
    )
    quickstart.add_argument(
        "--quick",
        action="store_true",
        help="fewer steps and transitions, under three minutes: shows that all of it works",
    )
    quickstart.add_argument("--run", metavar="DIR", help="run folder; default runs/quickstart or runs/quickstart-quick")

    train = command(
        commands,
        "train",
        _train,
        f"Train an experiment, from its last checkpoint if there is one. {OVERRIDES}",
        fields_of=_experiment_type,
    )
    train.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        help="FILE.py, FILE.py:NAME for another Experiment in it, or the config.json of a run",
    )
    train.add_argument("--run", metavar="DIR", help="run folder; default runs/NAME, NAME from the configuration")

    evaluate = command(
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

    data = command(commands, "data", None, "Record, build, prepare and look at trajectories.")
    add_data_commands(data.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser, required=True))

    convert = command(commands, "convert", None, "Start from weights of Hugging Face, and give weights back.")
    add_convert_commands(
        convert.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser, required=True)
    )

    bench = command(commands, "bench", _unknown_benchmark, "Measure speed on this machine.")
    bench.add_argument("what", metavar="WHAT", choices=sorted(BENCHMARKS), help=", ".join(sorted(BENCHMARKS)))
    return parser


def _quickstart(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    from maskworld.configure import load_experiment

    refuse(unknown, ("--quick", "--run"))
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

    config = override(load_experiment(options.experiment), overrides(unknown, ("--run",)))
    run = Path(options.run or f"runs/{config.name}")
    if (run / "hugging_face").is_dir():
        raise ConfigError(
            f"{run} holds converted weights; give another folder, and begin with them: --run runs/NAME "
            f"--training.initialize_from {run}"
        )
    _train_run(config, run)
    print(f"run folder: {run}; score it with: maskworld evaluate {run}")


def _train_run(config, run: Path) -> None:
    from maskworld.configure import validate

    validate(config)  # before the seconds that importing jax takes
    from maskworld.training.loop import train

    train(config, run)


def _evaluate(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    given = overrides(unknown, ("--split", "--checkpoint"))
    _evaluate_run(Path(options.run), options.split, options.checkpoint, given)
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


def _unknown_benchmark(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    raise ConfigError(f"no benchmark {options.what}")  # argparse has refused it before


def _experiment_type() -> type:
    from maskworld.config import Experiment

    return Experiment


if __name__ == "__main__":
    sys.exit(main())
