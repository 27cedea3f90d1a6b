"""The command line: what it prints, and one line and exit code 2 for whatever the user can mend."""

import ast
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.main import get_command

import nasjax
from nasjax import cli
from nasjax.cli_common import stoppable
from nasjax.runs import DEFAULTS
from nasjax.spaces import get_space
from nasjax.spaces.nasbench1shot1 import to_nasbench101

DARTS_V2 = (
    "Genotype(normal=[('sep_conv_3x3', 0), ('sep_conv_3x3', 1), ('sep_conv_3x3', 0), "
    "('sep_conv_3x3', 1), ('sep_conv_3x3', 1), ('skip_connect', 0), ('skip_connect', 0), "
    "('dil_conv_3x3', 2)], normal_concat=range(2, 6), reduce=[('max_pool_3x3', 0), "
    "('max_pool_3x3', 1), ('skip_connect', 2), ('max_pool_3x3', 1), ('max_pool_3x3', 0), "
    "('skip_connect', 2), ('skip_connect', 2), ('max_pool_3x3', 1)], reduce_concat=range(2, 6))"
)
CELL = (
    "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|"
    "+|skip_connect~0|nor_conv_3x3~1|nor_conv_1x1~2|"
)


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """Runs the command line in an empty folder: ``(code, stdout, stderr)``."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["nasjax", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capfd.readouterr()
        return stopped.value.code, captured.out, captured.err

    return call


def test_version_and_help(run):
    assert run("--version")[:2] == (0, nasjax.__version__ + "\n")
    for arguments in ((), ("search",), ("search", "nasi", "--help")):
        code, out, _ = run(*arguments)
        assert code == 0
        assert "Usage" in out
    assert "--nu-mode" in out


def test_help_tells_the_defaults_of_each_space(run):
    _, out, _ = run("search", "nasi", "--help")
    printed = " ".join(out.split())
    command = get_command(cli.app).commands["search"].commands["nasi"]
    helps = {parameter.name: parameter.help for parameter in command.params}
    for name in ("steps", "nu", "table", "out"):
        assert helps[name] in printed, name
    for name in DEFAULTS["darts"]._fields:
        if name == "nu":
            told = re.search(r"\[adaptive: (\d+), in nasbench1shot1 (\d+);", helps["nu"])
            told = (told[1], told[1], told[2])
        else:
            told = re.search(
                r"\[nasbench201: (\S+), darts: (\S+), nasbench1shot1: (\S+)\]", helps[name]
            )
            assert told, name
            told = told.groups()
        for space, value in zip(("nasbench201", "darts", "nasbench1shot1_1"), told, strict=True):
            expected = getattr(DEFAULTS[space], name)
            assert type(expected)(value) == expected, (name, space)
    assert len({DEFAULTS[f"nasbench1shot1_{number}"] for number in (1, 2, 3)}) == 1


def test_search_prints_what_it_wrote(run, tmp_path):
    tiny = ("--channels", 2, "--cells", 1, "--batch-size", 4, "--steps", 2, "--data", "digits")
    code, out, err = run("search", "nasi", *tiny, "--seed", 7)
    assert (code, err) == (0, "")
    names = "steps=2-batch_size=4-channels=2-cells=1"
    folder = tmp_path / "runs" / f"nasi-nasbench201-digits-{names}-seed7"
    record = json.loads((folder / "architecture.json").read_text())
    assert record["architecture"] in out.splitlines()
    assert re.search(rf"NAS-Bench-201 index +{record['official_index']} ", out)
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock",
        "architecture.json",
        "cells.png",
        "cells.svg",
        "history.jsonl",
        "logits.npz",
        "settings.json",
        "state.npz",
    ]
    assert record["data"]["resize"] == "bilinear, antialiased: 8x8 -> 32x32"
    assert re.search(r"resize +bilinear, antialiased: 8x8 -> 32x32", out)
    assert f"\nwritten to {folder.relative_to(tmp_path)}: " in out
    code, out, err = run("search", "nasi", *tiny, "--seed", 7)
    assert (code, err) == (0, "")
    assert "compiling" not in out
    assert "\nfinished before, nothing was run again; in " in out
    code, _, err = run("search", "nasi", *tiny, "--seed", 7, "--mu", 1, "--out", folder)
    assert code == 2
    assert "(mu: there 2.0, here 1.0)" in err
    for source in (folder, folder / "architecture.json"):
        code, out, _ = run("show", source)
        assert code == 0
        assert record["architecture"] in out.splitlines()


def test_validate_prints_correlations(run, tmp_path):
    options = ("--num-architectures", 3, "--batch-sizes", "2,4", "--channels", 16, "--widths", "")
    code, out, err = run("validate", "ntk", "--space", "mlp", "--cells", 3, *options)
    assert (code, err) == (0, "")
    name = "num_architectures=3-batch_sizes=2,4-channels=16-cells=3-widths=-num_infinite=3"
    folder = tmp_path / "runs" / f"validate-ntk-mlp-random-{name}-seed0"
    found = json.loads((folder / "validation.json").read_text())["summary"]["approximations"]
    assert re.search(f"batch +{' +'.join(found)}", out)
    for size in ("2", "4"):
        numbers = [
            f"{sizes[size]['pearson']['value']:.3f} / {sizes[size]['spearman']['value']:.3f}"
            for sizes in found.values()
        ]
        assert re.search(rf" {size} +{' +'.join(numbers)}", out), out


def test_show_nasbench201(run, tmp_path):
    code, out, err = run("show", CELL)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == CELL
    assert "NAS-Bench-201 index 6111" in out  # the best of the benchmark on CIFAR-10
    assert out.count("nor_conv_3x3") == 4 + 4
    assert (tmp_path / "architecture.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "architecture.svg").read_text()
    assert run("show", "6111")[1] == out


def test_show_darts(run, tmp_path):
    code, out, err = run("show", DARTS_V2, "--out", tmp_path / "v2")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == DARTS_V2
    assert out.count("reduction") == 8
    assert (tmp_path / "v2.svg").exists()


CELLS_1SHOT1 = {
    "nasbench1shot1_1": "maxpool3x3~0|conv1x1-bn-relu~0,1|conv3x3-bn-relu~0,2|maxpool3x3~1,3"
    "|output~2,3",
    "nasbench1shot1_2": "conv3x3-bn-relu~0|maxpool3x3~1|conv1x1-bn-relu~0,2|conv3x3-bn-relu~1,3"
    "|output~0,2,4",
    "nasbench1shot1_3": "conv3x3-bn-relu~0|maxpool3x3~1|conv1x1-bn-relu~0|conv3x3-bn-relu~1,3"
    "|maxpool3x3~0,4|output~2,5",
}


@pytest.mark.parametrize("name", CELLS_1SHOT1)
def test_show_nasbench1shot1(run, tmp_path, name):
    code, out, err = run("show", CELLS_1SHOT1[name])
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == CELLS_1SHOT1[name]
    (found,) = re.findall(r"NAS-Bench-101 hash ([0-9a-f]{32})\n", out)
    assert re.search(r"module +2 +(conv1x1-bn-relu +input, 1|maxpool3x3 +1) *\n", out)
    assert (tmp_path / "architecture.png").exists()
    # The graph of the whole benchmark has the same name, and is told from its digits.
    genotype = to_nasbench101(name, get_space(name).from_string(CELLS_1SHOT1[name]))
    text = get_space("nasbench101").to_string(genotype)
    code, out, err = run("show", text)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == text
    assert f"NAS-Bench-101 hash {found}\n" in out


def test_show_nasbench101_without_a_path(run):
    code, out, _ = run("show", "100,input|maxpool3x3|output")
    assert code == 0
    assert "no input reaches the output" in out
    assert "hash" not in out


def test_show_mlp(run, tmp_path):
    code, out, err = run("show", "relu|tanh+skip|swish", "--out", tmp_path / "mlp")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "relu|tanh+skip|swish"
    assert out.count("tanh") == 1 + 1  # in the notation and on its edge
    assert (tmp_path / "mlp.png").exists()


def test_show_reads_files(run, tmp_path):
    (tmp_path / "cell.txt").write_text(CELL + "\n")
    assert run("show", "cell.txt")[1].splitlines()[0] == CELL
    body = ast.parse(DARTS_V2).body[0].value
    parts = {
        part.arg: [2, 3, 4, 5] if part.arg.endswith("concat") else ast.literal_eval(part.value)
        for part in body.keywords
    }
    (tmp_path / "v2.json").write_text(json.dumps(parts))
    assert run("show", "v2.json")[1].splitlines()[0] == DARTS_V2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("folder", None, "no architecture.json in it"),
        ("logits.npz", b"PK\x03\x04\xff\xfe", "holds no text"),
        ("list.json", b"[1, 2]", "nasbench201"),
        ("other.json", b'{"a": 1}', "got no normal"),
        ("damaged.json", b'{"architecture": "|nor', "must be one JSON object"),
    ],
)
def test_show_refuses_other_files(run, tmp_path, name, content, message):
    (tmp_path / name).mkdir() if content is None else (tmp_path / name).write_bytes(content)
    code, out, err = run("show", name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_show_says_that_nothing_is_connected(run):
    code, out, _ = run("show", "|none~0|+|none~0|none~1|+|none~0|none~1|none~2|")
    assert code == 0
    assert "no input reaches the output" in out


def arrays(path, **content):
    np.savez(path, **content)
    return f"npz:{path}"


def images(n):
    return np.random.default_rng(0).random((n, 8, 8, 3)).astype(np.float32)


NASI = ("search", "nasi", "--channels", "2", "--cells", "1", "--batch-size", "4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*NASI, "--space", "nasbench202"], "Did you mean 'nasbench201'"),
        ([*NASI, "--space", "nasbench101"], "one-shot network, got nasbench101. Search one of"),
        ([*NASI, "--space", "nasbench1shot1"], "Did you mean 'nasbench1shot1_"),
        ([*NASI, "--data", "fashion-mnist"], "Did you mean 'fashion_mnist'"),
        ([*NASI, "--data", "digit"], "Did you mean 'digits'"),
        ([*NASI, "--data", "npz:absent.npz"], "absent.npz"),
        ([*NASI, "--nu-mode", "adaptiv"], "Did you mean 'adaptive'"),
        ([*NASI, "--nu", "-1"], "--nu: must be a number > 0, got -1"),
        ([*NASI, "--nu", "nan"], "--nu: must be a number > 0, got nan"),
        ([*NASI, "--nu", "many"], "'--nu'"),
        ([*NASI, "--mu", "-1"], "--mu: must be a number >= 0, got -1"),
        ([*NASI, "--mu", "two"], "'--mu'"),
        ([*NASI, "--steps", "0"], "--steps"),
        ([*NASI, "--table", "absent.csv"], "absent.csv"),
        ([*NASI, "--space", "darts", "--table", __file__], "table"),
        ([*NASI, "--data", "digits", "--batch-size", "9999"], "at most the 1797 images"),
        ([*NASI, "--out", __file__], "must be a folder"),
        ([*NASI, "--out", "/proc/nasjax"], "cannot be written"),
        ([*NASI, "--sped", "3"], "No such option"),
        (
            ["validate", "ntk", "--batch-sizes", "4;8"],
            "--batch-sizes: must be numbers such as 4,8,16",
        ),
        (["validate", "nkt"], "No such command 'nkt'"),
        (["serch"], "'serch'. Did you mean 'search'? See `nasjax --help`"),
        (["search", "random"], "No such command 'random'. See `nasjax search --help`"),
        ([*NASI, "--initialization", "kaiming"], "--initialization: unknown initialisation"),
        ([*NASI, "--normalization", "layer"], "--normalization: unknown normalisation"),
        (["show"], "Missing argument 'architecture'"),
        (["show", CELL[:-9]], "nasbench201"),
        (["show", "110,input|maxpool3x4|output"], "Did you mean 'maxpool3x3'"),
        (["show", "111,input|maxpool3x3"], "nasbench101.from_string: the vertices must be"),
        (["show", CELLS_1SHOT1["nasbench1shot1_3"][:-4]], "nasbench1shot1_3.from_string: node 6"),
        (["show", "maxpool3x3~0|maxpool3x3~0"], "nasbench1shot1_1.from_string: a cell must have 5"),
        (["show", "relu|tnah"], "Did you mean 'tanh'"),
        (["show", "relu+skip|tanh"], "mlp.from_string"),
        (["show", CELL + "+" + CELL], "nasbench201"),
        (["show", CELL * 500], "characters"),
        (["show", CELL.replace("nor_conv_1x1~2", "nor_conv_1x1~1")], "~1"),
        (["show", CELL.replace("nor_conv_1x1~2", "nor_conv_1x2~2")], "Did you mean 'nor_conv_1x1'"),
        (["show", "15625"], "15625"),
        (["show", DARTS_V2[:-30]], "was never closed). Is the text truncated?"),
        (["show", "7", "--space", "darts"], "only NAS-Bench-201 has indices"),
        (["show", DARTS_V2.replace("dil_conv_3x3", "dill_conv_3x3")], "dil_conv_3x3"),
        (["show", DARTS_V2, "--space", "drats"], "Did you mean 'darts'"),
        (["show", "absent.json"], "got No such file"),
        (["show", CELL, "--out", "no/such/folder/x"], "must exist"),
    ],
)
def test_bad_input_is_one_line(run, tmp_path, arguments, message):
    code, out, err = run(*arguments)
    assert code == 2
    assert message in err
    assert err.startswith("nasjax: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": images(4)}, "y"),
        ({"images": images(4), "labels": np.arange(4)}, "x"),
        ({"x": images(4)[0, 0], "y": np.arange(4)}, "rank|axes|shape"),
        ({"x": np.full((4, 8, 8, 3), np.nan, np.float32), "y": np.arange(4)}, "finite|NaN"),
        ({"x": images(0), "y": np.arange(0)}, "empty|least"),
        ({"x": images(4), "y": np.arange(5)}, "5"),
    ],
)
def test_bad_npz_is_one_line(run, tmp_path, content, message):
    code, _, err = run(*NASI, "--data", arrays(tmp_path / "data.npz", **content))
    assert code == 2
    assert err.count("\n") == 1
    assert any(word in err for word in message.split("|")), err
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


def test_download_without_network_is_one_line(tmp_path):
    """In a process of its own, as TensorFlow's start would otherwise write to standard error."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-m", "nasjax", *NASI, "--data", "tfds:mnist"],
        env=os.environ | nowhere | {"TFDS_DATA_DIR": str(tmp_path / "tfds")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "mnist" in done.stderr
    assert "network" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_says_how_to_go_on(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("nasjax.runs.run_nasi", interrupted)
    code, _, err = run(*NASI)
    assert code == 130
    assert err == "nasjax: stopped. The same command goes on where it was.\n"


def test_help_is_quick():
    """The command line loads neither TensorFlow nor matplotlib nor the networks to show help."""
    program = (
        "import sys, nasjax.cli\n"
        "print([m for m in ('tensorflow', 'matplotlib', 'sklearn', 'flax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n"


@pytest.fixture
def interruptible():
    """As in the foreground: background jobs ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_lost_interruption_ends_the_run_at_the_next_step():
    steps = []
    with stoppable(lambda *step: steps.append(step)) as on_step:
        on_step("scores", 0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        with pytest.raises(KeyboardInterrupt):
            on_step("scores", 1)
    assert steps == [("scores", 0)]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
