"""Weights to begin with: those of another run, on this run's mesh and vocabulary.

A checkpoint that never saw a mask token, or this project's control tokens, has rows for them that were never trained,
or none. RMS norms divide by a row's length, so that a row near zero has gradients without bound (LLaDA 2.0, arXiv
2512.15745, met that with the mask); such rows are drawn anew, as long as the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from maskworld.config import Experiment, ModelConfig
from maskworld.errors import ConfigError
from maskworld.models.transformer import Network, Params, join_trainable, split_trainable
from maskworld.training.checkpoints import LoadedParams, load_params
from maskworld.training.fingerprint import fingerprint
from maskworld.training.step import network_of, network_shardings

_FREE = {"family", "vocabulary_size", "lora", "scan_layers", "remat", "attention", "embedding_multiplier"}
_FREE |= {"initializer_std", "embedding_std", "experts"}
_SHORTEST = 0.1
"""Of the median length of an embedding: what is shorter counts as never trained."""


@dataclasses.dataclass(frozen=True)
class Beginning:
    """Parameters of step 0, split into what is trained and what stays."""

    trained: Params
    frozen: Params
    fingerprint: int
    """Of the weights that were read."""


def begin_from(
    experiment: Experiment, network: Network, mesh: Mesh, control_ids: Sequence[int], tokenizer_hash: str
) -> Beginning:
    """The parameters of `training.initialize_from` for this network, placed on the mesh.

    What is trained is float32; what low-rank updates leave frozen keeps the dtype it has in the checkpoint.

    Raises:
        ConfigError: the other run's network has other shapes, or its weights belong to another tokenizer.
        CheckpointError: its checkpoint cannot be read.
    """
    source = Path(experiment.training.initialize_from)
    loaded = load_base(source, mesh)
    _check_shapes(loaded.config.model, network.config, source)
    if loaded.contract.tokenizer_hash not in ("", tokenizer_hash):
        raise ConfigError(
            f"training.initialize_from: the weights in {source} belong to another tokenizer than this run's; "
            f"give --data.tokenizer {source / 'data' / 'tokenizer'}"
        )
    key = jax.random.key(experiment.training.seed)
    shardings = network_shardings(network, mesh)
    ids = jnp.asarray(control_ids)
    build = jax.jit(lambda params: _fitted(params, network, key, ids), out_shardings=shardings)
    mark = fingerprint(loaded.params)
    trained, frozen = split_trainable(build(loaded.params), network.config)
    return Beginning(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), trained), frozen, mark)


def load_base(source: Path, mesh: Mesh | None) -> LoadedParams:
    """The best checkpoint of a run, its parameters placed by their logical axes (None: all on the first device)."""
    if mesh is None:
        return load_params(source)
    return load_params(source, shardings=lambda config, contract: network_shardings(network_of(config, contract), mesh))


def _check_shapes(saved: ModelConfig, wanted: ModelConfig, source: Path) -> None:
    lines = [
        f"  model.{field.name}: {source} has {getattr(saved, field.name)!r}, this run {getattr(wanted, field.name)!r}"
        for field in dataclasses.fields(ModelConfig)
        if field.name not in _FREE and getattr(saved, field.name) != getattr(wanted, field.name)
    ]
    ignored = {"balance_weight": 0.0}
    if dataclasses.replace(saved.experts, **ignored) != dataclasses.replace(wanted.experts, **ignored):
        lines.append(f"  model.experts: {source} has {saved.experts}, this run {wanted.experts}")
    if saved.lora.rank:
        lines.append(f"  model.lora: {source} holds low-rank updates only; export it and convert the result")
    if lines:
        raise ConfigError("training.initialize_from: the network there is another one:\n" + "\n".join(lines))


def _fitted(params: Params, network: Network, key: Array, control_ids: Int[Array, " n"]) -> Params:
    """The parameters with as many rows as this network's vocabulary, usable control rows, and low-rank factors."""
    row_key, new_key = jax.random.split(key)
    params = with_rows(params, network.vocabulary_size, control_ids, row_key)
    if network.config.lora.rank:
        factors, _ = split_trainable(network.init(new_key), network.config)
        return join_trainable(factors, params)
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)


def with_rows(params: Params, rows: int, ids: Int[Array, " n"], key: Array) -> Params:
    """`params` with `rows` rows in `embedding` (and `head`, where there is one), those of `ids` fit for use.

    What is too many falls off the end: rows that no token has, of an embedding padded for hardware. A new column of the
    head is zero, so that its logit is; a new row of the embedding is what `filled_rows` says of `ids`, else zero.
    """
    missing = rows - params["embedding"].shape[0]
    params = dict(params)
    if missing < 0:
        params |= {"embedding": params["embedding"][:missing]}
        params |= {"head": params["head"][:, :missing]} if "head" in params else {}
    elif missing:
        params |= {"embedding": jnp.pad(params["embedding"], ((0, missing), (0, 0)))}
        params |= {"head": jnp.pad(params["head"], ((0, 0), (0, missing)))} if "head" in params else {}
    return params | {"embedding": filled_rows(params["embedding"], ids, key)}


def filled_rows(embedding: Float[Array, "V D"], ids: Int[Array, " n"], key: Array) -> Float[Array, "V D"]:
    """The embedding with those rows of `ids` drawn anew that are too short to have been trained.

    A new row is Gaussian around zero, as long as the median row: the mean of all rows would be no token's direction
    either, and nearly the same for each.
    """
    length = jnp.linalg.norm(embedding.astype(jnp.float32), axis=-1)
    usual = jnp.median(length)
    drawn = jax.random.normal(key, (len(ids), embedding.shape[1]))
    drawn = drawn / jnp.linalg.norm(drawn, axis=-1, keepdims=True) * usual
    short = length[ids] < _SHORTEST * usual
    rows = jnp.where(short[:, None], drawn.astype(embedding.dtype), embedding[ids])
    return embedding.at[ids].set(rows)


def whole_params(loaded: LoadedParams) -> Params:
    """The parameters of a checkpoint with its frozen base, where it holds low-rank updates; else as they are.

    Raises:
        CheckpointError: the base cannot be read.
        ConfigError: the base is not the one that the run was trained with.
    """
    if not loaded.config.model.lora.rank:
        return loaded.params
    contract, network = loaded.contract, network_of(loaded.config, loaded.contract)
    source = Path(loaded.config.training.initialize_from)
    base = load_base(source, None)
    if fingerprint(base.params) != loaded.base_fingerprint:
        raise ConfigError(f"{source} no longer holds the weights that this run's low-rank updates were trained on")
    key = jax.random.key(loaded.config.training.seed)
    ids = jnp.asarray(contract.control_ids)
    fitted = jax.jit(lambda params: _fitted(params, network, key, ids))(base.params)
    return join_trainable(loaded.params, fitted)
