"""The layer's matrix product: plain values and gradients, whichever side the backward pass transposes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maskworld.models.linear import linear


def product_and_gradients(product, x, kernel, d_out):
    out, pull = jax.vjp(product, x, kernel)
    return out, *pull(d_out)


@pytest.mark.parametrize(("size_in", "size_out"), [(5, 12), (12, 5)])
@pytest.mark.parametrize("batch", [(7,), (2, 3, 4)], ids=str)
def test_values_and_gradients_are_those_of_the_plain_product(size_in, size_out, batch):
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (*batch, size_in))
    kernel = jax.random.normal(keys[1], (size_in, size_out))
    d_out = jax.random.normal(keys[2], (*batch, size_out))
    mine = jax.jit(lambda *a: product_and_gradients(linear, *a))(x, kernel, d_out)
    plain = jax.jit(lambda *a: product_and_gradients(jnp.matmul, *a))(x, kernel, d_out)
    for one, other in zip(mine, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_float32_kernel_is_not_rounded_to_the_dtype_of_the_activations():
    x = jnp.ones((1, 1000, 1), jnp.bfloat16)
    d_out = jnp.full((1, 1000, 1), 1 + 2**-7, jnp.bfloat16)
    _, pull = jax.vjp(linear, x, jnp.ones((1, 1)))
    d_x, d_kernel = pull(d_out)
    assert (d_x.dtype, d_kernel.dtype) == (jnp.bfloat16, jnp.float32)
    assert float(d_kernel[0, 0]) == 1000 * (1 + 2**-7)
