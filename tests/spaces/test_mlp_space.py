"""The space of fully connected networks: its layout, notation, list and graphs, at any depth."""

import jax
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.spaces import mlp_space
from nasjax.spaces.mlp import ACTIVATION_NAMES, MLP, SKIP, split_genotype

TEXT = "relu|tanh+skip|swish|leaky_relu|sigmoid+skip|relu|relu|tanh|swish+skip"
GENOTYPE = [0, 3, 4, 1, 2, 0, 0, 3, 4, 1, 0, 0, 1, 0, 0, 0, 1]


def test_layout_and_notation():
    assert MLP.from_string(TEXT).tolist() == GENOTYPE
    assert MLP.to_string(np.array(GENOTYPE)) == TEXT
    activations, skips = split_genotype(np.array(GENOTYPE))
    assert activations.tolist() == GENOTYPE[:9]
    assert skips.tolist() == GENOTYPE[9:]
    assert MLP.operations == (*ACTIVATION_NAMES, SKIP)
    assert mlp_space(4).genotype_shape == (5,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT + "|relu", "depth 10 must have 9 hidden layers joined by '\\|', got 10"),
        ("relu|tanh", "got 2 in 'relu\\|tanh'. For another depth use mlp_space"),
        (TEXT.replace("tanh+skip", "tanhh+skip"), "unknown operation 'tanhh'. Did you mean 'tanh'"),
        (TEXT.replace("+skip", "+skp"), r"layer 2 must be .*'activation\+skip', got 'tanh\+skp'"),
        (TEXT.replace("+skip", "+"), r"layer 2 must be .*got 'tanh\+'"),
        (TEXT.replace("+skip", "+skip+skip"), r"layer 2 must be .*got 'tanh\+skip\+skip'"),
        (TEXT.replace("relu|tanh", "relu+skip|tanh"), "layer 1 must be an activation alone"),
        (TEXT.replace("|tanh", "| tanh"), "unknown operation ' tanh'"),
        (TEXT.replace("swish|", "skip|"), "unknown operation 'skip'"),
    ],
)
def test_from_string_says_what_is_malformed(text, message):
    with pytest.raises(InputError, match=f"mlp.from_string: .*{message}"):
        MLP.from_string(text)


def test_depth_is_checked():
    assert mlp_space(7) is mlp_space(7)
    for depth in (2, -1):
        with pytest.raises(InputError, match=f"at least 3, got {depth}"):
            mlp_space(depth)


def test_small_spaces_are_listed_with_all_their_strings():
    for depth, size in ((3, 50), (4, 500)):
        space = mlp_space(depth)
        genotypes = space.all_genotypes()
        assert space.size == len(genotypes) == len(np.unique(genotypes, axis=0)) == size
        assert len({space.to_string(genotype) for genotype in genotypes}) == size
        assert genotypes.dtype == np.int32
        assert genotypes.min() == 0
        np.testing.assert_array_equal(genotypes.max(axis=0), [4] * (depth - 1) + [1] * (depth - 2))
    assert MLP.all_genotypes() is None


def test_sample_is_uniform():
    genotypes = np.asarray(jax.vmap(MLP.sample)(jax.random.split(jax.random.key(0), 5000)))
    for decision, bound in enumerate([5] * 9 + [2] * 8):
        counts = np.bincount(genotypes[:, decision], minlength=bound)
        assert len(counts) == bound
        standard_error = np.sqrt(5000 / bound * (1 - 1 / bound))
        assert np.abs(counts - 5000 / bound).max() < 4.5 * standard_error


def test_one_hot_and_select_are_inverse():
    weights = MLP.one_hot(np.array(GENOTYPE))
    np.testing.assert_array_equal(weights["activations"], np.eye(5)[GENOTYPE[:9]])
    np.testing.assert_array_equal(weights["skips"], np.eye(2)[GENOTYPE[9:]])
    assert MLP.select(weights).tolist() == GENOTYPE
    zeros = {name: np.zeros(exists.shape) for name, exists in MLP.decisions.items()}
    assert MLP.select(zeros).tolist() == [0] * 17


def test_describe_draws_a_chain_with_skips_beside_it():
    space = mlp_space(4)
    (graph,) = space.describe(space.from_string("relu|tanh+skip|swish"))
    assert graph.inputs == ("x",)
    assert graph.nodes == ("x", "1", "2", "3", "out")
    assert graph.edges == (
        ("x", "1", "relu"),
        ("1", "2", "tanh"),
        ("1", "2", "skip"),
        ("2", "3", "swish"),
        ("3", "out", ""),
    )
