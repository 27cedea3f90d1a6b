"""The command line: ``nasjax search``, ``score``, ``train``, ``compare`` and the others."""

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

import nasjax
from nasjax.cli_architecture import recognise
from nasjax.cli_common import (
    DATA_VARIABLE,
    TABLE_NAME,
    DataOption,
    InitializationOption,
    SeedOption,
    console,
    default_table,
    print_files,
    step_progress,
)
from nasjax.cli_compare import compare, correlate
from nasjax.cli_darts import search_darts
from nasjax.cli_eigen import search_eigen
from nasjax.cli_eigen_theory import validate_eigen, validate_generalization
from nasjax.cli_hnas import search_hnas
from nasjax.cli_score import score
from nasjax.cli_train import evaluate, train
from nasjax.errors import InputError
from nasjax.spaces import get_space, mlp_space
from nasjax.spaces.nasbench1shot1 import NUM_PARENTS, to_nasbench101
from nasjax.spaces.nasbench101 import official_hash
from nasjax.spaces.nasbench201 import official_index

app = typer.Typer(
    name="nasjax",
    help="Training-free neural architecture search with neural tangent kernels.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # which would take the defaults in brackets for markup
)
search_app = typer.Typer(help="Search for an architecture.", rich_markup_mode=None)
app.add_typer(search_app, name="search")
validate_app = typer.Typer(help="Check approximations against exact values.", rich_markup_mode=None)
app.add_typer(validate_app, name="validate")
app.command("score")(score)
app.command("train")(train)
app.command("evaluate")(evaluate)
search_app.command("darts")(search_darts)
search_app.command("hnas")(search_hnas)
search_app.command("eigen")(search_eigen)
validate_app.command("eigen")(validate_eigen)
validate_app.command("generalization")(validate_generalization)
app.command("compare")(compare)
app.command("correlate")(correlate)
_UsageError = typer.BadParameter.__base__
"""What typer raises for options that it cannot parse; it has no public name of its own."""

_INTERRUPTED = 130


