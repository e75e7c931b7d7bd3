"""The first look: minutes on a laptop's CPU, from recorded rooms to a scored world model and a report.

    make quickstart                       # config
    make quickstart-quick                 # quick
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
        vocabulary_size=768,
        row_length=1024,
        context=("initial_state",),
    ),
    model=ModelConfig(
        width=128, layers=4, heads=4, kv_heads=4, head_size=32, feed_forward=384, initializer_std=0.05
    ),
    diffusion=DiffusionConfig(block_length=8),
    optimizer=OptimizerConfig(peak_learning_rate=5e-3, warmup_steps=30),
    training=TrainingConfig(
        steps=280,
        batch_size=4,
        log_every=10,
        validate_every=70,
        validation_batches=2,
        checkpoint_every=70,
    ),
    evaluation=EvaluationConfig(transitions=384),
)

quick = dataclasses.replace(
    config,
    name="quickstart-quick",
    training=dataclasses.replace(config.training, steps=40, validate_every=20, checkpoint_every=20),
    evaluation=dataclasses.replace(config.evaluation, transitions=64),
)
