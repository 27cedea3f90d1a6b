"""Scoring runs: their numbers by another way, what they leave, and interruption at any moment."""

import csv
import dataclasses
import json
import math

import jax
import numpy as np
import pyarrow.parquet
import pytest
from made_up_scores import made_up_scorer

from nasjax.errors import InputError
from nasjax.metrics import METRICS, Scores, space_scorer
from nasjax.runs import (
    Process,
    ScoreSettings,
    open_shared_folder,
    request_strings,
    run_score,
)
from nasjax.runs import score as score_module
from nasjax.runs.score_table import best_rows
from nasjax.spaces import get_space, mlp_space
from nasjax.spaces.nasbench201 import official_index

TINY = ScoreSettings(
    space="mlp",
    metrics=("grad_norm", "condition_number", "naswot"),
    batch_size=4,
    image_size=8,
    channels=8,
    cells=3,
    num_seeds=2,
)
"""Dense networks, which compile fast."""
STRINGS = ("relu|relu", "tanh|relu", "relu|relu", "swish|sigmoid+skip")
REQUEST = request_strings(mlp_space(3), STRINGS)
TABLES = ("scores.csv", "scores.parquet")


class StoppedError(Exception):
    """Raised in the middle of a run."""


def stop_after(count):
    """An ``on_step`` that ends the run when so many networks have been scored in it."""
    seen = []

    def on_step(*step):
        seen.append(step)
        if len(seen) == count + 1:
            raise StoppedError

    return on_step


def tables(folder):
    return [(folder / name).read_bytes() for name in TABLES]


@pytest.fixture
def quick(monkeypatch, tmp_path_factory):
    """The folder of an unbroken run with numbers that need no computation."""
    monkeypatch.setattr(score_module, "space_scorer", made_up_scorer)
    folder = tmp_path_factory.mktemp("quick")
    run_score(TINY, REQUEST, folder)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("score")
    seen = []
    result = run_score(TINY, REQUEST, folder, on_step=lambda *step: seen.append(step[:3]))
    return folder, result, seen


def test_it_leaves_tables_and_metadata(whole):
    folder, result, seen = whole
    assert sorted(path.name for path in folder.iterdir() if path.name[0] != ".") == sorted(
        [*TABLES, "metadata.json", "settings.json", "record-0.jsonl"]
    )
    assert seen == [("scores", step, 6) for step in range(7)]
    assert (result.num_run, result.num_missing) == (6, 0)
    with (folder / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["architecture"] for row in rows] == list(STRINGS)
    assert [row["index"] for row in rows] == ["0", "1", "2", "3"]
    assert rows[0] | {"index": ""} == rows[2] | {"index": ""}
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["num_architectures"] == 4
    assert metadata["num_distinct"] == 3
    assert metadata["weight_seeds"] == [0, 1]
    assert metadata["settings"]["initialization"] == "ntk"
    assert metadata["data"]["image_size"] == 8
    assert metadata["batch"]["num_examples"] == 4
    assert metadata["versions"]["jax"] == jax.__version__
    assert metadata["metrics"]["condition_number"]["direction"] == "lower"


def test_parquet_holds_what_the_csv_holds(whole):
    folder, result, _ = whole
    table = pyarrow.parquet.read_table(folder / "scores.parquet").to_pylist()
    assert table == result.rows
    with (folder / "scores.csv").open() as file:
        for row, expected in zip(csv.DictReader(file), table, strict=True):
            for name, value in expected.items():
                if isinstance(value, float):
                    assert float(row[name]) == value
                else:
                    assert row[name] == ("" if value is None else str(value))


