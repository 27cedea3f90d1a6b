"""What a network's program tells is held against what the network does, example by example."""

import jax
import jax.numpy as jnp
import pytest
from small_networks import conv_network, dense_data, dense_network

from nasjax.networks import LayerConfig, init_params, static_network
from nasjax.ntk.programs import read_program
from nasjax.spaces import get_space

APPLY, PARAMS = dense_network(jax.random.key(0))
X = dense_data(jax.random.key(1))


def _two_groups(params, x):
    """Batch normalisation in groups of half a batch, which two examples alone do not show."""
    groups = x.reshape(2, len(x) // 2, -1) if len(x) > 3 else x[None]
    return APPLY(params, (groups - groups.mean(1, keepdims=True)).reshape(x.shape))


APART = {
    "dense": APPLY,
    "own mean": lambda p, x: APPLY(p, x - x.mean(1, keepdims=True)),
    "softmax": lambda p, x: jax.nn.softmax(APPLY(p, x)),
    "transposed": lambda p, x: (p[0].T @ x.T).T,
    "turned twice": lambda p, x: APPLY(p, jnp.transpose(x).T),
    "checkpointed": jax.checkpoint(APPLY),
    "jitted": jax.jit(APPLY),
    "one more input": lambda p, x: APPLY(p, jnp.concatenate([x[:, :4], jnp.ones((len(x), 1))], 1)),
    "padded": lambda p, x: APPLY(p, jnp.pad(x[:, 1:], ((0, 0), (1, 0)))),
    "pairs": lambda p, x: APPLY(p, jnp.einsum("bi,bij->bj", x, x[:, :, None] * x[:, None])),
}
MIXED = {
    "rolled": lambda p, x: APPLY(p, jnp.roll(x, 1, 0)),
    "flipped": lambda p, x: APPLY(p, x[::-1]),
    "sums": lambda p, x: APPLY(p, jnp.cumsum(x, 0)),
    "mean": lambda p, x: APPLY(p, x - x.mean(0, keepdims=True)),
    "groups": _two_groups,
    "products": lambda p, x: APPLY(p, x @ x.T @ x),
    "numbered": lambda p, x: APPLY(p, x * jnp.arange(1.0, len(x) + 1)[:, None]),
    "mask": lambda p, x: APPLY(p, x * jax.random.normal(jax.random.key(2), x.shape)),
    "reshaped": lambda p, x: APPLY(p, x.T.reshape(x.shape)),
    "padded": lambda p, x: APPLY(p, jnp.pad(x, ((1, 0), (0, 0)))[:-1]),
    "window": lambda p, x: APPLY(
        p, jax.lax.reduce_window(x, 0.0, jax.lax.add, (2, 1), (1, 1), "SAME")
    ),
    "joined": lambda p, x: APPLY(p, jnp.concatenate([x[1:], x[:1]])),
}


def _is_apart(apply_fn):
    """Whether outputs are those of every example by itself."""
    alone = jnp.concatenate([apply_fn(PARAMS, x[None]) for x in X])
    return bool(jnp.allclose(apply_fn(PARAMS, X), alone, atol=1e-5))


@pytest.mark.parametrize("name", APART)
def test_examples_that_are_apart(name):
    assert _is_apart(APART[name])
    assert read_program(APART[name], PARAMS, X).is_apart


@pytest.mark.parametrize("name", MIXED)
def test_examples_that_are_not(name):
    assert not _is_apart(MIXED[name])
    assert not read_program(MIXED[name], PARAMS, X).is_apart


@pytest.mark.parametrize("normalization", ["none", "batch"])
@pytest.mark.parametrize("space", ["nasbench201", "darts"])
def test_cells_are_apart_without_batch_statistics(space, normalization):
    x = jnp.zeros((2, 8, 8, 3))
    for seed in range(4):
        genotype = get_space(space).sample(jax.random.key(seed))
        config = LayerConfig("lecun", normalization, use_affine=True)
        network = static_network(
            space, genotype, num_classes=3, channels=4, num_cells=1, config=config
        )
        params = {"params": init_params(jax.random.key(seed), network, x)}
        program = read_program(network.apply, params, x)
        assert program.is_apart == (normalization == "none")
        assert not program.is_dense


def test_normalised_convolutions_are_not_apart():
    x = jnp.zeros((3, 4, 4, 2))
    for normalization in ("none", "batch"):
        apply_fn, params = conv_network(jax.random.key(0), normalization=normalization)
        assert read_program(apply_fn, params, x).is_apart == (normalization == "none")
