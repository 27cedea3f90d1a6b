"""``nasjax score``: what it prints, and one line and exit code 2 for whatever the user can mend."""

import csv
import json
import re
import sys

import numpy as np
import pytest
from made_up_scores import made_up_scorer
from torch_weights_files import write_files
from typer.main import get_command

from nasjax import cli, cli_common
from nasjax.metrics import ENGINES, conv_kernels
from nasjax.runs import SCORE_DEFAULTS, ScoreSettings
from nasjax.runs import score as score_module
from nasjax.runs.score import DEFAULT_METRICS
from nasjax.spaces.nasbench201 import genotype_from_index, to_string

CELL = (
    "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|"
    "+|skip_connect~0|nor_conv_3x3~1|nor_conv_1x1~2|"
)
TINY = ("score", "--channels", "2", "--cells", "1", "--batch-size", "4", "--image-size", "8")


@pytest.fixture
def run(monkeypatch, capfd, tmp_path, wide_console):
    """Runs the command line in an empty folder, scores made up: ``(code, stdout, stderr)``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(score_module, "space_scorer", made_up_scorer)
    monkeypatch.setattr(conv_kernels, "why_not", lambda: None)
    monkeypatch.setattr(conv_kernels, "is_to_be_compiled", lambda: False)
    monkeypatch.delenv(cli_common.DATA_VARIABLE, raising=False)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["nasjax", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capfd.readouterr()
        return stopped.value.code, captured.out, captured.err

    return call


def write_table(path, num_cells=60):
    names = ("c10_test200_mean", "c100_test200_mean", "in16_test200_mean", "c10_val12")
    rows = [
        f"{index},{to_string(genotype_from_index(index))},{index + 20},{index % 7},{index % 5},1,1"
        for index in range(num_cells)
    ]
    path.write_text("\n".join([f"index,arch,{','.join(names)},c10_params_M", *rows]) + "\n")
    return path


def read_rows(folder):
    with (folder / "scores.csv").open() as file:
        return list(csv.DictReader(file))


def test_it_prints_a_summary_and_writes_a_table(run, tmp_path):
    options = ("--metrics", "grad_norm:code,condition_number,naswot", "--num-seeds", 2)
    code, out, err = run(*TINY, "--num-architectures", 9, *options, "--seed", 3)
    assert (code, err) == (0, "")
    name = (
        "score-nasbench201-random-metrics=grad_norm.code,condition_number,naswot-batch_size=4-"
        "image_size=8-channels=2-cells=1-num_seeds=2-seed3"
    )
    rows = read_rows(tmp_path / "runs" / name)
    assert len(rows) == 9
    num_different = len({row["canonical"] for row in rows})
    assert f"9 architectures, {num_different} of them different with 2 seeds each" in out
    best = min(rows, key=lambda row: float(row["condition_number"]))
    line = next(line for line in out.splitlines() if line.startswith(" condition_number"))
    assert line.split() == [
        "condition_number",
        *("lower", "0", f"{float(best['condition_number']):.6g}", "index", best["index"]),
    ]
    failed = sum(row["naswot_failed"] != "0" for row in rows)
    assert failed > 0
    assert re.search(rf"naswot +higher +{failed} ", out)
    assert re.search(rf"{2 * num_different}/{2 * num_different} .*(networks/s|s/network)", out)
    assert f"{2 * num_different} networks in" in out
    assert f"written to runs/{name}: scores.csv, scores.parquet, metadata.json" in out
    code, out, _ = run(*TINY, "--num-architectures", 9, *options, "--seed", 3)
    assert code == 0
    assert "scored before, nothing was run again" in out


def test_what_computed_the_scores_is_told(run, tmp_path, monkeypatch):
    cell = (*TINY, "--arch", CELL, "--metrics", "naswot")
    code, out, err = run(*cell, "--out", "native")
    assert (code, err) == (0, "")
    assert re.search("1 network in .*, by native\n", out)
    metadata = json.loads((tmp_path / "native" / "metadata.json").read_text())
    assert metadata["engines"] == {"native": ["outputs", "activations"]}
    monkeypatch.setattr(conv_kernels, "is_to_be_compiled", lambda: True)
    code, out, err = run(*cell, "--out", "new")
    assert err.startswith("nasjax: compiling kernels for this processor, once")
    monkeypatch.setattr(conv_kernels, "is_to_be_compiled", lambda: False)
    monkeypatch.setattr(conv_kernels, "why_not", lambda: "there is no compiler")
    code, out, err = run(*cell, "--out", "xla")
    assert ", by walk\n" in out
    assert err.endswith("half the speed of nasjax's kernels for CPUs: there is no compiler.\n")
    code, out, err = run(*cell, "--out", "walk", "--engine", "walk")
    assert (code, err) == (0, "")
    code, out, err = run(*cell, "--out", "native")
    assert code == 2
    assert "kernels: there native, here XLA" in err
    code, out, err = run(*cell, "--out", "newer", "--engine", "native")
    assert code == 2
    assert "--engine: no 'native' kernels: there is no compiler. Use 'auto' or 'walk'." in err


def test_bad_lines_are_reported_and_the_rest_is_scored(run, tmp_path):
    (tmp_path / "cells.txt").write_text(f"{CELL}\n{CELL[:-4]}\n7\nnothing\n")
    code, out, err = run(*TINY, "--archs", "cells.txt", "--out", "o")
    assert code == 0
    assert [line.split(": ")[1] for line in err.splitlines()] == [
        "--archs cells.txt, line 2",
        "--archs cells.txt, line 4",
    ]
    assert "2 architectures, 2 of them different, 2 bad lines left out" in out
    assert [row["index"] for row in read_rows(tmp_path / "o")] == ["6111", "7"]
    assert len(json.loads((tmp_path / "o" / "metadata.json").read_text())["bad_lines"]) == 2
    (tmp_path / "cells.txt").write_text("?\n" * 30 + "7\n")
    assert (
        run(*TINY, "--archs", "cells.txt", "--out", "o")[2]
        .splitlines()[-1]
        .endswith("and 10 more bad lines.")
    )


def test_a_table_gives_correlations(run, tmp_path):
    table = write_table(tmp_path / "table.csv")
    (tmp_path / "cells.txt").write_text("\n".join(map(str, range(25, 65))))
    metrics = ("--metrics", "condition_number,naswot")
    code, out, err = run(
        *TINY, "--archs", "cells.txt", *metrics, "--table", table, "--out", tmp_path / "o"
    )
    assert (code, err) == (0, "")
    metadata = json.loads((tmp_path / "o" / "metadata.json").read_text())
    for kind in ("spearman", "kendall"):
        found = metadata["correlations"]["condition_number"]["cifar10_test"][kind]
        assert found["low"] < found["value"] < found["high"]
        assert found["num_pairs"] == 35
        text = f"{found['value']:.3f} ({found['low']:.3f}, {found['high']:.3f})"
        assert re.search(rf"condition_number +{re.escape(text)}.* {found['num_pairs']}", out)
    assert "Spearman correlation with accuracy" in out
    assert "Kendall correlation with accuracy" in out


def test_the_table_of_the_data_folder_is_used(run, tmp_path, monkeypatch):
    write_table(tmp_path / "table.csv").rename(tmp_path / "nb201_accuracies.csv.gz")
    monkeypatch.setenv(cli_common.DATA_VARIABLE, str(tmp_path))
    _, out, _ = run(*TINY, "--arch", CELL, "--arch", 7, "--out", "o")
    assert "Spearman" in out
    _, out, _ = run("score", "--space", "mlp", "--cells", 3, "--arch", "relu|tanh", "--out", "p")
    assert "Spearman" not in out


def test_processes_take_their_shares(run, tmp_path, monkeypatch):
    options = (*TINY, "--num-architectures", 4, "--out", "o")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    code, out, err = run(*options, "--process-id", 1)
    assert (code, err) == (0, "")
    assert "this share is done; 2 networks are left to other processes" in out
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    code, out, _ = run(*options)
    assert code == 0
    assert "written to o" in out
    assert len(read_rows(tmp_path / "o")) == 4


def test_torch_weights_give_one_json_object(run, tmp_path):
    same = np.repeat(np.random.default_rng(0).normal(size=(1, 3, 8, 8)), 2, 0)
    images = np.concatenate([same, np.random.default_rng(1).normal(size=(2, 3, 8, 8))])
    weights, batch = write_files(tmp_path, batch={"x": images.astype(np.float32)})
    files = ("score", "--torch-weights", weights, "--batch", batch)
    metrics = ("--metrics", "grad_norm:code,condition_number:tenas,linear_regions")
    code, out, err = run(*files, *metrics, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found) == [*("grad_norm:code", "condition_number:tenas", "linear_regions", "flags")]
    assert found["grad_norm:code"] > 0
    assert found["linear_regions"] == 3.0
    assert found["condition_number:tenas"] is None
    assert list(found["flags"]) == ["condition_number:tenas"]
    assert "singular: 1 examples equal earlier ones" in found["flags"]["condition_number:tenas"]
    code, out, _ = run(*files, "--metrics", "grad_norm:code")
    assert code == 0
    assert f"{found['grad_norm:code']:.9g}" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch.npz", "weights.npz"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of --num-architectures, --all, --archs and --arch must be given, got none"),
        (["--all", "--arch", "7"], "must be given, got 2"),
        (["--arch", "7", "--metrics", "grad_norm,naswott"], "Did you mean 'naswot'"),
        (["--arch", "7", "--metrics", ""], "--metrics: must name metrics, got none. Known: grad_"),
        (["--arch", CELL[:-9]], "nasbench201.from_string"),
        (["--archs", "absent.txt"], "absent.txt"),
        (["--num-architectures", "0"], "must be 1 to 15625"),
        (["--all", "--space", "darts"], "--all: darts must be a space that can be listed"),
        (["--all", "--space", "dart"], "Did you mean 'darts'"),
        (["--arch", "7", "--batch-size", "1"], "--batch-size: must be 2 to"),
        (["--arch", "7", "--table", "absent.csv"], "absent.csv"),
        (["--arch", "7", "--json"], "--json: must be given with --torch-weights"),
        (["--arch", "7", "--dtype", "float64"], "--dtype: must be given with --torch-weights"),
        (["--torch-weights", "w.npz"], "--torch-weights, --batch: must be given together"),
        (["--torch-weights", "w.npz", "--batch", "b.npz"], "--torch-weights w.npz: must be"),
        (["--torch-weights", "w.npz", "--batch", "b.npz", "--all"], "--all: must be left out"),
        (["--arch", "7", "--num-processes", "2"], "must be given together"),
        (["--arch", "7", "--coordinator", "1.2.3.4:5"], "must be given together"),
        (["--arch", "7", "--num-processes", "2", "--process-id", "2"], "must be 0 to 1"),
        (
            [*("--arch", "7", "--num-processes", "2", "--process-id", "1"), "--coordinator", "x"],
            "--coordinator: must be an address and a port",
        ),
        (["--arch", "7", "--out", __file__], "must be a folder"),
        (["--arch", "7", "--data", "npz:absent.npz"], "absent.npz"),
    ],
)
def test_bad_input_is_one_line(run, tmp_path, arguments, message):
    tiny = TINY if "mlp" not in arguments else ("score",)
    code, _, err = run(*tiny, *arguments)
    assert code == 2
    assert message in err
    assert err.startswith("nasjax: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_nan_images_are_one_line(run, tmp_path):
    images = np.full((8, 8, 8, 3), np.nan, np.float32)
    np.savez(tmp_path / "data.npz", x=images, y=np.arange(8) % 2)
    code, _, err = run(*TINY, "--arch", 7, "--data", f"npz:{tmp_path / 'data.npz'}")
    assert (code, err.count("\n")) == (2, 1)
    assert "images must be finite" in err


def test_help_tells_the_defaults():
    command = get_command(cli.app).commands["score"]
    helps = {parameter.name: parameter.help for parameter in command.params}
    assert f"[{','.join(DEFAULT_METRICS)}]" in helps["metrics"]
    assert f"[{ScoreSettings().batch_size}]" in helps["batch_size"]
    assert all(re.search(rf"\b{engine}\b", helps["engine"]) for engine in ENGINES)
    for name in ("channels", "cells", "initialization", "normalization"):
        pattern = (
            r"\[nasbench201: (\S+), darts: (\S+), mlp: (\S+), "
            r"nasbench101 and nasbench1shot1: (\S+)\]"
        )
        told = re.search(pattern, helps[name])
        spaces = ("nasbench201", "darts", "mlp", "nasbench101")
        for space, value in zip(spaces, told.groups(), strict=True):
            expected = getattr(SCORE_DEFAULTS[space], name)
            assert type(expected)(value) == expected, (name, space)
    alike = {SCORE_DEFAULTS[f"nasbench1shot1_{number}"] for number in (1, 2, 3)}
    assert alike == {SCORE_DEFAULTS["nasbench101"]}
