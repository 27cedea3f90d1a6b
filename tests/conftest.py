"""Strict JAX settings for all tests: no silent broadcasting, no key used twice, four devices."""

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_num_cpu_devices", 4)


@pytest.fixture
def float64():
    """Computes in float64 for the length of one test."""
    with jax.enable_x64(True):
        yield