def test_values_are_means_over_weights_of_the_scorer(whole):
    _, result, _ = whole
    batch = score_module._batch(TINY)
    network = {"num_outputs": 10, "width": 8, "initialization": "ntk"}
    scored = [
        space_scorer(mlp_space(3), batch.x, batch.y, TINY.metrics, seed=seed, network=network)(
            REQUEST.genotypes[1]
        )
        for seed in (0, 1)
    ]
    row = result.rows[1]
    for name in TINY.metrics:
        values = [s.values[name] for s in scored if name not in s.flags]
        assert row[f"{name}_failed"] == 2 - len(values)
        if len(values) == 2:
            assert row[name] == pytest.approx(sum(values) / 2, rel=1e-12)
            error = abs(values[0] - values[1]) / 2
            assert row[f"{name}_se"] == pytest.approx(error, rel=1e-9)
    assert row["grad_norm_failed"] == 0
    assert row["grad_norm_se"] > 0


@pytest.mark.parametrize("counts", [(1, 2), (5,), (0, 0, 4)])
def test_a_stopped_run_goes_on_to_the_same_table(quick, tmp_path, counts):
    for count in counts:
        with pytest.raises(StoppedError):
            run_score(TINY, REQUEST, tmp_path, on_step=stop_after(count))
    num_done = len((tmp_path / "record-0.jsonl").read_text().splitlines()) if sum(counts) else 0
    assert num_done == sum(counts)
    result = run_score(TINY, REQUEST, tmp_path)
    assert result.num_run == 6 - num_done
    assert tables(tmp_path) == tables(quick)
    assert run_score(TINY, REQUEST, tmp_path).num_run == 0
    assert tables(tmp_path) == tables(quick)


def test_an_unfinished_last_line_is_scored_again(quick, tmp_path):
    run_score(TINY, REQUEST, tmp_path)
    record = tmp_path / "record-0.jsonl"
    record.write_bytes(record.read_bytes()[:-20])
    result = run_score(TINY, REQUEST, tmp_path)
    assert result.num_run == 1
    assert tables(tmp_path) == tables(quick)
    assert len(record.read_text().splitlines()) == 6


def test_processes_share_the_work_and_the_last_writes_the_table(quick, tmp_path):
    first = run_score(TINY, REQUEST, tmp_path, process=Process(1, 2))
    assert (first.num_run, first.num_missing, first.rows) == (2, 4, [])
    assert not (tmp_path / "scores.csv").exists()
    second = run_score(TINY, REQUEST, tmp_path, process=Process(0, 2))
    assert (second.num_run, second.num_missing) == (4, 0)
    assert tables(tmp_path) == tables(quick)
    # Another number of processes takes what it finds.
    assert run_score(TINY, REQUEST, tmp_path, process=Process(2, 3)).num_run == 0


def test_processes_keep_out_of_each_others_way(quick, tmp_path):
    for held, asked in ((Process(0, 1), Process(0, 1)), (Process(0, 2), Process(0, 1))):
        with (
            open_shared_folder(tmp_path, process_id=held.id, num_processes=held.count),
            pytest.raises(InputError, match="another process works in this folder"),
        ):
            run_score(TINY, REQUEST, tmp_path, process=asked)
    with open_shared_folder(tmp_path, process_id=0, num_processes=2):
        assert run_score(TINY, REQUEST, tmp_path, process=Process(1, 2)).num_run == 2


def test_another_request_scores_what_is_new_and_loses_nothing(quick, tmp_path):
    run_score(TINY, REQUEST, tmp_path)
    more = request_strings(mlp_space(3), ("tanh|tanh", "tanh|relu"))
    result = run_score(TINY, more, tmp_path)
    assert result.num_run == 2
    assert [row["architecture"] for row in result.rows] == ["tanh|tanh", "tanh|relu"]
    assert run_score(TINY, REQUEST, tmp_path).num_run == 0
    assert tables(tmp_path) == tables(quick)


