"""Strict JAX settings for all tests: no silent broadcasting, no key used twice, two devices."""

import atexit
import os
import shutil
import tempfile
import warnings

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)
# Not more for all tests: the number changes how work is cut, and so the last bits of results.
jax.config.update("jax_num_cpu_devices", int(os.environ.get("NASJAX_TEST_DEVICES", "2")))

if "NASJAX_TEST_CACHE" not in os.environ:  # here, not in workers, which share it
    os.environ["NASJAX_TEST_CACHE"] = tempfile.mkdtemp(prefix="nasjax-test-")
    atexit.register(shutil.rmtree, os.environ["NASJAX_TEST_CACHE"], ignore_errors=True)
# What one test compiled is not compiled again by another; with a limit, entries are locked.
jax.config.update("jax_compilation_cache_dir", os.environ["NASJAX_TEST_CACHE"])
jax.config.update("jax_compilation_cache_max_size", 8 * 2**30)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(scope="session")
def tfds():
    """TensorFlow Datasets, where it can be imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pytest.importorskip("tensorflow", reason="TensorFlow is not importable")
        return pytest.importorskip("tensorflow_datasets")


@pytest.fixture(scope="session")
def pictures(tfds, tmp_path_factory):
    """The folder of the data set of `prepared_pictures`, which is found by its name."""
    import prepared_pictures

    folder = tmp_path_factory.mktemp("tfds")
    prepared_pictures.prepare(folder)
    tfds.core.add_data_dir(folder)
    return folder


@pytest.fixture
def float64():
    """Computes in float64 for the length of one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def wide_console():
    """Tables of the commands are not wrapped; workers of pytest-xdist have 80 columns for good."""
    from nasjax.cli_common import console

    before = console.width
    console.width = 200
    yield
    console.width = before
