"""One network with weights and a batch that PyTorch code has saved."""

import csv
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from torch_weights_files import CELL, write_files

from nasjax.errors import InputError
from nasjax.metrics import score_network, scored_network
from nasjax.networks import LayerConfig, static_network
from nasjax.runs import score_torch_weights
from nasjax.spaces.nasbench201 import from_string

METRICS = ("grad_norm", "naswot")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("torch"))


def test_scores_are_those_of_the_same_network_in_our_layout(files):
    weights, batch = files
    found = score_torch_weights(weights, batch, METRICS)
    config = LayerConfig("lecun", "batch", use_affine=True)
    network = {
        "num_classes": 3,
        "channels": 2,
        "num_cells": 1,
        "config": config,
        "cell_config": LayerConfig("lecun", "batch", use_bias=True),
    }
    genotype = from_string(CELL)
    with np.load(batch) as arrays:
        x, y = arrays["x"].transpose(0, 2, 3, 1), arrays["y"]
    module = static_network("nasbench201", genotype, **network)
    params = jax.eval_shape(module.init, jax.random.key(0), x)["params"]
    with np.load(weights) as arrays:

        def kernel(name):
            array = arrays[f"{name}.weight"]
            return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T

        params["stem_conv"]["kernel"] = kernel("stem.net.0")
        params["classifier"] = {
            "kernel": kernel("top.classifier"),
            "bias": arrays["top.classifier.bias"],
        }
        for name, ours in (("stem.net.1", "stem_norm"), ("top.lastact.0", "last_norm")):
            params[ours] = {"scale": arrays[f"{name}.weight"], "bias": arrays[f"{name}.bias"]}
        for stage in (1, 2):
            block = params[f"reduction_{stage}"]
            block["shortcut"]["kernel"] = kernel(f"reduction{stage}.residual.1")
            for conv in ("conv_a", "conv_b"):
                name = f"reduction{stage}.{conv}.op"
                block[conv]["conv"]["kernel"] = kernel(f"{name}.1")
                block[conv]["norm"] = {
                    "scale": arrays[f"{name}.2.weight"],
                    "bias": arrays[f"{name}.2.bias"],
                }
        for stage in range(3):
            name = f"stack_cell{stage + 1}.0.options.3.op.1"
            conv = params[f"stage_{stage}_cell_0"]["edge_0"]["nor_conv_1x1"]["conv"]
            conv["kernel"], conv["bias"] = kernel(name), arrays[f"{name}.bias"]
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(params))
    expected = score_network(
        scored_network("nasbench201", genotype, params, **network), x, y, METRICS
    )
    assert found.flags == {}
    for name in METRICS:
        assert found.values[name] == pytest.approx(expected.values[name], rel=1e-5), name


def test_float64_changes_digits_only(files):
    single, double = (
        score_torch_weights(*files, ["grad_norm"], dtype=dtype).values["grad_norm"]
        for dtype in (None, "float64")
    )
    assert single != double == pytest.approx(single, rel=1e-4)


@pytest.mark.slow
def test_published_values():
    folder = Path(os.environ.get("NASJAX_DATA", Path(__file__).parents[3] / "shared" / "data"))
    folder = folder / "peer_metrics"
    if not folder.exists():
        pytest.skip(f"{folder} is not there; set NASJAX_DATA")
    with (folder / "values_float32.csv").open() as file:
        published = {
            row["metric"]: float(row["value"])
            for row in csv.DictReader(file)
            if row["name"] == "all_skip" and row["metric"] in ("grad_norm", "snip", "jacob_cov")
        }
    names = {"grad_norm": "grad_norm:code", "snip": "snip:code", "jacob_cov": "jacob_cov"}
    found = score_torch_weights(
        folder / "weights" / "01_all_skip.npz", folder / "batch.npz", list(names.values())
    )
    assert len(published) == 3
    for metric, value in published.items():
        assert found.values[names[metric]] == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"weights": {"arch": None}}, {}, "--arch: must name the cell"),
        ({}, {"arch": "6111"}, "--arch: must be the cell of the weights"),
        ({"weights": {"stem.net.0.weight": None}}, {}, "must hold stem.net.0.weight"),
        (
            {"weights": {"reduction1.conv_a.op.1.weight": None}},
            {},
            "'reduction1.conv_a.op.1.weight'",
        ),
        ({"batch": {"y": None}}, {}, "must hold images x and labels y, got no y"),
        ({"batch": {"x": np.zeros((4, 8, 8, 3), np.float32)}}, {}, r"x must be floats \[batch, 3"),
        ({"batch": {"x": np.zeros((4, 3, 6, 6), np.float32)}}, {}, "multiples of 4"),
        ({"batch": {"y": np.array([0, 1, 2, 3])}}, {}, "y must be 0 to 2.*got 0 to 3"),
        ({"batch": {"y": np.array([0, 1])}}, {}, "y must be 4 integers"),
        ({"batch": {"x": np.full((4, 3, 8, 8), np.nan, np.float32)}}, {}, "`x` must be finite"),
        ({}, {"batch_size": 9}, "--batch-size: must be at most the 4 images"),
        ({}, {"batch_size": 1}, "two examples or more"),
        ({}, {"dtype": "float16"}, "unknown dtype 'float16'"),
    ],
)
def test_what_does_not_fit_is_told(tmp_path, change, options, message):
    weights, batch = write_files(tmp_path, **change)
    with pytest.raises(InputError, match=message):
        score_torch_weights(weights, batch, ["grad_norm"], **options)


def test_files_that_cannot_be_read_are_told(files, tmp_path):
    (tmp_path / "text.npz").write_text("weights")
    np.save(tmp_path / "one.npy", np.zeros(3))
    for name, message in (
        ("absent.npz", "--torch-weights .*absent.npz: .*No such file"),
        ("text.npz", "a damaged one"),
        ("one.npy", "a damaged one"),
    ):
        with pytest.raises(InputError, match=message):
            score_torch_weights(tmp_path / name, files[1], ["grad_norm"])
    with pytest.raises(InputError, match="--batch .*absent.npz: .*No such file"):
        score_torch_weights(files[0], tmp_path / "absent.npz", ["grad_norm"])
