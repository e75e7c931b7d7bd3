"""The network of every family as one flax.nnx module, used functionally (`Network`).

Embedding, layers of one or more kinds (`layers`, `kinds`), final norm and a tied or untied head. The modules know
tokens and positions and nothing of noise; `two_stream` and `decode` decide who sees whom.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from maskworld.config import ModelConfig
from maskworld.models.kinds import LayerKind, Segment, kind_counts, layer_kinds, places, segments
from maskworld.models.layers import Layer, Rotation, rms_norm, rotation
from maskworld.models.linear import PRODUCT
from maskworld.models.range_attention import ATTENDED

Params = dict[str, Any]

_ENDS = {
    "query": ("embed", "heads"),
    "key": ("embed", "kv_heads"),
    "value": ("embed", "kv_heads"),
    "out": ("heads", "embed"),
    "gate": ("embed", "feed_forward"),
    "up": ("embed", "feed_forward"),
    "down": ("feed_forward", "embed"),
    "input_gate": ("embed", "channels"),
    "output_gate": ("embed", "channels"),
}
_CONVOLUTION_ENDS = {"value": ("embed", "channels"), "out": ("channels", "embed")}
_AXES = {
    "embedding": ("vocabulary", "embed"),
    "head": ("embed", "vocabulary"),
    "final_norm": ("embed_norm",),
    "mixer_norm": ("embed_norm",),
    "feed_forward_norm": ("embed_norm",),
    "query_norm": ("head_size",),
    "key_norm": ("head_size",),
    "router": ("embed", "router"),
    "taps": ("channels", "taps"),
    "taps_bias": ("channels",),
}


def parameter_axes(path: tuple[str, ...], dimensions: int) -> tuple[str, ...]:
    """Logical axes of the parameter at `path` of the tree, by its name; stacks put "layers" and "experts" in front.

    Raises:
        KeyError: no parameter has this name.
    """
    *above, name = path
    if name in _AXES:
        axes = _AXES[name]
    else:
        first, last = _ENDS[above[-1]]
        if above[1].startswith("convolution") and above[2] == "mixer":
            first, last = _CONVOLUTION_ENDS.get(above[-1], (first, last))
        axes = {"kernel": (first, last), "bias": (last,), "lora_a": (first, "rank"), "lora_b": ("rank", last)}[name]
    return ("layers", "experts")[: dimensions - len(axes)] + axes


class Transformer(nnx.Module):
    """Embedding, stacked layers, final norm and head."""

    def __init__(self, config: ModelConfig, vocabulary_size: int, dtype: jnp.dtype, *, rngs: nnx.Rngs):
        normal = nnx.initializers.normal(config.initializer_std)
        embedding = nnx.initializers.normal(config.embedding_std)
        self.embedding = nnx.Param(embedding(rngs.params(), (vocabulary_size, config.width)))
        self.layers = nnx.Dict({kind.name: _stack(config, kind, n, rngs) for kind, n in kind_counts(config).items()})
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

    def run_layers(
        self, step: Callable, x: Float[Array, "B N D"], extras: Mapping[str, Any] | None = None, stop: int | None = None
    ) -> tuple[Float[Array, "B N D"], dict[str, Any]]:
        """`x, result = step(layer, x, extra)` over the layers before `stop`, repeated patterns scanned or unrolled.

        `extras` holds by kind name what each of its layers is given, stacked; the results come back in the same form.
        """
        extras, used, results = extras or {}, Counter(), defaultdict(list)
        for segment in segments(layer_kinds(self.config)[:stop]):
            inputs, graphs = {}, {}
            for kind, count in Counter(segment.pattern).items():
                graphs[kind], stack = nnx.split(self.layers[kind.name])
                given = (stack, extras.get(kind.name))
                taken = slice(used[kind], used[kind] + count * segment.repeats)
                used[kind] = taken.stop
                inputs[kind.name] = jax.tree.map(
                    lambda leaf: leaf[taken].reshape(segment.repeats, -1, *leaf.shape[1:]),  # noqa: B023
                    given,
                )
            x, found = self._run_segment(segment, graphs, step, x, inputs)
            for name, values in found.items():
                results[name].append(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), values))
        return x, {name: jax.tree.map(lambda *parts: _joined(parts), *parts) for name, parts in results.items()}

    def _run_segment(self, segment: Segment, graphs: Mapping[LayerKind, Any], step: Callable, x, inputs):
        scanned = self.config.scan_layers and segment.repeats > 1

        def layer_step(graph):
            def run(x, given):
                parameters, extra = given
                return step(nnx.merge(graph, parameters), x, extra)

            return rematerialized(run, self.config, scanned)

        steps = {kind: layer_step(graph) for kind, graph in graphs.items()}

        def body(x, given):
            used, results = Counter(), defaultdict(list)
            for kind in segment.pattern:
                one = jax.tree.map(lambda leaf: leaf[used[kind]], given[kind.name])  # noqa: B023
                used[kind] += 1
                x, result = steps[kind](x, one)
                results[kind.name].append(result)
            return x, {name: _stacked(values) for name, values in results.items()}

        if scanned:
            return jax.lax.scan(body, x, inputs)
        rounds = []
        for i in range(segment.repeats):
            x, found = body(x, jax.tree.map(lambda leaf: leaf[i], inputs))  # noqa: B023
            rounds.append(found)
        return x, _stacked(rounds)

    def layer(self, index: int) -> Layer:
        """Layer `index` taken out of its stack; -1 is the last."""
        kind, place = places(self.config)[index]
        graph, stacked = nnx.split(self.layers[kind.name])
        return nnx.merge(graph, jax.tree.map(lambda leaf: leaf[place], stacked))


def _stack(config: ModelConfig, kind: LayerKind, count: int, rngs: nnx.Rngs) -> Layer:
    create = nnx.vmap(lambda r: Layer(config, kind, rngs=r), in_axes=0, out_axes=0)
    return nnx.split_rngs(splits=count)(create)(rngs)


def _stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _joined(parts: tuple[Array, ...]) -> Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


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
    """A network as a pure function: shapes here, parameters in a plain nested dict outside."""

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
            return parameter_axes(tuple(part.key for part in path), leaf.ndim)

        return jax.tree_util.tree_map_with_path(names, self.abstract_params())
