"""Kernels for CPUs against the rules that XLA computes, and how they come to be compiled."""

import hashlib
import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.metrics import conv_kernels, space_scorer
from nasjax.metrics import walk_steps as steps
from nasjax.metrics.conv_rule import ConvBlock
from nasjax.networks import pooling
from nasjax.spaces import get_space

needs_kernels = pytest.mark.skipif(
    conv_kernels.why_not() is not None, reason=f"no kernels: {conv_kernels.why_not()}"
)
BATCH = 6
# Odd sizes, several planes of channels, fewer channels than one plane holds.
BLOCKS = {
    "normalised": (ConvBlock(), (3, 32, 48), (5, 7), False),
    "plain 1x1": (ConvBlock(has_relu=False, is_normalized=False), (1, 16, 32), (4, 6), True),
    "stride 2": (ConvBlock(has_relu=False, stride=2), (3, 3, 16), (7, 8), True),
}
ALL_BLOCKS = {
    f"{relu} {norm} {stride} {sizes} {pixels} {bias}": (
        ConvBlock(relu, norm, stride),
        sizes,
        pixels,
        bias,
    )
    for relu, norm, stride, sizes, pixels, bias in itertools.product(
        (True, False),
        (True, False),
        (1, 2),
        ((1, 32, 16), (3, 16, 16), (3, 3, 32)),
        ((8, 8), (18, 3)),
        (True, False),
    )
}


def _normal(key, *shape, dtype=jnp.float64):
    return jax.random.normal(jax.random.key(key), shape, dtype)


