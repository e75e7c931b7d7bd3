"""The command line: quick to start, clear when refused, and the exit codes 0, 2 and 130."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_run

from maskworld import cli, configure
from maskworld.config import Experiment
from maskworld.errors import DataError

SOURCE = Path(cli.__file__).parents[1]


def python(program, *arguments):
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=300, env=environment
    )


def test_starting_imports_nothing_heavy():
    program = (
        "import sys, maskworld.cli\n"
        "maskworld.cli.main(['train', 'no_such_file.py', '--training.steps', '3'])\n"
        "heavy = {'jax', 'flax', 'optax', 'orbax', 'grain', 'numpy', 'matplotlib', 'alfworld', 'tyro'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = python(program)
    assert done.stdout.strip() == "[]", done.stderr
    assert "no experiment file no_such_file.py" in done.stderr


@pytest.fixture
def experiment_file(tmp_path):
    return str(tiny_run.write_experiment(tmp_path / "tiny.py", tmp_path / "data"))


@pytest.fixture
def trained(monkeypatch):
    """What `train` was called with, in place of training."""
    calls = []
    monkeypatch.setattr(cli, "_train_run", lambda config, run: calls.append((config, run)))
    return calls


def test_train_takes_experiment_run_and_overrides_in_any_order(experiment_file, trained):
    orders = (
        [experiment_file, "--run", "runs/a", "--training.steps", "5", "--mesh.fsdp", "-1"],
        ["--training.steps=5", "--mesh.fsdp", "-1", "--run", "runs/a", experiment_file],
        ["--training.steps", "5", experiment_file, "--mesh.fsdp=-1", "--run=runs/a"],
    )
    for words in orders:
        assert cli.main(["train", *words]) == 0
        config, run = trained.pop()
        assert (config.training.steps, config.mesh.fsdp, run) == (5, -1, Path("runs/a"))


def test_the_run_folder_is_named_after_the_experiment(experiment_file, trained):
    assert cli.main(["train", experiment_file, "--name", "wide"]) == 0
    assert trained[0][1] == Path("runs/wide")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--training.stesp", "5"], "unknown configuration key --training.stesp; nearest known key: --training.steps"),
        (["--steps", "5"], "unknown configuration key --steps; nearest known key: --training.steps"),
        (["--training.steps", "many"], "--training.steps: 'many' is not a whole number"),
        (["--rnu", "x"], "unknown option --rnu; did you mean --run?"),
        (["stray"], "`stray` is not an override"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_exit_code_2(experiment_file, trained, capsys, words, message):
    assert cli.main(["train", experiment_file, *words]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.out == "" and not trained


def test_fields_that_do_not_fit_are_refused_before_anything_is_loaded(experiment_file, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "maskworld.training.loop", None)  # importing it would fail
    assert cli.main(["train", experiment_file, "--model.heads", "3", "--model.kv_heads", "2"]) == 2
    assert "model.heads is 3; it must be a multiple of model.kv_heads (2)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (DataError("train.jsonl, line 3, steps: missing"), 2, "maskworld: train.jsonl, line 3, steps: missing"),
        (OSError(errno.ENOSPC, "No space left on device", "/runs/x"), 2, "cannot write /runs/x: no space left"),
        (KeyboardInterrupt(), 130, "the same command goes on from the last checkpoint"),
    ],
)
def test_failures_become_one_message_and_an_exit_code(experiment_file, monkeypatch, capsys, error, code, message):
    def fail(config, run):
        raise error

    monkeypatch.setattr(cli, "_train_run", fail)
    assert cli.main(["train", experiment_file]) == code
    assert message in capsys.readouterr().err


def test_a_fault_of_ours_is_not_dressed_up_as_the_users(experiment_file, monkeypatch):
    monkeypatch.setattr(cli, "_train_run", lambda config, run: [][0])
    with pytest.raises(IndexError):
        cli.main(["train", experiment_file])


def test_help_teaches_with_examples_and_lists_every_field(capsys):
    assert cli.main([]) == 0
    assert "maskworld train experiments/quickstart.py --run runs/wide --model.width 256" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", "--help"])
    shown = capsys.readouterr().out
    assert stopped.value.code == 0
    assert [key for key in configure.field_types() if f"--{key}" not in shown] == []


def test_unknown_commands_and_benchmarks_are_refused_with_those_that_exist(capsys):
    for words, known in ((["trian"], "quickstart"), (["bench", "rain"], "train"), (["data", "recrod"], "record")):
        with pytest.raises(SystemExit) as stopped:
            cli.main(words)
        assert stopped.value.code == 2 and known in capsys.readouterr().err


def test_data_show_prints_a_trajectory_and_refuses_one_that_is_not_there(tmp_path, capsys):
    file = str(tiny_run.write_data(tmp_path) / "train.jsonl")
    assert cli.main(["data", "show", file, "--index", "1"]) == 0
    shown = capsys.readouterr().out
    one = tiny_run.trajectory(1, "train")
    for step in one.steps:
        assert f"> {step.action}" in shown and step.observation in shown and f"+{step.facts_added[0]}" in shown
    assert one.initial_state in shown
    assert cli.main(["data", "show", file, "--index", "99"]) == 2
    assert "holds no trajectory 99" in capsys.readouterr().err


def test_data_prepare_packs_the_rows_of_an_experiment(tmp_path, experiment_file, capsys):
    tiny_run.write_data(tmp_path / "data")
    assert cli.main(["data", "prepare", experiment_file, "--out", str(tmp_path / "rows")]) == 0
    assert "24 trajectories" in capsys.readouterr().out
    assert (tmp_path / "rows" / "manifest.json").is_file()


def test_data_record_overrides_the_recorder_by_name(tmp_path, monkeypatch, capsys):
    from maskworld.environments import recorder

    asked = []

    def record(config, out):
        asked.append((config, out))
        return {"splits": {"train": {"episodes": 2}}}

    monkeypatch.setattr(recorder, "record", record)
    words = f"data record --train_rooms 3 {tmp_path} --sizes.receptacles 4,5 --players.expert=1".split()
    assert cli.main(words) == 0
    config, out = asked[0]
    assert (config.train_rooms, config.sizes.receptacles, config.players.expert) == (3, (4, 5), 1.0)
    assert out == tmp_path
    assert cli.main(["data", "record", str(tmp_path), "--sed", "3"]) == 2
    assert "nearest known key: --seed" in capsys.readouterr().err


def test_evaluate_passes_checkpoint_and_overrides_on(tmp_path, monkeypatch, capsys):
    from maskworld.evaluation import evaluate, report

    configure.save_config(tmp_path / "config.json", Experiment())
    asked = []
    monkeypatch.setattr(evaluate, "evaluate", lambda *given, **named: asked.append((given, named)))
    monkeypatch.setattr(report, "write_report", lambda run: None)
    monkeypatch.setattr(report, "last_lines", lambda run: ["the end"])
    words = ["evaluate", str(tmp_path), "--checkpoint", "40", "--evaluation.transitions", "7", "--split=validation"]
    assert cli.main(words) == 0
    (run, split), named = asked[0]
    assert (run, split, named["checkpoint"]) == (tmp_path, "validation", 40)
    assert named["experiment"].evaluation.transitions == 7
    assert capsys.readouterr().out == "the end\n"
    assert cli.main(["evaluate", str(tmp_path), "--checkpoint", "newest"]) == 2
    assert cli.main(["evaluate", str(tmp_path), "--split", "/test"]) == 2
    capsys.readouterr()
    assert cli.main(["evaluate", str(tmp_path), "--model.width", "64"]) == 2
    assert "--model.width: cannot be changed after training" in capsys.readouterr().err
    assert cli.main(["evaluate", str(tmp_path / "absent")]) == 2
    assert "not a run folder" in capsys.readouterr().err
