"""Experiment files, overrides, config.json and the rules between fields: every refusal names the field."""

import dataclasses
import json
from pathlib import Path

import pytest

from maskworld import configure
from maskworld.config import (
    AugmentationConfig,
    DataConfig,
    DiffusionConfig,
    DropRates,
    Experiment,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    SamplerConfig,
    TrainingConfig,
)
from maskworld.errors import ConfigError, StorageError

WEDLM = DiffusionConfig(objective="wedlm")


def test_an_experiment_file_gives_its_config_or_another_named_one(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from maskworld.config import Experiment, TrainingConfig\n"
        "config = Experiment(name='long')\n"
        "quick = Experiment(name='short', training=TrainingConfig(steps=3))\n"
    )
    assert configure.load_experiment(str(file)).name == "long"
    assert configure.load_experiment(f"{file}:quick").training.steps == 3
    with pytest.raises(ConfigError, match="no Experiment called `fast`; it holds config, quick"):
        configure.load_experiment(f"{file}:fast")


def test_a_missing_experiment_file_is_refused_with_the_nearest_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("experiments").mkdir()
    Path("experiments/quickstart.py").write_text("")
    with pytest.raises(ConfigError, match="no experiment file experiments/quikstart.py; did you mean .*quickstart.py"):
        configure.load_experiment("experiments/quikstart.py")


def test_the_config_of_a_run_is_an_experiment_too(tmp_path):
    config = Experiment(name="saved", model=ModelConfig(width=24))
    configure.save_config(tmp_path / "config.json", config)
    assert configure.load_experiment(str(tmp_path / "config.json")) == config
    with pytest.raises(ConfigError, match=r"no experiment file .*missing.json"):
        configure.load_experiment(str(tmp_path / "missing.json"))


def test_a_failing_experiment_file_is_refused_with_its_line(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("from maskworld.config import TrainingConfig\n\nTrainingConfig(stepz=3)\n")
    with pytest.raises(ConfigError, match=r"broken.py:3: TypeError: .*stepz"):
        configure.load_experiment(str(file))
    file.write_text("x = (\n")
    with pytest.raises(ConfigError, match=r"broken.py:1: SyntaxError"):
        configure.load_experiment(str(file))


def test_overrides_set_single_fields_with_the_types_of_the_fields():
    words = "--training.steps 5 --model.scan_layers=false --diffusion.schedule cosine --mesh.fsdp -1 --name x"
    config = configure.override(Experiment(), [*words.split(), "--optimizer.peak_learning_rate", "1"])
    assert configure.differences(Experiment(), config) == [
        ("name", "unnamed", "x"),
        ("model.scan_layers", True, False),
        ("diffusion.schedule", "linear", "cosine"),
        ("optimizer.peak_learning_rate", 3e-3, 1.0),
        ("training.steps", 1000, 5),
        ("mesh.fsdp", 1, -1),
    ]
    assert isinstance(config.optimizer.peak_learning_rate, float)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--training.stesp 5", "unknown configuration key --training.stesp; nearest known key: --training.steps"),
        ("--steps 5", "nearest known key: --training.steps"),
        ("--batchsize 5", "nearest known key: --training.batch_size"),
        ("--diffusion.blok_length=4", "nearest known key: --diffusion.block_length"),
        ("--training.steps ten", "--training.steps: 'ten' is not a whole number"),
        ("--training.seed 3 --training.steps 1.5", "--training.steps: '1.5' is not a whole number"),
        ("--diffusion.schedule square", "'square' is not one of linear, cosine"),
        ("--model.scan_layers perhaps", "'perhaps' is not True or False"),
        ("--training.steps", "--training.steps needs a value: a whole number"),
        ("--training.steps --training.seed 3", "--training.steps needs a value"),
        ("training.steps 3", "`training.steps` is not an override"),
    ],
)
def test_an_override_that_cannot_be_used_is_refused_by_name(words, message):
    with pytest.raises(ConfigError) as refused:
        configure.override(Experiment(), words.split())
    assert message in str(refused.value)


