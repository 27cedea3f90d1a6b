"""Every space of the registry keeps the same promises."""

import subprocess
import sys

import jax
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.spaces import SPACES, CellGraph, get_space

NUM_NEIGHBOURS = {
    "darts": 96 + 24,
    "mlp": 9 * 4 + 8,
    "nasbench1shot1_1": 4 * 2 + 2 + 5 + 9,
    "nasbench1shot1_2": 4 * 2 + 1 + 2 + 5 + 9,
    "nasbench1shot1_3": 5 * 2 + 1 + 2 + 5 + 9 + 14,
    "nasbench201": 24,
}
SIZES = {
    "darts": 180**2 * 7**16,
    "mlp": 5**9 * 2**8,
    "nasbench101": 1_538_083 * 3**5,
    "nasbench1shot1_1": 3 * 6 * 10 * 3**4,
    "nasbench1shot1_2": 2 * 3 * 6 * 10 * 3**4,
    "nasbench1shot1_3": 2 * 3 * 6 * 10 * 15 * 3**5,
    "nasbench201": 5**6,
}
BAD_TEXTS = [
    "",
    "   ",
    "nonsense",
    "-1",
    "99999",
    "9" * 5000,
    "|",
    "|none~0|+",
    "(" * 9000,
    "[" * 9000,
    "-" * 9000 + "1",
    "Genotype(",
    "Genotype(normal=" + "-" * 9000 + "1)",
    '{"normal": ' + "[" * 9000,
    '{"normal": 1}',
    "{" * 9000,
    "\x00",
    "\ud800",
    "x" * 10_001,
]


@pytest.fixture(params=sorted(SPACES))
def space(request):
    return SPACES[request.param]


@pytest.fixture
def genotypes(space):
    return jax.vmap(space.sample)(jax.random.split(jax.random.key(7), 64))


def test_registry_and_unknown_name():
    assert sorted(SPACES) == sorted(SIZES)
    assert all(get_space(name) is space and space.name == name for name, space in SPACES.items())
    with pytest.raises(InputError, match="unknown space 'dart'. Did you mean 'darts'"):
        get_space("dart")


def test_static_facts(space):
    assert space.size == SIZES[space.name]
    for exists in space.decisions.values():
        assert exists.dtype == bool
        assert exists.any(axis=-1).all()
        assert not exists.flags.writeable
    listed = space.all_genotypes()
    if listed is not None:
        assert listed.shape == (space.size, *space.genotype_shape)
        assert len(np.unique(listed, axis=0)) == space.size


def test_sample_is_deterministic_and_agrees_under_jit_and_vmap(space, genotypes):
    keys = jax.random.split(jax.random.key(7), 64)
    one_by_one = np.stack([jax.jit(space.sample)(key) for key in keys])
    assert genotypes.dtype == np.int32
    assert genotypes.shape == (64, *space.genotype_shape)
    np.testing.assert_array_equal(genotypes, one_by_one)
    assert len(np.unique(one_by_one, axis=0)) > 55


def test_sample_draws_valid_genotypes(space, genotypes):
    for genotype in np.asarray(genotypes):
        assert space.canonical(genotype).dtype == np.int32


def _num_neighbours(space, genotype):
    """Of this genotype: where only some are valid, those that the space can read."""
    if space.name != "nasbench101":
        return NUM_NEIGHBOURS[space.name]
    number = 5 * 2
    for edge in range(21):
        neighbour = np.array(genotype)
        neighbour[edge] = 1 - neighbour[edge]
        try:
            number += space.is_connected(neighbour)
        except InputError:
            continue
    return number


def test_mutate_is_uniform_over_all_neighbours(space):
    genotype = space.sample(jax.random.key(3))
    num_neighbours = _num_neighbours(space, genotype)
    num_draws = 100 * num_neighbours
    keys = jax.random.split(jax.random.key(4), num_draws)
    mutants = jax.jit(jax.vmap(space.mutate, in_axes=(0, None)))(keys, genotype)
    assert mutants.dtype == np.int32
    changed = (np.asarray(mutants) != np.asarray(genotype)).reshape(num_draws, -1).sum(axis=1)
    np.testing.assert_array_equal(changed, 1)
    _, counts = np.unique(np.asarray(mutants), axis=0, return_counts=True)
    assert len(counts) == num_neighbours
    # Multinomial counts of mean 100: five standard errors.
    assert np.abs(counts - 100).max() < 50
    # Chi-squared has mean n - 1 and standard deviation sqrt(2 (n - 1)).
    degrees = len(counts) - 1
    chi_squared = ((counts - 100.0) ** 2 / 100).sum()
    assert abs(chi_squared - degrees) < 4 * np.sqrt(2 * degrees)
    again = space.mutate(jax.random.clone(keys)[5], genotype)
    np.testing.assert_array_equal(mutants[5], again)
    space.canonical(again)