def test_other_metrics_are_added(whole, tmp_path):
    one = dataclasses.replace(TINY, metrics=("naswot",))
    run_score(one, REQUEST, tmp_path)
    first = tables(tmp_path)
    result = run_score(TINY, REQUEST, tmp_path)
    assert result.num_run == 6
    lines = (tmp_path / "record-0.jsonl").read_text().splitlines()
    assert list(json.loads(lines[-1])["values"]) == ["grad_norm", "condition_number"]
    for row, other in zip(result.rows, whole[1].rows, strict=True):
        assert row.keys() == other.keys()
        assert row["flags"] == other["flags"]
        for name in TINY.metrics:
            value = math.nan if other[name] is None else other[name]
            found = math.nan if row[name] is None else row[name]
            assert found == pytest.approx(value, rel=1e-4, nan_ok=True)
    assert run_score(TINY, REQUEST, tmp_path).num_run == 0
    assert run_score(one, REQUEST, tmp_path).num_run == 0
    assert tables(tmp_path) == first


def test_metrics_of_a_run_that_was_stopped_while_they_were_added(tmp_path):
    run_score(dataclasses.replace(TINY, metrics=("naswot",)), REQUEST, tmp_path)
    with pytest.raises(StoppedError):
        run_score(TINY, REQUEST, tmp_path, on_step=stop_after(2))
    assert run_score(TINY, REQUEST, tmp_path).num_run == 4


def test_another_setting_is_refused(quick, tmp_path):
    run_score(dataclasses.replace(TINY, num_seeds=1), REQUEST, tmp_path)
    before = (tmp_path / "record-0.jsonl").read_bytes()
    for change, message in (
        ({"seed": 4, "num_seeds": 1}, "seed: there 0, here 4"),
        ({"batch_size": 8, "num_seeds": 1}, "batch_size: there 4, here 8"),
    ):
        with pytest.raises(InputError, match=message):
            run_score(dataclasses.replace(TINY, **change), REQUEST, tmp_path)
    assert (tmp_path / "record-0.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", "line 2 of record-0.jsonl must be a score, got none"),
        ("nonsense", "line 2 of record-0.jsonl is damaged"),
        ("[1]", "line 2 of record-0.jsonl is damaged .it is no JSON object"),
        (
            '{"architecture": "relu|relu", "seed": 0, "values": 1.0, "flags": {}, '
            '"warnings": {}, "seconds": 1}',
            "line 2 of record-0.jsonl must be a score, got none .AttributeError",
        ),
    ],
)
def test_a_damaged_record_is_told_with_its_line(quick, tmp_path, line, message):
    for name in ("settings.json", "record-0.jsonl"):
        (tmp_path / name).write_bytes((quick / name).read_bytes())
    record = tmp_path / "record-0.jsonl"
    lines = record.read_text().splitlines()
    record.write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    with pytest.raises(InputError, match=message):
        run_score(TINY, REQUEST, tmp_path)
    assert line in record.read_text()


def test_a_record_without_its_settings_is_refused(quick, tmp_path):
    (tmp_path / "record-0.jsonl").write_bytes((quick / "record-0.jsonl").read_bytes())
    with pytest.raises(InputError, match="it holds record-0.jsonl"):
        run_score(TINY, REQUEST, tmp_path)


def test_equal_images_are_flagged_and_never_first(tmp_path):
    images = np.random.default_rng(0).random((4, 8, 8, 3)).astype(np.float32)
    images[3] = images[1]
    np.savez(tmp_path / "data.npz", x=images, y=np.arange(4) % 2)
    settings = dataclasses.replace(TINY, data=f"npz:{tmp_path / 'data.npz'}", num_seeds=1)
    result = run_score(settings, REQUEST, tmp_path / "out")
    for row in result.rows:
        assert row["condition_number"] is None
        assert "condition_number: the kernel is singular: 1 examples equal earlier" in row["flags"]
        assert row["grad_norm"] > 0
    assert best_rows(result.rows, "condition_number", 3) == []
    assert result.metadata["num_failed"]["condition_number"] == 4


