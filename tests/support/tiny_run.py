"""A world of two lamps: trajectories made by hand and an experiment small enough to train in seconds."""

from __future__ import annotations

import random
from pathlib import Path

from maskworld.config import DataConfig, DiffusionConfig, Experiment, ModelConfig, OptimizerConfig, TrainingConfig
from maskworld.data.schema import Step, Trajectory
from maskworld.data.trajectories import write_trajectories


def trajectory(seed: int, split: str) -> Trajectory:
    draw = random.Random(f"{split} {seed}")
    lamps = {"lamp 1": draw.random() < 0.5, "lamp 2": draw.random() < 0.5}
    begun = ", ".join(f"{name} is {'on' if on else 'off'}" for name, on in lamps.items())
    steps = []
    for _ in range(4):
        name = draw.choice(sorted(lamps))
        lamps[name] = not lamps[name]
        steps.append(
            Step(
                action=f"toggle {name}",
                observation=f"You turn {'on' if lamps[name] else 'off'} {name}.",
                facts_added=(f"{'on' if lamps[name] else 'off'}({name})",),
            )
        )
    room = f"{split}-{seed // 2}"
    return Trajectory(f"{split}-{seed}", "lamps", begun, "toggle lamps", tuple(steps), group=room, player="random")


def write_data(folder: Path) -> Path:
    """A folder of trajectories with the three splits."""
    for split, count in (("train", 24), ("validation", 4), ("test", 4)):
        write_trajectories(folder / f"{split}.jsonl", [trajectory(seed, split) for seed in range(count)])
    return folder


def experiment(data: Path, **training: int) -> Experiment:
    """Two layers, 16 wide; noise, shuffle and schedule as in a real run."""
    values = {"steps": 12, "batch_size": 8, "log_every": 1, "validate_every": 6, "checkpoint_every": 4} | training
    return Experiment(
        name="tiny",
        data=DataConfig(trajectories=str(data), vocabulary_size=300, row_length=128),
        model=ModelConfig(width=16, layers=2, heads=2, kv_heads=1, head_size=8, feed_forward=32),
        diffusion=DiffusionConfig(block_length=4, logits_chunk=32),
        optimizer=OptimizerConfig(warmup_steps=2),
        training=TrainingConfig(**{"validation_batches": 2, **values}),
    )


def write_experiment(file: Path, data: Path, **training: int) -> Path:
    """The same as an experiment file."""
    values = ", ".join(f"{name}={value}" for name, value in training.items())
    file.write_text(
        "from pathlib import Path\n"
        "from tiny_run import experiment\n"
        f"config = experiment(Path({str(data)!r}){', ' + values if values else ''})\n"
    )
    return file