def test_one_hot_agrees_with_the_genotype_under_jit_and_vmap(space, genotypes):
    mapped = jax.jit(jax.vmap(space.one_hot))(genotypes)
    assert sorted(mapped) == sorted(space.decisions)
    for name, weights in mapped.items():
        assert weights.dtype == np.float32
        assert weights.shape[-1] == space.decisions[name].shape[-1]
        np.testing.assert_array_equal(np.asarray(weights).sum(axis=-1), 1.0)
        np.testing.assert_array_equal(weights[9], space.one_hot(genotypes[9])[name])


def test_strings_round_trip(space, genotypes):
    for genotype in np.asarray(genotypes):
        text = space.to_string(genotype)
        assert "\n" not in text
        read = space.from_string(f"  {text}\n")
        assert read.dtype == np.int32
        np.testing.assert_array_equal(read, genotype)


@pytest.mark.parametrize("text", BAD_TEXTS, ids=lambda text: ascii(text[:12]))
def test_bad_strings_raise_input_error(space, text):
    with pytest.raises(InputError, match="from_string|genotype_from_index") as caught:
        space.from_string(text)
    assert len(str(caught.value)) < 500


def test_truncated_strings_raise_input_error(space):
    text = space.to_string(np.zeros(space.genotype_shape, int))
    for length in range(len(text)):
        with pytest.raises(InputError):
            space.from_string(text[:length])


def test_other_types_raise_input_error(space):
    with pytest.raises(InputError, match="must be a string, got int"):
        space.from_string(6111)


def test_canonical_is_idempotent_and_connected_alike(space, genotypes):
    for genotype in np.asarray(genotypes):
        representative = space.canonical(genotype)
        np.testing.assert_array_equal(space.canonical(representative), representative)
        assert space.is_connected(representative) == space.is_connected(genotype)


@pytest.mark.parametrize("function", ["canonical", "is_connected", "to_string", "describe"])
def test_wrong_genotypes_raise_input_error(space, function):
    good = np.zeros(space.genotype_shape, int)
    with pytest.raises(InputError, match="must be integers of shape"):
        getattr(space, function)(good[:-1])
    with pytest.raises(InputError, match="must be integers of shape"):
        getattr(space, function)(good.astype(float))
    with pytest.raises(InputError, match="must be between 0 and"):
        getattr(space, function)(good + 99)


def test_select_checks_its_logits(space):
    logits = {name: np.zeros(exists.shape) for name, exists in space.decisions.items()}
    assert space.is_connected(space.select(logits))
    name = sorted(logits)[0]
    with pytest.raises(InputError, match="must have the keys"):
        space.select({})
    with pytest.raises(InputError, match="must have shape"):
        space.select(logits | {name: logits[name][:-1]})
    with pytest.raises(InputError, match="NaN"):
        space.select(logits | {name: logits[name] * np.nan})


def test_describe_lists_graphs_in_topological_order(space, genotypes):
    for genotype in np.asarray(genotypes[:8]):
        for graph in space.describe(genotype):
            assert isinstance(graph, CellGraph)
            assert set(graph.inputs) < set(graph.nodes)
            assert graph.output == graph.nodes[-1]
            for source, target, label in graph.edges:
                assert graph.nodes.index(source) < graph.nodes.index(target)
                has_none = target == graph.output or graph.node_operations
                assert label in space.operations or (label == "" and has_none)
            for node, operation in graph.node_operations:
                assert node in graph.nodes
                assert operation in space.operations


def test_import_computes_nothing():
    program = (
        "import nasjax.spaces.nasbench201 as n, jax, sys;"
        "assert n._representatives.cache_info().currsize == 0;"
        "assert n.all_genotypes.cache_info().currsize == 0;"
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
