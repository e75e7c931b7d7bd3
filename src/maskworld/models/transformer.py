"""The Qwen3 / SDAR decoder as flax.nnx modules, used functionally (`Network`).

Qwen3 (arXiv 2505.09388): pre-norm RMSNorm, grouped-query attention with an RMSNorm on every query and key head before
rotary positions (half-split pairs), SwiGLU, tied or untied output head. The modules know tokens and key ranges and
nothing of noise; `two_stream` and `decode` decide who sees whom.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from maskworld.config import ModelConfig
from maskworld.models.linear import PRODUCT, linear, merge_rows
from maskworld.models.range_attention import ATTENDED

Params = dict[str, Any]

LOGICAL_AXES = {
    "embedding": ("vocabulary", "embed"),
    "query": ("embed", "heads"),
    "key": ("embed", "kv_heads"),
    "value": ("embed", "kv_heads"),
    "out": ("heads", "embed"),
    "gate": ("embed", "feed_forward"),
    "up": ("embed", "feed_forward"),
    "down": ("feed_forward", "embed"),
    "head": ("embed", "vocabulary"),
    "query_norm": ("head_size",),
    "key_norm": ("head_size",),
    "attention_norm": ("embed_norm",),
    "feed_forward_norm": ("embed_norm",),
    "final_norm": ("embed_norm",),
}
"""Logical axes of every parameter by its name; stacked layers put "layers" in front."""


class KeyValue(NamedTuple):
    """Keys and values of one layer (or of all, with a leading layer axis): [B, L, G, E] each, keys after RoPE."""

    key: Array
    value: Array


def rms_norm(x: Float[Array, "*batch D"], weight: Float[Array, " D"], epsilon: float) -> Float[Array, "*batch D"]:
    """Root-mean-square norm in float32 (weight included, one rounding at the end), result in the dtype of x."""
    wide = (merge_rows(x) if x.ndim > 2 else x).astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return (wide * scale * weight).astype(x.dtype).reshape(x.shape)


class Rotation(NamedTuple):
    """Cosine and sine of every rotary angle, [B, N, E/2] float32; made once per forward, used by every layer."""

    cos: Array
    sin: Array


def rotation(positions: Int[Array, "B N"], head_size: int, theta: float) -> Rotation:
    """Angles position / theta^(2i/E) in float32 (RoFormer, arXiv 2104.09864)."""
    frequency = theta ** (-jnp.arange(0, head_size, 2, dtype=jnp.float32) / head_size)
    angle = positions[..., None].astype(jnp.float32) * frequency
    return Rotation(jnp.cos(angle), jnp.sin(angle))


def rotate(x: Float[Array, "B N heads E"], turn: Rotation) -> Float[Array, "B N heads E"]:
    """Turn the half-split pairs (i, i + E/2) of every head (the layout of Llama and Qwen)."""
    cos, sin = turn.cos[:, :, None], turn.sin[:, :, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    # A sum of padded halves: XLA's CPU code for a concatenation takes three times as long.
    low, high = ((0, 0),) * 3 + ((0, first.shape[-1]),), ((0, 0),) * 3 + ((first.shape[-1], 0),)
    turned = jnp.pad(first * cos - second * sin, low) + jnp.pad(second * cos + first * sin, high)
    return turned.astype(x.dtype)


class Attention(nnx.Module):
    """Projections of grouped-query attention; the attending itself is the caller's."""

    def __init__(self, config: ModelConfig, dtype: jnp.dtype, *, rngs: nnx.Rngs):
        normal = nnx.initializers.normal(config.initializer_std)
        # The residual branches are scaled down so that depth does not grow the stream's variance at the start.
        shrunk = nnx.initializers.normal(config.initializer_std / (2 * config.layers) ** 0.5)
        width, size = config.width, config.head_size
        self.query = nnx.Param(normal(rngs.params(), (width, config.heads * size)))
        self.key = nnx.Param(normal(rngs.params(), (width, config.kv_heads * size)))
        self.value = nnx.Param(normal(rngs.params(), (width, config.kv_heads * size)))
        self.out = nnx.Param(shrunk(rngs.params(), (config.heads * size, width)))
        self.query_norm = nnx.Param(jnp.ones(size))
        self.key_norm = nnx.Param(jnp.ones(size))
        self.config, self.dtype = config, dtype

    def _heads(self, x, kernel):
        return linear(x, kernel[...]).reshape(*x.shape[:-1], -1, self.config.head_size)

    def project_query(self, x: Float[Array, "B N D"], turn: Rotation) -> Float[Array, "B N H E"]:
        """Normed and rotated queries."""
        return rotate(rms_norm(self._heads(x, self.query), self.query_norm[...], self.config.norm_epsilon), turn)

    def project_key_value(self, x: Float[Array, "B N D"], turn: Rotation) -> KeyValue:
        """Normed and rotated keys, and values: [B, N, G, E] each."""
        key = rms_norm(self._heads(x, self.key), self.key_norm[...], self.config.norm_epsilon)
        return KeyValue(rotate(key, turn), self._heads(x, self.value))

    def project_out(self, x: Float[Array, "B N H E"]) -> Float[Array, "B N D"]:
        """What the heads found, back in the stream."""
        return linear(x.reshape(*x.shape[:2], -1), self.out[...])


