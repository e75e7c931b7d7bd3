"""The parts of a decoder layer as flax.nnx modules: norm, attention, short convolution, feed-forward network.

Pre-norm layers of Qwen3 (arXiv 2505.09388) and its relatives. A layer is a mixer, which moves information between
positions, and a feed-forward network; both are cut open, so that callers choose who sees whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from maskworld.config import ModelConfig
from maskworld.models.experts import Experts, RouterSums
from maskworld.models.kinds import LayerKind
from maskworld.models.linear import Linear, merge_rows


class KeyValue(NamedTuple):
    """Keys and values of one layer (or of all of a kind, with a leading axis): [B, L, G, E] each, keys after RoPE."""

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


def _shrunk(config: ModelConfig) -> float:
    """Standard deviation of matrices that write to the stream: depth must not grow its variance at the start."""
    return config.initializer_std / (2 * config.layers) ** 0.5


class Attention(nnx.Module):
    """Projections of grouped-query attention; the attending itself is the caller's."""

    def __init__(self, config: ModelConfig, window: int, *, rngs: nnx.Rngs):
        """Args: `window`, how many keys a position sees, its own included; 0 does not limit it."""
        width, size, bias = config.width, config.head_size, config.attention_bias
        self.query = Linear(config, "query", width, config.heads * size, bias=bias, rngs=rngs)
        self.key = Linear(config, "key", width, config.kv_heads * size, bias=bias, rngs=rngs)
        self.value = Linear(config, "value", width, config.kv_heads * size, bias=bias, rngs=rngs)
        inner, out_bias = config.heads * size, config.attention_out_bias
        self.out = Linear(config, "out", inner, width, bias=out_bias, std=_shrunk(config), rngs=rngs)
        if config.query_key_norm:
            self.query_norm, self.key_norm = nnx.Param(jnp.ones(size)), nnx.Param(jnp.ones(size))
        self.config, self.window = config, window

    def _heads(self, x: Float[Array, "B N heads*E"]) -> Float[Array, "B N heads E"]:
        return x.reshape(*x.shape[:-1], -1, self.config.head_size)

    def _placed(self, x: Float[Array, "B N heads E"], norm: str, turn: Rotation) -> Float[Array, "B N heads E"]:
        if self.config.query_key_norm:
            x = rms_norm(x, getattr(self, norm)[...], self.config.norm_epsilon)
        return rotate(x, turn)

    def project_query(self, x: Float[Array, "B N D"], turn: Rotation) -> Float[Array, "B N H E"]:
        """Normed and rotated queries."""
        return self._placed(self._heads(self.query(x)), "query_norm", turn)

    def project_key_value(self, x: Float[Array, "B N D"], turn: Rotation) -> KeyValue:
        """Normed and rotated keys, and values: [B, N, G, E] each."""
        return KeyValue(self._placed(self._heads(self.key(x)), "key_norm", turn), self._heads(self.value(x)))

    def project_out(self, x: Float[Array, "B N H E"]) -> Float[Array, "B N D"]:
        """What the heads found, back in the stream."""
        return self.out(x.reshape(*x.shape[:2], -1))


class ShortConvolution(nnx.Module):
    """LFM2's gated short convolution (arXiv 2511.23404): out(output_gate x * conv(input_gate x * value x)).

    The convolution is causal and has its own taps in every channel.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width, bias, length = config.width, config.convolution_bias, config.convolution_length
        self.input_gate = Linear(config, "input_gate", width, width, bias=bias, rngs=rngs)
        self.output_gate = Linear(config, "output_gate", width, width, bias=bias, rngs=rngs)
        self.value = Linear(config, "value", width, width, bias=bias, rngs=rngs)
        self.out = Linear(config, "out", width, width, bias=bias, std=_shrunk(config), rngs=rngs)
        bound = length**-0.5
        self.taps = nnx.Param(jax.random.uniform(rngs.params(), (width, length), minval=-bound, maxval=bound))
        if bias:
            self.taps_bias = nnx.Param(jnp.zeros(width))
        self.has_bias, self.length = bias, length

    def project_in(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """What is convolved."""
        return self.input_gate(x) * self.value(x)

    def gate(self, x: Float[Array, "B N D"], convolved: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """The gated result of the convolution, for the same x as `project_in`."""
        return self.output_gate(x) * convolved

    def convolve(self, back: Sequence[Float[Array, "*batch D"]]) -> Float[Array, "*batch D"]:
        """Sum over the taps; `back[i]` holds what was projected i positions before each position, zero before 0."""
        taps = self.taps[...].astype(jnp.float32)
        total = sum(x.astype(jnp.float32) * taps[:, self.length - 1 - i] for i, x in enumerate(back))
        if self.has_bias:
            total = total + self.taps_bias[...]
        return total.astype(back[0].dtype)

    def project_out(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Back in the stream."""
        return self.out(x)


class FeedForward(nnx.Module):
    """SwiGLU (arXiv 2002.05202): down(silu(gate x) * up x)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.gate = Linear(config, "gate", config.width, config.feed_forward, rngs=rngs)
        self.up = Linear(config, "up", config.width, config.feed_forward, rngs=rngs)
        self.down = Linear(config, "down", config.feed_forward, config.width, std=_shrunk(config), rngs=rngs)

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        gate, up = self.gate(x), self.up(x)
        return self.down(jax.nn.silu(gate) * up)


class Layer(nnx.Module):
    """One pre-norm layer, cut open between its projections so that callers choose keys and queries."""

    def __init__(self, config: ModelConfig, kind: LayerKind, *, rngs: nnx.Rngs):
        self.mixer_norm = nnx.Param(jnp.ones(config.width))
        if kind.mixer == "convolution":
            self.mixer = ShortConvolution(config, rngs=rngs)
        else:
            window = config.sliding_window if kind.mixer == "sliding" else 0
            self.mixer = Attention(config, window, rngs=rngs)
        self.feed_forward_norm = nnx.Param(jnp.ones(config.width))
        if kind.experts:
            self.feed_forward = Experts(config, _shrunk(config), rngs=rngs)
        else:
            self.feed_forward = FeedForward(config, rngs=rngs)
        self.epsilon, self.convolves, self.has_experts = config.norm_epsilon, kind.mixer == "convolution", kind.experts

    def normalize(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Input of the mixer's projections."""
        return rms_norm(x, self.mixer_norm[...], self.epsilon)

    def finish(
        self, x: Float[Array, "B N D"], mixed: Float[Array, "B N ..."], counted: Bool[Array, "B N"] | None = None
    ) -> tuple[Float[Array, "B N D"], RouterSums | None]:
        """Both residual branches: the mixer's output projection, then the feed-forward network.

        `counted` tells which positions enter the router's statistics (None: all); those are None without experts.
        """
        x = x + self.mixer.project_out(mixed)
        normal = rms_norm(x, self.feed_forward_norm[...], self.epsilon)
        if not self.has_experts:
            return x + self.feed_forward(normal), None
        out, sums = self.feed_forward(normal, counted)
        return x + out, sums