def test_a_saved_config_comes_back_equal(tmp_path):
    config = Experiment(name="é", model=ModelConfig(width=64), training=TrainingConfig(steps=7))
    configure.save_config(tmp_path / "run" / "config.json", config)
    assert configure.load_config(tmp_path / "run" / "config.json") == config
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.json"], "no draft is left behind"


def test_fields_of_several_values_are_joined_by_commas_and_survive_json(tmp_path):
    config = configure.override(Experiment(), ["--data.context", "initial_state,task_context"])
    assert config.data.context == ("initial_state", "task_context")
    assert configure.override(Experiment(), ["--data.context="]).data.context == ()
    for words in (
        ["--data.source_weights", "webshop=0.5,tau_bench=2"],
        ["--data.source_weights=webshop=0.5,tau_bench=2"],
    ):
        assert configure.override(Experiment(), words).data.source_weights == ("webshop=0.5", "tau_bench=2")
    configure.save_config(tmp_path / "config.json", config)
    assert configure.load_config(tmp_path / "config.json") == config
    with pytest.raises(ConfigError, match="--data.context: 'initial_state,wether' is not values joined by commas"):
        configure.override(Experiment(), ["--data.context", "initial_state,wether"])


def test_a_saved_config_with_an_unknown_or_mistyped_field_is_refused_by_file_and_field(tmp_path):
    file = tmp_path / "config.json"
    values = configure.to_dict(Experiment())
    values["training"]["step"] = 3
    file.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=r"config.json: unknown configuration key training.step; .* training.steps"):
        configure.load_config(file)
    file.write_text('{"training": {"steps": "3"}}')
    with pytest.raises(ConfigError, match=r"config.json: training.steps is '3', which is not a whole number"):
        configure.load_config(file)
    file.write_text('{"training": 3}')
    with pytest.raises(ConfigError, match="training must be an object"):
        configure.load_config(file)
    file.write_text('{"training": {"st')
    with pytest.raises(ConfigError, match="config.json is not JSON"):
        configure.load_config(file)
    with pytest.raises(ConfigError, match="not a run folder"):
        configure.load_config(tmp_path / "absent" / "config.json")