def test_equivalent_and_dead_cells(tmp_path):
    space = get_space("nasbench201")
    same = [
        "|none~0|+|none~0|none~1|+|skip_connect~0|skip_connect~1|nor_conv_1x1~2|",
        "|none~0|+|none~0|none~1|+|skip_connect~0|none~1|nor_conv_1x1~2|",
    ]
    dead = "|none~0|+|none~0|none~1|+|none~0|none~1|none~2|"
    settings = ScoreSettings(
        metrics=("grad_norm",), batch_size=4, image_size=8, channels=2, cells=1
    )
    result = run_score(settings, request_strings(space, [dead, *same]), tmp_path)
    assert result.num_run == 2
    first, second, third = result.rows
    assert second["canonical"] == third["canonical"] == same[1]
    assert second["grad_norm"] == third["grad_norm"] > 0
    indices = [official_index(space.from_string(text)) for text in (dead, *same)]
    assert [row["index"] for row in result.rows] == indices
    assert first["grad_norm"] is None
    assert first["flags"] == "grad_norm: dead network: its outputs are the same for every example"
    best = best_rows(result.rows, "grad_norm", 5)
    assert [row["index"] for row in best] == [indices[1]]


def test_a_network_that_fails_with_one_seed_is_never_first(tmp_path, monkeypatch):
    """By a scorer that gives what it is told: no compilation."""
    values = {"relu|relu": (1.0, 3.0), "tanh|relu": (math.nan, 9.0), "swish|sigmoid+skip": (2, 2)}

    def scorer(space, x, y, metrics, *, seed, **_):
        def score(genotype):
            value = values[space.to_string(genotype)][seed]
            scores = Scores(dict.fromkeys(metrics, value), {}, {})
            flags = {n: "dead" for n, value in scores.values.items() if math.isnan(value)}
            return scores._replace(flags=flags)

        return score

    monkeypatch.setattr(score_module, "space_scorer", scorer)
    result = run_score(TINY, REQUEST, tmp_path)
    row = result.rows[1]
    assert (row["naswot"], row["naswot_se"], row["naswot_failed"]) == (9.0, None, 1)
    assert "naswot: 1 of 2 seeds: dead" in row["flags"]
    assert (result.rows[0]["naswot"], result.rows[0]["naswot_se"]) == (2.0, 1.0)
    best = best_rows(result.rows, "naswot", 3)
    assert [row["architecture"] for row in best] == ["relu|relu", "swish|sigmoid+skip"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": ("grad_nrom",)}, "--metrics: unknown metric 'grad_nrom'. Did you mean 'grad_"),
        ({"metrics": ()}, "--metrics: must name metrics"),
        ({"batch_size": 1}, "--batch-size: must be 2 to"),
        ({"metrics": ("zico",), "num_parts": 3}, "--num-parts: must .* divide the batch of 4"),
        ({"space": "drats"}, "Did you mean 'darts'"),
        ({"normalization": "batch"}, "--normalization: unknown normalization in mlp"),
        ({"cells": 2}, "--cells: must be 3 to"),
        ({"seed": 2**32 - 1}, "--seed: must be"),
        ({"num_seeds": 0}, "--num-seeds: must be 1"),
        ({"image_size": 10, "space": "nasbench201", "initialization": None}, "multiple of 4"),
        ({"engine": "autodif"}, "Did you mean 'autodiff'"),
        ({"coupling": "both"}, "--coupling: unknown"),
    ],
)
def test_settings_are_checked(change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(TINY, **change)


def test_run_names_tell_settings_and_stay_short():
    default = ScoreSettings()
    assert default.run_name() == "score-nasbench201-random-seed0"
    coded = dataclasses.replace(default, metrics=("grad_norm:code", "snip"), seed=3)
    assert coded.run_name() == "score-nasbench201-random-metrics=grad_norm.code,snip-seed3"
    longest = [dataclasses.replace(default, metrics=tuple(METRICS), seed=s) for s in (0, 1)]
    names = [settings.run_name() for settings in longest]
    assert names[0] != names[1]
    assert max(map(len, names)) <= 150
