"""What the fields of an Experiment must obey, alone and together. Pure, on dotted keys and values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from maskworld.config import LORA_TARGETS
from maskworld.errors import ConfigError

_ABOVE_ZERO = (
    "data.vocabulary_size",
    "data.row_length",
    "model.width",
    "model.layers",
    "model.heads",
    "model.kv_heads",
    "model.head_size",
    "model.feed_forward",
    "model.rope_theta",
    "model.norm_epsilon",
    "model.initializer_std",
    "model.embedding_std",
    "model.embedding_multiplier",
    "model.convolution_length",
    "model.experts.per_token",
    "model.experts.feed_forward",
    "model.experts.every",
    "model.lora.alpha",
    "diffusion.block_length",
    "diffusion.noisy_copies",
    "diffusion.minimum_mask_rate",
    "diffusion.logits_chunk",
    "optimizer.peak_learning_rate",
    "optimizer.muon_learning_rate",
    "optimizer.epsilon",
    "optimizer.clip_norm",
    "training.steps",
    "training.batch_size",
    "training.gradient_accumulation",
    "training.log_every",
    "training.validation_batches",
    "training.checkpoint_every",
    "training.keep_last",
    "sampler.threshold",
    "sampler.max_new_tokens",
    "sampler.entropy_threshold",
    "evaluation.batch_size",
)
_NOT_NEGATIVE = (
    "data.target_blocks",
    "data.shuffle_seed",
    "data.workers",
    "diffusion.autoregressive_weight",
    "mesh.cpu_devices",
    "model.vocabulary_size",
    "model.sliding_window",
    "model.experts.count",
    "model.experts.balance_weight",
    "model.lora.rank",
    "optimizer.final_learning_rate_fraction",
    "optimizer.warmup_steps",
    "optimizer.weight_decay",
    "optimizer.beta1",
    "optimizer.beta2",
    "training.seed",
    "training.validate_every",
    "training.keep_best",
    "sampler.denoising_steps",
    "sampler.temperature",
    "sampler.window",
    "sampler.distance_penalty",
    "evaluation.transitions",
    "evaluation.seed",
)
_AT_MOST_ONE = ("diffusion.minimum_mask_rate", "optimizer.final_learning_rate_fraction", "sampler.threshold")
_RATES = tuple(
    f"data.augmentation.drop.{part}"
    for part in ("initial_state", "task_context", "tool_schemas", "domain_rules", "directives", "step_directives")
)
_BELOW_ONE = ("optimizer.beta1", "optimizer.beta2")
_MESH_AXES = ("mesh.data", "mesh.fsdp", "mesh.tensor", "mesh.expert")
# (field, the field it must be a multiple of)
_MULTIPLES = (
    ("data.row_length", "diffusion.block_length"),
    ("model.heads", "model.kv_heads"),
    ("training.batch_size", "training.gradient_accumulation"),
)
_HIGHEST_WEIGHT = 100
_WEDLM_ONLY = {
    "diffusion.mask_weights": "inverse_rate",
    "diffusion.autoregressive_weight": 1.0,
    "sampler.window": 0,
    "sampler.blocks_from_prompt": False,
}
"""Fields of that objective alone, with the values that ask for nothing."""


def problems(values: Mapping[str, Any]) -> Iterator[str]:
    """One sentence for each rule that `values` (dotted key -> value of every field) breaks, naming the field."""
    for key, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{key} is {value}; it must be finite"
    for keys, holds, rule in (
        (_ABOVE_ZERO, lambda value: value > 0, "above 0"),
        (_NOT_NEGATIVE, lambda value: value >= 0, "0 or more"),
        (_AT_MOST_ONE, lambda value: value <= 1, "at most 1"),
        (_RATES, lambda value: 0 <= value <= 1, "between 0 and 1"),
        (_BELOW_ONE, lambda value: value < 1, "below 1"),
    ):
        for key in keys:
            if not holds(values[key]):
                yield f"{key} is {values[key]}; it must be {rule}"
    for key, factor in _MULTIPLES:
        if values[factor] > 0 and values[key] % values[factor]:
            yield f"{key} is {values[key]}; it must be a multiple of {factor} ({values[factor]})"
    if values["diffusion.block_length"] > 0:
        blocks = values["data.row_length"] // values["diffusion.block_length"]
        if values["data.target_blocks"] > blocks:
            yield f"data.target_blocks is {values['data.target_blocks']}; a row has only {blocks} blocks"
    yield from _objective_problems(values)
    yield from _wedlm_problems(values)
    try:
        weights_of_sources(values["data.source_weights"])
    except ConfigError as error:
        yield str(error)
    if values["model.head_size"] % 2:
        yield f"model.head_size is {values['model.head_size']}; rotary positions need it even"
    yield from _model_problems(values)
    yield from _mesh_problems(values)


def weights_of_sources(entries: Sequence[str]) -> dict[str, float]:
    """The weight of each source that `data.source_weights` names, from entries like "webshop=0.5".

    Raises:
        ConfigError: an entry that is no `source=weight`, a weight that is no number from 0 to 100, a source named
            twice.
    """
    weights: dict[str, float] = {}
    for entry in entries:
        name, _, number = (part.strip() for part in entry.partition("="))
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not name or not 0 <= weight <= _HIGHEST_WEIGHT:
            raise ConfigError(
                f"data.source_weights: {entry!r} is no weight of a source; write webshop=0.5, with a number from 0 to "
                f"{_HIGHEST_WEIGHT}"
            )
        if name in weights:
            raise ConfigError(f"data.source_weights: names {name} twice")
        weights[name] = weight
    return weights


def block_curriculum(entries: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """(block length, steps) of each stage that `diffusion.block_curriculum` names, from entries like "4=300".

    Raises:
        ConfigError: an entry that is no `length=steps` with whole numbers above 0.
    """
    stages = []
    for entry in entries:
        length, _, steps = (part.strip() for part in entry.partition("="))
        if not (length.isdecimal() and steps.isdecimal() and int(length) and int(steps)):
            raise ConfigError(
                f"diffusion.block_curriculum: {entry!r} is no stage; write 4=300 for 300 steps with blocks of 4"
            )
        stages.append((int(length), int(steps)))
    return tuple(stages)


def block_length_at(step: int, block_length: int, stages: Sequence[tuple[int, int]]) -> int:
    """The block length with which step `step`, from 0, is trained."""
    for length, steps in stages:
        if step < steps:
            return length
        step -= steps
    return block_length


def _objective_problems(values: Mapping[str, Any]) -> Iterator[str]:
    objective = values["diffusion.objective"]
    if values["diffusion.noisy_copies"] > 1 and objective == "full_sequence":
        yield (
            f"diffusion.noisy_copies is {values['diffusion.noisy_copies']}; where diffusion.objective is full_sequence "
            "there is no clean pass that copies could share, so it must be 1 (a larger training.batch_size gives more)"
        )
    try:
        stages = block_curriculum(values["diffusion.block_curriculum"])
    except ConfigError as error:
        yield str(error)
        return
    block_length = values["diffusion.block_length"]
    for length, _ in stages:
        if block_length > 0 and block_length % length:
            yield (
                f"diffusion.block_curriculum: blocks of {length} do not fit; each length must divide "
                f"diffusion.block_length ({block_length})"
            )
    if stages and objective in ("autoregressive", "full_sequence"):
        yield f"diffusion.block_curriculum has no meaning where diffusion.objective is {objective}; leave it out"


def _wedlm_problems(values: Mapping[str, Any]) -> Iterator[str]:
    if values["diffusion.objective"] == "wedlm":
        if "convolution" in values["model.mixers"]:
            yield (
                "model.mixers has convolutions and diffusion.objective is wedlm; tokens that do not stand in the order "
                "of the text have no neighbours to convolve"
            )
        return
    for key, usual in _WEDLM_ONLY.items():
        if values[key] != usual:
            yield f"{key} is {values[key]}; it has a meaning only where diffusion.objective is wedlm"
    if values["sampler.rule"] == "entropy_distance":
        yield "sampler.rule is entropy_distance; diffusion.objective must be wedlm for it"


def _model_problems(values: Mapping[str, Any]) -> Iterator[str]:
    layers, mixers = values["model.layers"], values["model.mixers"]
    if mixers and len(mixers) != layers:
        yield f"model.mixers names {len(mixers)} layers and model.layers is {layers}; give one mixer for each, or none"
    if "sliding" in mixers and not values["model.sliding_window"]:
        yield "model.mixers has sliding layers; model.sliding_window must say how many keys they see"
    if values["model.lora.rank"] and not values["training.initialize_from"]:
        yield "model.lora.rank is above 0; training.initialize_from must name the run whose weights stay frozen"
    experts, chosen = values["model.experts.count"], values["model.experts.per_token"]
    if experts and chosen > experts:
        yield f"model.experts.per_token is {chosen}; a layer has only {experts} experts (model.experts.count)"
    for layer in values["model.experts.dense_layers"]:
        if not 0 <= layer < layers:
            yield f"model.experts.dense_layers names layer {layer}; layers count from 0 to {layers - 1}"
    for target in values["model.lora.targets"]:
        if target not in LORA_TARGETS:
            yield f"model.lora.targets: no linear map {target!r}; there are {', '.join(LORA_TARGETS)}"


def _mesh_problems(values: Mapping[str, Any]) -> Iterator[str]:
    for key in _MESH_AXES:
        if values[key] == 0 or values[key] < -1:
            yield f"{key} is {values[key]}; it must be above 0, or -1 for all devices that are left"
    open_axes = [key for key in _MESH_AXES if values[key] == -1]
    if len(open_axes) > 1:
        yield f"{' and '.join(open_axes)} are -1; only one mesh axis may be left open"
