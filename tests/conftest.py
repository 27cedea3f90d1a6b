"""Strict JAX settings for all tests: no silent broadcasting, no key used twice, two devices."""

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_num_cpu_devices", 2)
