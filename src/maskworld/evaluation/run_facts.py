"""What was trained on what, as short (name, value) pairs for a reader; what the run folder does not say is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maskworld.evaluation.charts import number
from maskworld.evaluation.run_record import RunRecord
from maskworld.evaluation.scores import group_noun
from maskworld.training.progress import duration

Facts = list[tuple[str, str]]


def data_facts(run: RunRecord) -> Facts:
    """Environment, episodes and rooms by split, tokens of the training rows, vocabulary."""
    data = run.scores.get("data") or {}
    facts: Facts = []
    environments = data.get("environments") or []
    if environments:
        facts.append(("environment", ", ".join(map(str, environments))))
    for split, counts in (data.get("splits") or {}).items():
        groups, episodes, steps = (number(counts[name]) for name in ("groups", "trajectories", "steps"))
        noun = group_noun(environments, counts["groups"])
        facts.append((split, f"{groups} {noun}, {episodes} episodes, {steps} steps"))
    counts = train_counts(run)
    if tokens := counts.get("tokens"):
        facts.append(("training tokens", number(tokens)))
        targets = counts.get("targets", 0)
        facts.append(("of them targets", f"{number(targets)} ({targets / tokens:.0%})"))
    _add(facts, "vocabulary", run.manifest.get("vocabulary_size"))
    return facts


def train_counts(run: RunRecord) -> Mapping[str, Any]:
    """What the packed rows of the training split hold; empty where there is no manifest."""
    return ((run.manifest.get("splits") or {}).get("train") or {}).get("counts") or {}


def model_facts(run: RunRecord) -> Facts:
    """Size, shape, block length, schedule."""
    facts: Facts = []
    _add(facts, "parameters", run.event("parameters"))
    if run.value("model.layers"):
        facts.append(("layers × width", f"{run.value('model.layers')} × {run.value('model.width')}"))
        facts.append(("heads, key/value", f"{run.value('model.heads')}, {run.value('model.kv_heads')}"))
        _add(facts, "feed-forward", run.value("model.feed_forward"))
    _add(facts, "block length", run.value("diffusion.block_length"))
    if schedule := run.value("diffusion.schedule"):
        facts.append(("mask schedule", f"{schedule}, one t per {run.value('diffusion.draw_t')}"))
    if rule := run.value("sampler.rule"):
        threshold = f" above {run.value('sampler.threshold')}" if "dynamic" in rule else ""
        facts.append(("unmasking rule", rule.replace("_", " ") + threshold))
    return facts


def training_facts(run: RunRecord) -> Facts:
    """Steps, batch, tokens seen, machine, duration, speed."""
    facts: Facts = []
    done, planned = max((line["step"] for line in run.metrics), default=None), run.number("training.steps")
    if done is not None:
        facts.append(("steps", number(done) + (f" of {number(planned)}" if planned and planned != done else "")))
    if run.number("training.batch_size"):
        facts.append(("batch", f"{run.value('training.batch_size')} rows of {run.value('data.row_length')} tokens"))
    if done and (per_step := tokens_per_step(run)):
        facts.append(("tokens seen", number(done * per_step)))
    if rate := run.number("optimizer.peak_learning_rate"):
        facts.append(("learning rate", f"{rate:g}"))
    if validation := run.series("validation", "loss"):
        step, loss = min(validation, key=lambda point: point[1])
        facts.append(("best validation loss", f"{loss:.3g} at step {number(step)}"))
    if machine := run.event("machine"):
        facts.append(("machine", str(machine)))
    if seconds := run.event("seconds"):
        facts.append(("duration", duration(seconds)))
    if speeds := [speed for _, speed in run.series("train", "tokens_per_second")]:
        facts.append(("tokens per second", number(sorted(speeds)[len(speeds) // 2]) + " (median)"))
    return facts


def tokens_per_step(run: RunRecord) -> float | None:
    """Mean clean tokens of a global batch, padding not counted; None where the files do not say."""
    rows, counts = run.number("training.batch_size"), train_counts(run)
    return rows * counts["tokens"] / counts["rows"] if rows and counts.get("rows") else None


def _add(facts: Facts, name: str, value: Any) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        facts.append((name, number(value)))
    elif value and not isinstance(value, Mapping):
        facts.append((name, str(value)))
