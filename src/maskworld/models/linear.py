"""The linear map of every layer: a product whose backward pass a CPU runs at the speed of its forward pass, a bias, and
a low-rank update where the configuration asks for one."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from maskworld.config import ModelConfig

PRODUCT = "product"
"""Name of every product's result for `jax.checkpoint` policies, which do not see a product inside a custom VJP."""


def merge_rows(x: Float[Array, "B N ..."]) -> Float[Array, "T ..."]:
    """Rows and positions as one axis of T = B N tokens.

    Reductions are written over this: behind an axis of a single row XLA's CPU code for them is ten times slower. Heads
    keep their axis, which a mesh may have sharded.
    """
    return x.reshape(-1, *x.shape[2:])


@jax.custom_vjp
def linear(x: Float[Array, "*batch I"], kernel: Float[Array, "I O"]) -> Float[Array, "*batch O"]:
    """`x @ kernel` in the dtype of x; the kernel's gradient is summed in float32 and keeps the kernel's dtype."""
    return x @ kernel.astype(x.dtype)


def _forward(x, kernel):
    return checkpoint_name(linear(x, kernel), PRODUCT), (x, kernel)


def _backward(residuals, d_out):
    x, kernel = residuals
    d_x = jax.lax.dot_general(d_out, kernel.astype(x.dtype), (((d_out.ndim - 1,), (1,)), ((), ())))
    # One axis of tokens: over two contracted axes XLA would transpose d_out for every product.
    flat_x, flat_d = x.reshape(-1, x.shape[-1]), d_out.reshape(-1, d_out.shape[-1])
    d_kernel = jax.lax.platform_dependent(flat_x, flat_d, cpu=_transposed_first, default=_over_rows)
    return d_x, d_kernel.astype(kernel.dtype)


def _over_rows(x: Float[Array, "T I"], y: Float[Array, "T O"]) -> Float[Array, "I O"]:
    """x^T y"""
    return jax.lax.dot_general(x, y, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def _transposed_first(x: Float[Array, "T I"], y: Float[Array, "T O"]) -> Float[Array, "I O"]:
    """The same. XLA's fast CPU product takes the contracted axis of the left side last only, and left alone the
    compiler folds the transpose into the product again, which then takes the slow path (1.2 to 1.7 times the time)."""
    if x.shape[1] > y.shape[1]:  # the narrower one is cheaper to transpose
        return jax.lax.optimization_barrier(_transposed_first(y, x)).T
    turned = jax.lax.optimization_barrier(x.T)
    return jnp.matmul(turned, y, preferred_element_type=jnp.float32)


linear.defvjp(_forward, _backward)


def grouped_linear(
    x: Float[Array, "T I"], kernel: Float[Array, "X I O"], sizes: Int[Array, " X"]
) -> Float[Array, "T O"]:
    """Row t times the matrix of its group; rows stand group after group, `sizes` of each.

    Rows behind the last group hold anything, and so do their gradients.
    """
    product = jax.lax.ragged_dot(x, kernel.astype(x.dtype), sizes, preferred_element_type=jnp.float32)
    return checkpoint_name(product.astype(x.dtype), PRODUCT)


class Linear(nnx.Module):
    """`x @ kernel`, plus `bias`, plus `scale * (x @ lora_a) @ lora_b` (arXiv 2106.09685, B zero at the start)."""

    def __init__(
        self,
        config: ModelConfig,
        name: str,
        inputs: int,
        outputs: int,
        *,
        rngs: nnx.Rngs,
        bias: bool = False,
        std: float | None = None,
        stack: Sequence[int] = (),
    ):
        """Args: `name` is what `config.lora.targets` calls the map; `stack` are axes in front, one map for each."""
        normal = nnx.initializers.normal(config.initializer_std if std is None else std)
        self.kernel = nnx.Param(normal(rngs.params(), (*stack, inputs, outputs)))
        if bias:
            self.bias = nnx.Param(jnp.zeros(outputs))
        self.has_bias, self.scale = bias, 0.0
        if config.lora.rank and name in config.lora.targets:
            rank, bound = config.lora.rank, inputs**-0.5
            start = jax.random.uniform(rngs.params(), (*stack, inputs, rank), minval=-bound, maxval=bound)
            self.lora_a, self.lora_b = nnx.Param(start), nnx.Param(jnp.zeros((*stack, rank, outputs)))
            self.scale = config.lora.scale

    def __call__(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
        """In the dtype of x."""
        y = linear(x, self.kernel[...])
        if self.scale:
            y = y + self.scale * linear(linear(x, self.lora_a[...]), self.lora_b[...])
        return y + self.bias[...].astype(x.dtype) if self.has_bias else y

    def arrays(self) -> dict[str, Array]:
        """The kernel and, where there is an update, its factors."""
        names = ("kernel", "lora_a", "lora_b") if self.scale else ("kernel",)
        return {name: getattr(self, name)[...] for name in names}
