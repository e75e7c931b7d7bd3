"""The first look: minutes on a laptop's CPU, from recorded rooms to a scored world model and a report.

    make quickstart                       # config
    make quickstart-quick                 # quick

The rooms are those of tests/data/alfworld_house: the real engine's text in crowded rooms, where several things of a
kind stand in several places of a kind, so that counting what followed an action in training helps little. e0, the
room's true state, stands in front of the steps; the task, the list of commands and the rules are left out, because
they are the same for every room or say nothing about what a command does.
"""

import dataclasses

from maskworld.config import (
    DataConfig,
    DiffusionConfig,
    EvaluationConfig,
    Experiment,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
)

config = Experiment(
    name="quickstart",
    data=DataConfig(
        trajectories="tests/data/alfworld_house",
        vocabulary_size=640,
        row_length=1024,
        context=("initial_state",),
    ),
    model=ModelConfig(
        width=128,
        layers=4,
        heads=4,
        kv_heads=4,
        head_size=32,
        feed_forward=384,
        tie_embeddings=False,
        initializer_std=0.05,
        embedding_std=1.0,
    ),
    diffusion=DiffusionConfig(block_length=8),
    optimizer=OptimizerConfig(name="muon", peak_learning_rate=5e-3, muon_learning_rate=0.02, warmup_steps=30),
    training=TrainingConfig(
        steps=360,
        batch_size=2,
        log_every=10,
        validate_every=90,
        validation_batches=8,
        checkpoint_every=90,
    ),
    evaluation=EvaluationConfig(transitions=320),
)

quick = dataclasses.replace(
    config,
    name="quickstart-quick",
    training=dataclasses.replace(config.training, steps=40, validate_every=0, checkpoint_every=20),
    evaluation=dataclasses.replace(config.evaluation, transitions=32),
)
