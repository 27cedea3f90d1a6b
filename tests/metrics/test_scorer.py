"""Engines agree, architectures share weights, and a space is compiled once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.metrics import METRICS, space_scorer, walk_steps
from nasjax.spaces import get_space

SIZES = {"channels": 2, "num_cells": 1, "num_classes": 3}
SPACE = get_space("nasbench201")
CELLS = [np.array(cell) for cell in ((3, 1, 2, 4, 0, 3), (1, 3, 0, 2, 1, 4))]


def _batch(size=4, pixels=8):
    x = jax.random.normal(jax.random.key(0), (size, pixels, pixels, 3))
    return x, jnp.arange(size) % 3


def _same(one, other, rtol=1e-3, **others):
    assert one.flags == other.flags
    for name, value in one.values.items():
        tolerance = others.get(name, rtol)
        assert other.values[name] == pytest.approx(value, rel=tolerance, nan_ok=True), name


@pytest.mark.parametrize("engine", ["walk", "program"])
def test_engines_agree_with_automatic_differentiation(engine):
    x, y = _batch()
    metrics = ["grad_norm:code", "snip"]
    metrics += ["condition_number:hnas", "synflow"] if engine == "walk" else []
    fast = space_scorer(SPACE, x, y, metrics, network=SIZES, engine=engine)
    slow = space_scorer(SPACE, x, y, metrics, network=SIZES, engine="autodiff")
    _same(fast(CELLS[0]), slow(CELLS[0]))


@pytest.mark.slow
@pytest.mark.parametrize("space", ["darts", "mlp", "nasbench201"])
def test_engines_agree_on_all_metrics(space):
    found = get_space(space)
    x, y = _batch()
    sizes = SIZES if space != "mlp" else {"num_outputs": 3, "width": 8}
    x = x.reshape(4, -1) if space == "mlp" else x
    metrics = [m for m in METRICS if space == "nasbench201" or m != "synflow:code"]
    metrics.remove("jacob_cov")  # whose four examples leave an eigenvalue of rounding
    auto = space_scorer(found, x, y, metrics, network=sizes)
    reference = space_scorer(found, x, y, metrics, network=sizes, engine="autodiff")
    for seed in range(2):
        genotype = np.asarray(found.sample(jax.random.key(seed)))
        # ZiCo divides by deviations of two gradients, some of which are hardly more than rounding.
        _same(auto(genotype), reference(genotype), rtol=5e-3, zico=2e-2)


def _num_programs():
    jitted = [value for value in vars(walk_steps).values() if hasattr(value, "_cache_size")]
    assert len(jitted) > 10
    return sum(value._cache_size() for value in jitted)


def test_walks_compile_nothing_for_another_architecture():
    x, y = _batch()
    metrics = ["grad_norm", "grasp", "naswot", "synflow"]
    score = space_scorer(SPACE, x, y, metrics, network=SIZES, engine="walk")
    # Every operation, alone and added to something, at every edge.
    for cell in ((3, 2, 4, 1, 3, 2), (2, 3, 3, 4, 2, 1), (4, 1, 1, 3, 4, 4), (1, 4, 2, 2, 1, 3)):
        score(np.array(cell))
    before = _num_programs()
    score(np.array([3, 4, 2, 1, 2, 4]))
    assert _num_programs() == before


@pytest.mark.slow
def test_walks_of_darts_come_to_compile_nothing():
    space = get_space("darts")
    sizes = {"channels": 2, "num_cells": 3, "num_classes": 3}
    score = space_scorer(space, *_batch(), ["grad_norm", "jacob_cov"], network=sizes)
    counts, values = [], []
    for seed in range(13):
        scores = score(np.asarray(space.sample(jax.random.key(seed))))
        counts.append(_num_programs())
        values.append(scores.values["grad_norm"])
        assert "batch normalisation fixes the sum" in scores.flags["jacob_cov"]
    assert counts[-1] == counts[-4]
    assert len(set(values)) == 13


def test_a_program_is_compiled_once(monkeypatch):
    from nasjax.metrics import program as program_module

    traced = []
    on_network = program_module.on_network

    def counted(name, *args, **kwargs):
        traced.append(name)
        return on_network(name, *args, **kwargs)

    monkeypatch.setattr(program_module, "on_network", counted)
    x, y = _batch()
    score = space_scorer(SPACE, x, y, ["grad_norm"], network=SIZES, engine="program")
    values = [score(cell).values["grad_norm"] for cell in CELLS]
    assert traced == ["outputs", "gradient"]
    assert values[0] != pytest.approx(values[1], rel=1e-3)


def test_weights_are_shared_and_of_the_seed():
    x, y = _batch()
    scores = [
        space_scorer(SPACE, x, y, ["snip"], network=SIZES, seed=seed, engine="walk")(CELLS[0])
        for seed in (0, 0, 1)
    ]
    values = [score.values["snip"] for score in scores]
    assert values[0] == values[1]
    assert values[0] != pytest.approx(values[2], rel=1e-3)


def test_what_leads_nowhere_does_not_count():
    x, y = _batch()
    score = space_scorer(SPACE, x, y, ["naswot", "grad_norm"], network=SIZES, engine="walk")
    # Node 2 leads nowhere in the first, and nothing leads to it in the second.
    one, other, plain = (
        score(np.array(cell))
        for cell in ((3, 3, 3, 1, 3, 0), (3, 0, 0, 1, 3, 3), (3, 0, 0, 1, 3, 0))
    )
    assert one == other == plain


@pytest.mark.parametrize("y", [[0, 1, 2, 3], [0, 1, -1, 0]])
def test_labels_without_an_output_are_refused(y):
    x, _ = _batch()
    with pytest.raises(InputError, match="labels from 0 to 2, as the network has 3 outputs"):
        space_scorer(SPACE, x, jnp.array(y), ["snip"], network=SIZES)


def test_wrong_spaces_and_attributes_are_named():
    x, y = _batch()
    with pytest.raises(InputError, match="must be a Space, as `get_space` gives, got 'darts'"):
        space_scorer("darts", x, y, ["snip"])
    with pytest.raises(InputError, match=r"attributes of the networks.*\['channel'\].*channel"):
        space_scorer(SPACE, x, y, ["snip"], network={"channel": 2})


def test_engines_say_what_they_do_not_have():
    x, y = _batch()
    with pytest.raises(InputError, match="'program' does not have naswot in nasbench201"):
        space_scorer(SPACE, x, y, ["naswot"], network=SIZES, engine="program")
    with pytest.raises(InputError, match="'walk' does not have snip in mlp"):
        space_scorer(get_space("mlp"), x[:, 0, 0], y, ["snip"], engine="walk")
    with pytest.raises(InputError, match="unknown engine 'wlak'.*Did you mean 'walk'"):
        space_scorer(SPACE, x, y, ["snip"], network=SIZES, engine="wlak")