def test_a_config_that_cannot_be_written_is_a_storage_error_naming_the_path(tmp_path):
    (tmp_path / "run").write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="run"):
        configure.save_config(tmp_path / "run" / "config.json", Experiment())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Experiment(data=DataConfig(row_length=100)), ["data.row_length", "diffusion.block_length (8)"]),
        (Experiment(data=DataConfig(source_weights=("webshop",))), ["data.source_weights", "'webshop'"]),
        (Experiment(data=DataConfig(target_blocks=65)), ["data.target_blocks is 65", "64 blocks"]),
        *(
            (
                Experiment(data=DataConfig(augmentation=AugmentationConfig(drop=DropRates(domain_rules=rate)))),
                [f"data.augmentation.drop.domain_rules is {rate}"],
            )
            for rate in (-0.1, 1.1, float("nan"))
        ),
        (
            Experiment(diffusion=DiffusionConfig(objective="full_sequence", noisy_copies=2)),
            ["diffusion.noisy_copies is 2", "full_sequence", "must be 1"],
        ),
        *(
            (
                Experiment(diffusion=DiffusionConfig(objective=objective, block_curriculum=("4=10",))),
                ["diffusion.block_curriculum has no meaning", objective],
            )
            for objective in ("autoregressive", "full_sequence")
        ),
        (Experiment(model=ModelConfig(heads=5)), ["model.heads is 5", "model.kv_heads (2)"]),
        (Experiment(model=ModelConfig(head_size=7)), ["model.head_size is 7"]),
        (
            Experiment(training=TrainingConfig(gradient_accumulation=3)),
            ["training.batch_size is 8", "accumulation (3)"],
        ),
        (Experiment(training=TrainingConfig(steps=0)), ["training.steps is 0", "above 0"]),
        (Experiment(training=TrainingConfig(validate_every=-1)), ["training.validate_every is -1"]),
        (Experiment(optimizer=OptimizerConfig(beta2=1.0)), ["optimizer.beta2 is 1.0", "below 1"]),
        (Experiment(optimizer=OptimizerConfig(peak_learning_rate=float("nan"))), ["optimizer.peak_learning_rate"]),
        (Experiment(optimizer=OptimizerConfig(weight_decay=float("inf"))), ["optimizer.weight_decay", "finite"]),
        (Experiment(optimizer=OptimizerConfig(muon_learning_rate=-0.02)), ["optimizer.muon_learning_rate", "above 0"]),
        (Experiment(mesh=MeshConfig(data=-1, fsdp=-1)), ["mesh.data and mesh.fsdp are -1"]),
        (Experiment(training=TrainingConfig(steps="5")), ["training.steps is '5'", "whole number"]),
        (Experiment(training=TrainingConfig(steps=True)), ["training.steps is True", "whole number"]),
        (Experiment(training=TrainingConfig(compute_dtype="float16")), ["training.compute_dtype", "float32, bfloat16"]),
        (Experiment(diffusion=DiffusionConfig(mask_weights="equal")), ["diffusion.mask_weights is equal", "wedlm"]),
        (
            Experiment(diffusion=DiffusionConfig(autoregressive_weight=0.5)),
            ["diffusion.autoregressive_weight", "wedlm"],
        ),
        (
            Experiment(diffusion=dataclasses.replace(WEDLM, autoregressive_weight=-1.0)),
            ["autoregressive_weight is -1.0", "0 or more"],
        ),
        (Experiment(sampler=SamplerConfig(window=16)), ["sampler.window is 16", "wedlm"]),
        (Experiment(sampler=SamplerConfig(blocks_from_prompt=True)), ["sampler.blocks_from_prompt is True", "wedlm"]),
        (Experiment(sampler=SamplerConfig(rule="entropy_distance")), ["sampler.rule is entropy_distance", "wedlm"]),
        (
            Experiment(diffusion=WEDLM, model=ModelConfig(layers=2, mixers=("convolution", "attention"))),
            ["model.mixers has convolutions", "wedlm"],
        ),
        (
            Experiment(diffusion=WEDLM, sampler=SamplerConfig(window=-1, entropy_threshold=0.0)),
            ["sampler.window is -1", "sampler.entropy_threshold is 0.0"],
        ),
    ],
)
def test_fields_that_do_not_fit_are_refused_by_name(config, words):
    with pytest.raises(ConfigError) as refused:
        configure.validate(config)
    assert all(word in str(refused.value) for word in words), refused.value


def test_all_problems_are_told_at_once_and_the_defaults_have_none():
    assert configure.validate(Experiment()) == Experiment()
    streaming = Experiment(diffusion=WEDLM, sampler=SamplerConfig(rule="entropy_distance", window=16))
    assert configure.validate(streaming) == streaming
    broken = Experiment(model=ModelConfig(heads=5), training=TrainingConfig(batch_size=0))
    with pytest.raises(ConfigError, match="(?s)training.batch_size.*model.heads"):
        configure.validate(broken)


def test_resuming_allows_more_steps_and_refuses_another_meaning():
    saved = Experiment()
    longer = dataclasses.replace(
        saved, training=TrainingConfig(steps=2000, log_every=1), mesh=MeshConfig(fsdp=2), name="other"
    )
    configure.check_resumable(saved, longer, step=1000)
    changed = dataclasses.replace(saved, model=ModelConfig(width=64), data=DataConfig(shuffle_seed=3))
    with pytest.raises(
        ConfigError, match="(?s)data.shuffle_seed: the run has 0, you gave 3.*model.width: .* 192, .* 64"
    ):
        configure.check_resumable(saved, changed, step=0)
    with pytest.raises(ConfigError, match="training.steps: 10 is below the 500 steps"):
        configure.check_resumable(saved, dataclasses.replace(saved, training=TrainingConfig(steps=10)), step=500)


def test_the_help_names_every_key():
    printed = configure.override_help()
    assert [key for key in configure.field_types() if f"--{key}" not in printed] == []