class FeedForward(nnx.Module):
    """SwiGLU (arXiv 2002.05202): down(silu(gate x) * up x)."""

    def __init__(self, config: ModelConfig, dtype: jnp.dtype, *, rngs: nnx.Rngs):
        normal = nnx.initializers.normal(config.initializer_std)
        shrunk = nnx.initializers.normal(config.initializer_std / (2 * config.layers) ** 0.5)
        self.gate = nnx.Param(normal(rngs.params(), (config.width, config.feed_forward)))
        self.up = nnx.Param(normal(rngs.params(), (config.width, config.feed_forward)))
        self.down = nnx.Param(shrunk(rngs.params(), (config.feed_forward, config.width)))
        self.dtype = dtype

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        gate, up = linear(x, self.gate[...]), linear(x, self.up[...])
        return linear(jax.nn.silu(gate) * up, self.down[...])


class Layer(nnx.Module):
    """One pre-norm decoder layer, cut open between its projections so that callers choose keys and queries."""

    def __init__(self, config: ModelConfig, dtype: jnp.dtype, *, rngs: nnx.Rngs):
        self.attention_norm = nnx.Param(jnp.ones(config.width))
        self.attention = Attention(config, dtype, rngs=rngs)
        self.feed_forward_norm = nnx.Param(jnp.ones(config.width))
        self.feed_forward = FeedForward(config, dtype, rngs=rngs)
        self.epsilon = config.norm_epsilon

    def normalize(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Input of the attention projections."""
        return rms_norm(x, self.attention_norm[...], self.epsilon)

    def finish(self, x: Float[Array, "B N D"], attended: Float[Array, "B N H E"]) -> Float[Array, "B N D"]:
        """Both residual branches: the attention output's projection, then the feed-forward network."""
        x = x + self.attention.project_out(attended)
        return x + self.feed_forward(rms_norm(x, self.feed_forward_norm[...], self.epsilon))


class Transformer(nnx.Module):
    """Embedding, stacked layers, final norm and head."""

    def __init__(self, config: ModelConfig, vocabulary_size: int, dtype: jnp.dtype, *, rngs: nnx.Rngs):
        normal = nnx.initializers.normal(config.initializer_std)
        embedding = nnx.initializers.normal(config.embedding_std)
        self.embedding = nnx.Param(embedding(rngs.params(), (vocabulary_size, config.width)))
        stack = nnx.vmap(lambda r: Layer(config, dtype, rngs=r), in_axes=0, out_axes=0)
        self.layers = nnx.split_rngs(splits=config.layers)(stack)(rngs)
        self.final_norm = nnx.Param(jnp.ones(config.width))
        if not config.tie_embeddings:
            self.head = nnx.Param(normal(rngs.params(), (config.width, vocabulary_size)))
        self.config, self.dtype = config, dtype

    def embed(self, tokens: Int[Array, "B N"]) -> Float[Array, "B N D"]:
        """The stream as it enters the first layer, in the compute dtype."""
        x = self.embedding[...][tokens].astype(self.dtype)
        return x * self.config.embedding_multiplier if self.config.embedding_multiplier != 1 else x

    def rotation(self, positions: Int[Array, "B N"]) -> Rotation:
        """Rotary angles of the positions."""
        return rotation(positions, self.config.head_size, self.config.rope_theta)

    def head_kernel(self) -> Float[Array, "D V"]:
        """The output projection; the transposed embedding when tied."""
        return self.embedding[...].T if self.config.tie_embeddings else self.head[...]

    def normalize(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        """The final norm."""
        return rms_norm(x, self.final_norm[...], self.config.norm_epsilon)

    def logits(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Float32 logits of hidden states that have not passed the final norm."""
        kernel = self.head_kernel().astype(self.dtype)
        return jnp.matmul(self.normalize(x), kernel, preferred_element_type=jnp.float32)

    def run_layers(self, step, x, per_layer=None, layers: slice = slice(None)):
        """`x, y = step(layer, x, per_layer[i])` over the layers, scanned or unrolled; returns x and the stacked y."""
        graph, stacked = nnx.split(self.layers)
        stacked = jax.tree.map(lambda leaf: leaf[layers], stacked)

        def body(x, inputs):
            parameters, extra = inputs
            return step(nnx.merge(graph, parameters), x, extra)

        body = rematerialized(body, self.config, scanned=self.config.scan_layers)
        if self.config.scan_layers:
            return jax.lax.scan(body, x, (stacked, per_layer))
        results = []
        for i in range(jax.tree.leaves(stacked)[0].shape[0]):
            x, y = body(x, jax.tree.map(lambda leaf: leaf[i], (stacked, per_layer)))  # noqa: B023
            results.append(y)
        return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)

    def layer(self, index: int) -> Layer:
        """Layer `index` taken out of the stack."""
        graph, stacked = nnx.split(self.layers)
        return nnx.merge(graph, jax.tree.map(lambda leaf: leaf[index], stacked))


def rematerialized(layer_step: Callable, config: ModelConfig, scanned: bool) -> Callable:
    """`layer_step` that keeps for its backward pass what `config.remat` says and computes the rest again.

    `scanned`: whether it is the body of a scan. There nothing can be merged with the forward pass, and the barriers
    that prevent it elsewhere would only cost.
    """
    if config.remat == "none":
        return layer_step
    policy = jax.checkpoint_policies.nothing_saveable
    if config.remat == "dots":
        policy = jax.checkpoint_policies.save_only_these_names(PRODUCT, ATTENDED)
    return jax.checkpoint(layer_step, policy=policy, prevent_cse=not scanned)


@dataclass(frozen=True)
class Network:
    """A transformer as a pure function: shapes here, parameters in a plain nested dict outside."""

    config: ModelConfig
    vocabulary_size: int
    compute_dtype: str = "float32"

    def _create(self, key: Array) -> Transformer:
        return Transformer(self.config, self.vocabulary_size, jnp.dtype(self.compute_dtype), rngs=nnx.Rngs(params=key))

    def init(self, key: Array) -> Params:
        """Float32 parameters from one typed key."""
        return nnx.to_pure_dict(nnx.state(self._create(key)))

    def abstract_params(self) -> Params:
        """Shapes and dtypes of the parameters, nothing allocated."""
        return jax.eval_shape(self.init, jax.random.key(0))

    def bind(self, params: Params) -> Transformer:
        """The module over these parameters, to be used and dropped inside one traced function."""
        module = nnx.eval_shape(lambda: self._create(jax.random.key(0)))
        graph, state = nnx.split(module)
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state)

    def logical_axes(self) -> Params:
        """A tree like the parameters that holds a tuple of logical axis names for each."""

        def names(path, leaf):
            axes = LOGICAL_AXES[path[-1].key]
            return ("layers",) * (leaf.ndim - len(axes)) + axes

        return jax.tree_util.tree_map_with_path(names, self.abstract_params())
