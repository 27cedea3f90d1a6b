"""Strict JAX settings for all tests: no silent broadcasting, no key used twice, two devices."""

import os

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)
# Not more for all tests: the number changes how work is cut, and so the last bits of results.
jax.config.update("jax_num_cpu_devices", int(os.environ.get("NASJAX_TEST_DEVICES", "2")))


@pytest.fixture
def float64():
    """Computes in float64 for the length of one test."""
    with jax.enable_x64(True):
        yield