def main() -> None:
    """Runs the command line; what the user can mend ends in one line and exit code 2."""
    try:
        code = app(prog_name="nasjax", standalone_mode=False)
        if code == _INTERRUPTED:  # typer's own answer to Ctrl-C
            _say_stopped()
    except (InputError, OSError) as error:
        code = _fail(str(error))
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        hint = f" See `{context.command_path} --help`." if context else ""
        code = _fail(error.format_message() + hint)
    except (KeyboardInterrupt, typer.Abort):
        _say_stopped()
        code = _INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> int:
    print(f"nasjax: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _say_stopped() -> None:
    print("nasjax: stopped. The same command goes on where it was.", file=sys.stderr)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(nasjax.__version__)
        raise typer.Exit()
    _help_without_command(context)


@search_app.callback(invoke_without_command=True)
@validate_app.callback(invoke_without_command=True)
def _search(context: typer.Context) -> None:
    _help_without_command(context)


def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@search_app.command("nasi")
def search_nasi(
    space: Annotated[
        str,
        typer.Option(
            help="Search space: nasbench201, darts, or nasbench1shot1_1, nasbench1shot1_2, "
            "nasbench1shot1_3, which have the same defaults."
        ),
    ] = "nasbench201",
    data: DataOption = "random",
    labels: Annotated[str, typer.Option(help="true, or random: drawn uniformly once.")] = "true",
    steps: Annotated[
        int | None,
        typer.Option(
            help="Gradients to average, T. [nasbench201: 100, darts: 100, nasbench1shot1: 100]"
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Images a gradient, b. [nasbench201: 32, darts: 64, nasbench1shot1: 64]"),
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(
            help="Channels of the first stage. [nasbench201: 8, darts: 16, nasbench1shot1: 16]"
        ),
    ] = None,
    cells: Annotated[
        int | None,
        typer.Option(
            help="Cells: a stage, but in darts in all. [nasbench201: 3, darts: 8, "
            "nasbench1shot1: 3]"
        ),
    ] = None,
    nu: Annotated[
        float | None,
        typer.Option(
            help="Constraint on the trace norm at the start. [adaptive: 500, in nasbench1shot1 "
            "1000; fixed: the mean of 50 random architectures (eq. 40), multiplied by --nu-scale]"
        ),
    ] = None,
    nu_mode: Annotated[
        str | None,
        typer.Option(
            help="fixed, or adaptive (eq. 41). [nasbench201: fixed, darts: adaptive, "
            "nasbench1shot1: adaptive]"
        ),
    ] = None,
    nu_scale: Annotated[
        float | None,
        typer.Option(
            help="Factor on the estimate of a fixed nu. [nasbench201: 2, darts: 1, "
            "nasbench1shot1: 1]"
        ),
    ] = None,
    mu: Annotated[
        float | None,
        typer.Option(help="Penalty coefficient. [nasbench201: 2, darts: 2, nasbench1shot1: 1]"),
    ] = None,
    seed: SeedOption = 0,
    initialization: InitializationOption = "lecun",
    normalization: Annotated[str, typer.Option(help="batch or none.")] = "batch",
    table: Annotated[
        Path | None,
        typer.Option(
            help="NAS-Bench-201 accuracies (CSV), to report those of the selected cell. "
            f"[{TABLE_NAME} in ${DATA_VARIABLE}]"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run. [runs/nasi-SPACE-DATA-seedSEED, the options that differ from "
            "the defaults between]"
        ),
    ] = None,
) -> None:
    """Select an architecture at initialisation by the NTK trace norm (NASI, Algorithm 1)."""
    # Imported here: the help and errors of other commands need no JAX networks.
    from nasjax.evaluation import load_nasbench201_table
    from nasjax.runs import NasiSettings, run_nasi

    settings = NasiSettings(
        space=space,
        data=data,
        labels=labels,
        steps=steps,
        batch_size=batch_size,
        channels=channels,
        cells=cells,
        nu=nu,
        nu_mode=nu_mode,
        nu_scale=nu_scale,
        mu=mu,
        seed=seed,
        initialization=initialization,
        normalization=normalization,
    )
    if table is None and space == "nasbench201":
        table = default_table()
    loaded = None if table is None else load_nasbench201_table(table)
    out = out or Path("runs") / settings.run_name()
    with step_progress(_PHASES, "compiling ...") as on_step:
        result = run_nasi(settings, out, table=loaded, on_step=on_step)
    _print_result(result, out)


def _nu_numbers(record) -> str:
    failed = "  failed" if record["is_dead"] or not record["is_finite"] else ""
    return f"T {float(record['trace_norm']):.4g}{failed}"


def _search_numbers(record) -> str:
    reward, nu = float(record["reward"]), float(record["nu"])
    return f"R {reward:.4g}  nu {nu:.4g}  {_nu_numbers(record)}"


_PHASES = {
    "nu": ("estimating nu", _nu_numbers),
    "search": ("searching", _search_numbers),
    "approximations": ("approximations", lambda record: f"exact {record['exact']:.4g}"),
    "widths": ("infinite width", lambda record: f"infinite {record['infinite']:.4g}"),
}
"""What the bar of a phase is called, and what stands beside it."""


@validate_app.command("ntk")
def validate_ntk(
    space: Annotated[
        str,
        typer.Option(
            help="Search space: nasbench201, darts, mlp, or nasbench1shot1_1, nasbench1shot1_2, "
            "nasbench1shot1_3, which have the same defaults."
        ),
    ] = "nasbench201",
    data: DataOption = "random",
    num_architectures: Annotated[
        int, typer.Option(help="Drawn uniformly, distinct and connected.")
    ] = 100,
    batch_sizes: Annotated[
        str,
        typer.Option(help="Ascending. The largest is also that of the exact trace norm."),
    ] = "4,8,16",
    channels: Annotated[
        int | None,
        typer.Option(
            help="Channels of the first stage, or width of the hidden layers. [nasbench201: 8, "
            "darts: 8, nasbench1shot1: 8, mlp: 256]"
        ),
    ] = None,
    cells: Annotated[
        int | None,
        typer.Option(
            help="Cells: a stage, but in darts in all; layers of weights in mlp. "
            "[nasbench201: 1, darts: 1, nasbench1shot1: 1, mlp: 10]"
        ),
    ] = None,
    seed: SeedOption = 0,
    initialization: Annotated[
        str | None,
        typer.Option(
            help="lecun, he, xavier, ntk, or theory in mlp. [nasbench201: lecun, darts: lecun, "
            "nasbench1shot1: lecun, mlp: ntk]"
        ),
    ] = None,
    normalization: Annotated[
        str,
        typer.Option(help="none, or batch: gradients through the whole batch, many times dearer."),
    ] = "none",
    widths: Annotated[
        str | None,
        typer.Option(
            help="Channels at which finite networks are compared with infinite width; '' for none. "
            "[nasbench201: 8,16,32, mlp: 64,256,1024]"
        ),
    ] = None,
    num_infinite: Annotated[
        int | None,
        typer.Option(help="Architectures of that comparison. [20, or all if they are fewer]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run. [runs/validate-ntk-SPACE-DATA-seedSEED, the options that "
            "differ from the defaults between]"
        ),
    ] = None,
) -> None:
    """Compare approximations of the NTK trace norm with the exact one (NASI, table 7, figure 1)."""
    from nasjax.runs import ValidationSettings, run_validation

    settings = ValidationSettings(
        space=space,
        data=data,
        num_architectures=num_architectures,
        batch_sizes=_numbers("--batch-sizes", batch_sizes),
        channels=channels,
        cells=cells,
        seed=seed,
        initialization=initialization,
        normalization=normalization,
        widths=None if widths is None else _numbers("--widths", widths),
        num_infinite=num_infinite,
    )
    out = out or Path("runs") / settings.run_name()
    with step_progress(_PHASES, "compiling ...") as on_step:
        result = run_validation(settings, out, on_step=on_step)
    _print_validation(result, out)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InputError(f"{option}: must be numbers such as 4,8,16, got {text!r}.") from error


def _print_validation(result, out: Path) -> None:
    summary = result.summary
    failed = f", {summary['num_failed']} failed" if summary["num_failed"] else ""
    console.print(
        f"correlation with the exact trace norm over {summary['num_architectures']} architectures"
        f"{failed}: Pearson / Spearman"
    )
    found = summary["approximations"]
    rows = Table("batch", *found, box=None)
    for size in found["batch_loss"]:
        rows.add_row(str(size), *(_coefficients(by_size[size]) for by_size in found.values()))
    console.print(rows)
    from nasjax.runs.validation_summary import AGNOSTIC

    rows = Table("", "correlation", box=None)
    for name, found in summary["agnostic"].items():
        rows.add_row(AGNOSTIC[name], _coefficients(found))
    console.print(rows)
    if summary["widths"]:
        rows = Table("width", "error to infinite width (median)", "correlation", box=None)
        for width, found in summary["widths"].items():
            error = f"{100 * found['median_relative_error']:.1f} %"
            rows.add_row(str(width), error, _coefficients(found))
        console.print(rows)
    print_files(result, out, "validation.csv, validation.json, validation.png, validation.svg")


def _coefficients(found) -> str:
    return f"{found['pearson']['value']:.3f} / {found['spearman']['value']:.3f}"


def _print_result(result, out: Path) -> None:
    record = result.record
    summary = record["search"]
    print(record["architecture"])
    rows = Table("quantity", "value", show_header=False, box=None)
    if "official_index" in record:
        rows.add_row("NAS-Bench-201 index", str(record["official_index"]))
    if "official_hash" in record:
        rows.add_row("NAS-Bench-101 hash", record["official_hash"])
    for name in ("images", "resize", "channels", "standardisation", "labels"):
        if name in record["data"]:
            rows.add_row(name, record["data"][name])
    rows.add_row("steps (failed)", f"{summary['num_steps']} ({summary['num_failed']})")
    rows.add_row("mean trace norm", f"{summary['mean_trace_norm']:.4g}")
    rows.add_row("nu at the start", f"{summary['nu_start']:.4g}")
    rows.add_row("time, with compilation", f"{summary['seconds']:.1f} s")
    for name, value in record.get("accuracies", {}).items():
        rows.add_row(name, _format_entry(name, value))
    console.print(rows)
    print_files(result, out, "architecture.json, logits.npz, history.jsonl, cells.svg, cells.png")


def _format_entry(name: str, value) -> str:
    if name.endswith("_rank"):
        return f"{value} of 15625"
    return f"{value:.3f}" if name == "params_millions" else f"{100 * value:.2f} %"


@app.command()
def show(
    architecture: Annotated[
        str,
        typer.Argument(
            help="NAS-Bench-201 string or index, DARTS genotype, NAS-Bench-101 graph "
            "('110...,input|conv3x3-bn-relu|...|output'), NAS-Bench-1Shot1 cell "
            "('conv3x3-bn-relu~0|...|output~2,4'), activations and skips such as "
            "'relu|tanh+skip|relu', the folder or the "
            "architecture.json of a run, or a file that holds one of these."
        ),
    ],
    space: Annotated[
        str | None, typer.Option(help="Search space. [told from the architecture]")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to draw: PATH.svg and PATH.png.")] = Path(
        "architecture"
    ),
) -> None:
    """Print an architecture in every notation and draw its cells."""
    from nasjax.evaluation import draw_cells

    name, text = recognise("show", architecture, space)
    chosen = mlp_space(text.count("|") + 2) if name == "mlp" else get_space(name)
    genotype = chosen.from_string(text)
    graphs = chosen.describe(genotype)
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: the folder {out.parent} must exist. Make it first.")
    draw_cells(graphs, out, title=None)
    print(chosen.to_string(genotype))
    canonical = chosen.canonical(genotype)
    if not np.array_equal(canonical, genotype):
        print(f"canonical form, the same network: {chosen.to_string(canonical)}")
    if name == "nasbench201":
        print(f"NAS-Bench-201 index {official_index(genotype)}")
    if not chosen.is_connected(genotype):
        print("no input reaches the output")
    elif name == "nasbench101" or name in NUM_PARENTS:
        whole = to_nasbench101(name, genotype) if name in NUM_PARENTS else genotype
        print(f"NAS-Bench-101 hash {official_hash(whole)}")
    console.print(_edge_table(graphs))
    print(f"drawn to {out}.svg, {out}.png")


def _edge_table(graphs) -> Table:
    """A row an edge with an operation; where operations stand at nodes, a row a node."""
    if not any(graph.node_operations for graph in graphs):
        rows = Table("cell", "from", "operation", "to", box=None)
        for graph in graphs:
            for source, target, label in graph.edges:
                if label:
                    rows.add_row(graph.name, source, label, target)
        return rows
    rows = Table("cell", "node", "operation", "reads", box=None)
    for graph in graphs:
        operations = dict(graph.node_operations)
        for node in graph.nodes:
            sources = [source for source, target, _ in graph.edges if target == node]
            if sources:
                rows.add_row(graph.name, node, operations.get(node, ""), ", ".join(sources))
    return rows
