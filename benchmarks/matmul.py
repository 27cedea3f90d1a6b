"""What a machine can do at most: operations a second in one large matrix product."""

import time

import jax
import jax.numpy as jnp


def matmul_rate(dtype: str = "float32") -> float:
    """Multiplications and additions a second in a product of 2048 x 2048, best of five."""
    matrix = jnp.ones((2048, 2048), dtype)
    product = jax.jit(jnp.matmul)
    product(matrix, matrix).block_until_ready()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * 2048**3 / min(seconds)