class _Case:
    """A block with everything that its steps are given."""

    def __init__(self, block, sizes, pixels, has_bias, dtype=jnp.float64):
        size, channels, features = sizes
        outs = [-(-length // block.stride) for length in pixels]

        def normal(key, *shape):
            return _normal(key, *shape, dtype=dtype)

        self.block = block
        self.params = {"kernel": normal(0, size, size, channels, features)}
        if has_bias:
            self.params["bias"] = normal(1, features)
        self.x, self.x_tangent = (normal(key, BATCH, *pixels, channels) for key in (2, 3))
        self.totals = tuple(normal(key, BATCH, *pixels, channels) for key in (4, 5, 6))
        self.g = tuple(normal(key, BATCH, *outs, features) for key in (7, 8, 9))
        self.total = normal(10, BATCH, *outs, features)
        self.gradient = normal(11, size, size, channels, features)
        self.saved = steps.conv(block, self.params, self.x, None)[1]
        at = (block, self.params, self.x, self.x_tangent, self.saved, None)
        self.tangent = steps.conv_tangent(*at)[1]

    def forward(self, block, *, has_total):
        return steps.conv(block, self.params, self.x, self.total if has_total else None)

    def tangent_of(self, block, *, has_total):
        total = self.total if has_total else None
        return steps.conv_tangent(block, self.params, self.x, self.x_tangent, self.saved, total)

    def back(self, block, wants, *, has_input, has_total):
        kernels = jnp.ones((wants.num_kernels, BATCH, BATCH), self.x.dtype)
        total = self.totals if has_total else None
        at = (self.params, self.x, self.saved, self.g, total, kernels)
        through, kernels, seen = steps.conv_back(block, wants, has_input, *at)
        sums = None
        if seen.sums is not None:  # the product vanishes where the output is normalised
            squares, product, magnitudes = seen.sums
            sums = squares, product / magnitudes + 1, magnitudes
        return through, kernels, seen.gradient, sums, seen.fisher

    def tangent_back(self, block, *, has_tangent, has_input, has_total):
        x_tangent = self.x_tangent if has_tangent else None
        total = self.totals[0] if has_total else None
        at = (self.params, self.x, x_tangent, self.saved, self.tangent, self.g, self.g[1])
        return steps.conv_tangent_back(block, has_input, *at, self.gradient, total)


def _agree(one, other, rtol):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        if b.size:
            np.testing.assert_allclose(a, b, rtol=0, atol=rtol * float(jnp.abs(b).max()))


def _check(case, rtol, *, is_all):
    native = case.block._replace(is_native=True)
    assert conv_kernels.serves(native, case.params["kernel"])

    def compare(method, *args, **kwargs):
        compute = getattr(case, method)
        found, expected = compute(native, *args, **kwargs), compute(case.block, *args, **kwargs)
        _agree(found, expected, rtol)

    for has_total in (True, False) if is_all else (True,):
        compare("forward", has_total=has_total)
        compare("tangent_of", has_total=has_total)
        compare("tangent_back", has_tangent=True, has_input=True, has_total=has_total)
    compare("back", steps.Wants(True, True, 2), has_input=True, has_total=True)
    if is_all:
        compare("back", steps.Wants(True, False, 0), has_input=False, has_total=True)
        compare("back", steps.Wants(False, True, 0), has_input=True, has_total=False)
        compare("back", steps.Wants(False, False, 3), has_input=True, has_total=True)
        compare("tangent_back", has_tangent=False, has_input=False, has_total=True)


@needs_kernels
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("block", BLOCKS)
def test_kernels_give_what_the_rules_give(block):
    _check(_Case(*BLOCKS[block]), 1e-12, is_all=block == "normalised")


@needs_kernels
@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("block", ALL_BLOCKS)
def test_all_kernels_give_what_the_rules_give(block):
    _check(_Case(*ALL_BLOCKS[block]), 1e-12, is_all=True)


@needs_kernels
@pytest.mark.parametrize("block", ["normalised", pytest.param("stride 2", marks=pytest.mark.slow)])
def test_kernels_hold_in_float32(block):
    _check(_Case(*BLOCKS[block], dtype=jnp.float32), 3e-5, is_all=False)


@needs_kernels
@pytest.mark.usefixtures("float64")
def test_a_batch_that_is_no_multiple_of_anything():
    x, total = _normal(0, 7, 3, 5, 5), jnp.ones((7, 7))
    agreements = conv_kernels.agreement(x, total, 2)
    bits = np.asarray(x > 0).reshape(7, -1)
    expected = 1 + 2 * (bits[:, None] == bits[None]).sum(-1)
    np.testing.assert_array_equal(agreements, expected)


@needs_kernels
@pytest.mark.usefixtures("float64")
def test_kernels_of_many_examples():
    block, batch = ConvBlock(has_relu=False, is_normalized=False, is_native=True), 70
    x, g, params = _normal(0, batch, 2, 2, 16), _normal(1, batch, 2, 2, 80), {}
    params["kernel"] = _normal(2, 1, 1, 16, 80)  # more columns than are summed at once
    saved = conv_kernels.forward(block, params, x, None)[1]
    given = {"has_gradient": False, "has_fisher": False, "first_example": 0, "has_input": False}
    before = jnp.ones((1, batch, batch))
    kernels = conv_kernels.back(block, params, x, saved, (g,), None, before, **given)[1]
    gradients = jnp.einsum("bhwc,bhwf->bcf", x, g).reshape(batch, -1)
    _agree(kernels[0], 1 + gradients @ gradients.T, 1e-13)


@needs_kernels
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("pixels", [(1, 4), (5, 7)])
def test_pools_are_those_of_the_networks(pixels):
    x, other = _normal(0, 3, *pixels, 32), _normal(1, 3, *pixels, 32)
    expected, back = jax.vjp(pooling.avg_pool_3x3, x)
    totals = (other, x)
    found = conv_kernels.pooled((x, 2 * x), totals, is_transposed=False)
    _agree(found, (expected + other, 2 * expected + x), 1e-14)
    found = conv_kernels.pooled((other,), None, is_transposed=True)
    _agree((*found, pooling.avg_pool_3x3_transposed(other)), back(other) * 2, 1e-14)
    found = conv_kernels.pooled((x[..., :3],), (other[..., :3],), is_transposed=False)
    _agree(found, ((expected + other)[..., :3],), 1e-14)


@needs_kernels
@pytest.mark.parametrize("is_normalized", [True, False])
def test_what_is_not_a_number_is_not_hidden(is_normalized):
    block = ConvBlock(is_normalized=is_normalized, is_native=True)
    x, params = _normal(0, 2, 4, 4, 16, dtype=jnp.float32), {"kernel": jnp.ones((3, 3, 16, 16))}
    z = steps.conv(block, params, x.at[0, 1, 1, 3].set(jnp.nan), None)[1].z
    assert jnp.isnan(z[0, 1, 1]).all()
    z = steps.conv(block, params, x.at[0, 1, 1, 3].set(jnp.inf), None)[1].z
    assert not jnp.isfinite(z[0, 1, 1]).any()


def test_other_blocks_are_left_to_xla():
    native = ConvBlock(is_native=True)
    assert conv_kernels.serves(native, jnp.zeros((3, 3, 5, 16)))
    for block, shape in (
        (ConvBlock(), (3, 3, 16, 16)),
        (native, (3, 3, 16, 8)),
        (native, (5, 5, 16, 16)),
        (native._replace(is_depthwise=True), (3, 3, 16)),
    ):
        assert not conv_kernels.serves(block, jnp.zeros(shape))
    assert not conv_kernels.serves(native, jnp.zeros((3, 3, 16, 16), jnp.bfloat16))


@needs_kernels
def test_scores_are_those_of_the_walk():
    x, y = jax.random.normal(jax.random.key(0), (8, 8, 8, 3)), jnp.arange(8) % 3
    sizes = {"channels": 16, "num_cells": 1, "num_classes": 3}
    metrics = ["grad_norm", "snip", "grasp", "condition_number:hnas", "fisher", "naswot"]
    cell = np.array((3, 1, 2, 4, 3, 2))
    native, walk, auto = (
        space_scorer(get_space("nasbench201"), x, y, metrics, network=sizes, engine=engine)(cell)
        for engine in ("native", "walk", "auto")
    )
    assert native == auto
    assert native.flags == walk.flags == {}
    for name, value in walk.values.items():
        assert native.values[name] == pytest.approx(value, rel=1e-3), name
    assert native.values["snip"] != walk.values["snip"]  # as sums have another order


_HASH = """
import hashlib, os, sys
os.sched_setaffinity(0, map(int, sys.argv[1:]))
import jax, jax.numpy as jnp, numpy as np
from nasjax.metrics import conv_kernels
from nasjax.metrics.conv_rule import ConvBlock
assert conv_kernels.why_not() is None
block = ConvBlock(is_native=True)
draw = lambda key, *shape: jax.random.normal(jax.random.key(key), shape)
x, g, params = draw(0, 24, 6, 6, 16), (draw(1, 24, 6, 6, 16),), {"kernel": draw(2, 3, 3, 16, 16)}
saved = jax.jit(lambda: conv_kernels.forward(block, params, x, x))()
back = jax.jit(lambda saved: conv_kernels.back(
    block, params, x, saved, g, None, jnp.ones((1, 24, 24)),
    has_gradient=True, has_fisher=True, first_example=0, has_input=True))(saved[1])
print(hashlib.sha256(b"".join(np.asarray(a).tobytes() for a in jax.tree.leaves((saved, back)))
      ).hexdigest())
"""


@needs_kernels
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be pinned")
def test_results_do_not_depend_on_the_number_of_threads():
    cores = sorted(os.sched_getaffinity(0))
    hashes = {
        subprocess.run(
            [sys.executable, "-c", _HASH, *map(str, used)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for used in (cores[:1], cores)
    }
    assert len(hashes) == 1
    assert len(hashes.pop().strip()) == hashlib.sha256().digest_size * 2


# --- compilation ---


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache that is empty, and a compiler that writes what it was called with."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    compiler = tmp_path / "bin" / "c++"
    compiler.parent.mkdir()
    compiler.write_text(
        '#!/bin/sh\necho "$@" >> "$(dirname "$0")/calls"\n'
        'while [ "$1" != "-o" ]; do shift; done\necho made > "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_kernels_are_compiled_once_for_a_processor(folder, monkeypatch):
    assert conv_kernels.is_to_be_compiled()
    path = conv_kernels._library()
    assert not conv_kernels.is_to_be_compiled()
    assert path.parent == folder / "cache" / "nasjax"
    assert conv_kernels._library() == path
    calls = (folder / "bin" / "calls").read_text().splitlines()
    assert len(calls) == 1 and "-march=native" in calls[0]
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing half made
    monkeypatch.setattr(conv_kernels, "_processor", lambda: "another")
    assert conv_kernels._library() != path


def test_a_cache_that_cannot_be_written_is_done_without(folder):
    (folder / "cache").write_text("a file")
    path = conv_kernels._library()
    assert path.read_text() == "made\n"
    assert folder / "cache" not in path.parents


def test_what_is_wrong_with_the_compiler_is_told(folder, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "c++" in conv_kernels._compiler()[0]
    failing = folder / "bin" / "failing"
    failing.write_text("#!/bin/sh\necho 'disk: error: no space left' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CXX", str(failing))
    reason = conv_kernels._why_not.__wrapped__()
    assert reason.endswith("does not compile conv_kernels.cc: disk: error: no space left")
    assert list((folder / "cache" / "nasjax").iterdir()) == []
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(folder / "nowhere"))
    reason = conv_kernels._why_not.__wrapped__()
    assert reason == "there is no C++ compiler (c++, g++, clang++ or $CXX)"


def test_without_kernels_the_walk_takes_their_place(monkeypatch):
    monkeypatch.setattr(conv_kernels, "why_not", lambda: "there is no compiler")
    x, y = jax.random.normal(jax.random.key(0), (4, 8, 8, 3)), jnp.arange(4) % 3
    space, sizes = get_space("nasbench201"), {"channels": 2, "num_cells": 1, "num_classes": 3}
    cell = np.array((1, 0, 0, 0, 0, 3))
    auto, walk = (
        space_scorer(space, x, y, ["naswot"], network=sizes, engine=engine)(cell)
        for engine in ("auto", "walk")
    )
    assert auto == walk
    with pytest.raises(InputError, match="no 'native' kernels: there is no compiler. Use 'auto'"):
        space_scorer(space, x, y, ["naswot"], network=sizes, engine="native")
