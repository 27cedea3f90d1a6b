"""The command ``nasjax score``."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from nasjax.cli_common import (
    DATA_VARIABLE,
    TABLE_NAME,
    DataOption,
    SeedOption,
    console,
    default_table,
    load_accuracies,
    stoppable,
)
from nasjax.errors import InputError

_FILES = "scores.csv, scores.parquet, metadata.json"
_MOST_LINES = 20


def score(
    space: Annotated[
        str,
        typer.Option(
            help="Search space: nasbench201, darts, mlp, nasbench101, or nasbench1shot1_1, "
            "nasbench1shot1_2, nasbench1shot1_3."
        ),
    ] = "nasbench201",
    num_architectures: Annotated[
        int | None, typer.Option(help="Score so many, drawn uniformly and distinct.")
    ] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="Score every architecture of the space.")
    ] = False,
    archs: Annotated[
        Path | None, typer.Option(help="Score those of a file, a string or index a line.")
    ] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option(help="Score this one: a string or index. May be given several times."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Names joined by commas; NAME:CODE is the form of public code, for example "
            "grad_norm:code or condition_number:tenas; a wrong name lists all. "
            "[grad_norm,snip,synflow,naswot,jacob_cov,condition_number]"
        ),
    ] = None,
    data: DataOption = "random",
    batch_size: Annotated[
        int | None, typer.Option(help="Images that every network is scored on. [64]")
    ] = None,
    image_size: Annotated[int, typer.Option(help="Their height and width in pixels.")] = 32,
    channels: Annotated[
        int | None,
        typer.Option(
            help="Channels of the first stage, or width of the hidden layers. [nasbench201: 16, "
            "darts: 16, mlp: 256, nasbench101 and nasbench1shot1: 16]"
        ),
    ] = None,
    cells: Annotated[
        int | None,
        typer.Option(
            help="Cells: a stage in nasbench201, in all in darts; layers of weights in mlp. "
            "[nasbench201: 5, darts: 8, mlp: 10, nasbench101 and nasbench1shot1: 3]"
        ),
    ] = None,
    num_seeds: Annotated[
        int, typer.Option(help="Draws of weights, to give means and standard errors.")
    ] = 1,
    seed: SeedOption = 0,
    initialization: Annotated[
        str | None,
        typer.Option(
            help="lecun, he, xavier, ntk, or theory in mlp. [nasbench201: lecun, darts: lecun, "
            "mlp: ntk, nasbench101 and nasbench1shot1: lecun]"
        ),
    ] = None,
    normalization: Annotated[
        str | None,
        typer.Option(
            help="batch or none. [nasbench201: batch, darts: batch, mlp: none, nasbench101 and "
            "nasbench1shot1: batch]"
        ),
    ] = None,
    coupling: Annotated[
        str,
        typer.Option(help="mapped, or exact: kernels through the statistics of the whole batch."),
    ] = "mapped",
    num_parts: Annotated[int, typer.Option(help="Parts of the batch that zico compares.")] = 2,
    engine: Annotated[
        str | None,
        typer.Option(
            help="How scores are computed: auto, native, walk, program or autodiff. [auto]"
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            help="NAS-Bench-201 accuracies to correlate scores with: a CSV file, or NATS-Bench's "
            f"folder or file. [{TABLE_NAME} in ${DATA_VARIABLE}]"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run. [runs/score-SPACE-DATA-seedSEED, the options that differ from "
            "the defaults between]"
        ),
    ] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(
            envvar="JAX_COORDINATOR_ADDRESS",
            help="ADDRESS:PORT of process 0 of several that share the work, by jax.distributed; "
            "auto asks Slurm, Open MPI or the TPU.",
        ),
    ] = None,
    num_processes: Annotated[
        int | None,
        typer.Option(envvar="JAX_NUM_PROCESSES", help="How many processes share the work."),
    ] = None,
    process_id: Annotated[
        int | None, typer.Option(envvar="JAX_PROCESS_ID", help="Which of them this is, from 0.")
    ] = None,
    torch_weights: Annotated[
        Path | None,
        typer.Option(
            help="Score one NAS-Bench-201 network with these weights instead: an .npz file with "
            "PyTorch's names and layout. Needs --batch."
        ),
    ] = None,
    batch: Annotated[
        Path | None,
        typer.Option(help="Its batch: an .npz file with x [n, channels, height, width] and y [n]."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float64 computes its scores in double precision.")
    ] = None,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print its scores as one JSON object.")
    ] = False,
) -> None:
    """Score architectures by training-free metrics, and compare them with known accuracies."""
    names = None if metrics is None else tuple(metrics.split(","))
    if torch_weights is not None or batch is not None:
        given = {
            "--num-architectures": num_architectures,
            "--all": is_all or None,
            "--archs": archs,
            "--table": table,
            "--out": out,
        }
        unwanted = [option for option, value in given.items() if value is not None]
        if unwanted:
            raise InputError(
                f"{unwanted[0]}: must be left out with --torch-weights, which scores one network."
            )
        _score_torch(
            torch_weights,
            batch,
            names,
            arch=arch,
            batch_size=batch_size,
            cells=cells,
            coupling=coupling,
            num_parts=num_parts,
            dtype=dtype,
            is_json=is_json,
        )
        return
    for option, value in (("--json", is_json), ("--dtype", dtype)):
        if value:
            raise InputError(f"{option}: must be given with --torch-weights, or left out.")
    # Imported here: the help and errors of other commands need no JAX networks.
    from nasjax.runs import ScoreSettings, join_processes, run_score

    options = {
        "metrics": names,
        "batch_size": batch_size,
        "engine": engine,
    }
    settings = ScoreSettings(
        space=space,
        data=data,
        image_size=image_size,
        channels=channels,
        cells=cells,
        num_seeds=num_seeds,
        seed=seed,
        initialization=initialization,
        normalization=normalization,
        coupling=coupling,
        num_parts=num_parts,
        **{name: value for name, value in options.items() if value is not None},
    )
    out = out or Path("runs") / settings.run_name()
    choose = _chosen(num_architectures, is_all, archs, arch)
    process = join_processes(
        out, coordinator=coordinator, count=num_processes, process_id=process_id
    )
    request = choose(settings)
    _say_bad_lines(request.bad_lines)
    if table is None and space == "nasbench201":
        table = default_table()
    loaded = None if table is None else load_accuracies(table, space, request.genotypes)
    start = time.perf_counter()
    _say_what_takes_long(settings)
    with _progress() as on_step:
        result = run_score(settings, request, out, process=process, table=loaded, on_step=on_step)
    _print_run(result, request, settings, out, time.perf_counter() - start)


def _chosen(num_architectures, is_all, archs, arch) -> Callable:
    """``(settings) -> request``, for the one of four options that was given."""
    from nasjax.runs.score_request import (
        request_all,
        request_file,
        request_sample,
        request_strings,
    )

    ways = []
    if num_architectures is not None:
        ways.append(lambda s: request_sample(s.space_of(), num_architectures, s.seed))
    if is_all:
        ways.append(lambda s: request_all(s.space_of()))
    if archs is not None:
        ways.append(lambda s: request_file(s.space_of(), archs))
    if arch:
        ways.append(lambda s: request_strings(s.space_of(), arch))
    if len(ways) != 1:
        raise InputError(
            "score: one of --num-architectures, --all, --archs and --arch must be given, got "
            f"{len(ways) or 'none'}."
        )
    return ways[0]


def _say_bad_lines(lines) -> None:
    for line in lines[:_MOST_LINES]:
        print(f"nasjax: {line}", file=sys.stderr)
    if len(lines) > _MOST_LINES:
        print(f"nasjax: and {len(lines) - _MOST_LINES} more bad lines.", file=sys.stderr)


@contextmanager
def _progress() -> Iterator[Callable]:
    """Yields the ``on_step`` that shows a bar with the rate, from the first step on."""
    progress = Progress(
        TextColumn("scoring"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=console,
    )
    task, first, start = None, 0, 0.0

    def on_step(phase, step, num_steps, record):
        nonlocal task, first, start
        progress.start()
        if task is None:
            task = progress.add_task(phase, total=num_steps, completed=step, rate="compiling ...")
            first, start = step, time.perf_counter()
            return
        rate = _rate(step - first, time.perf_counter() - start)
        progress.update(task, completed=step, rate=rate)

    try:
        with stoppable(on_step) as checked:
            yield checked
    finally:
        progress.stop()


def _rate(count: int, seconds: float) -> str:
    if not count or not seconds:
        return ""
    if count >= seconds:
        return f"{count / seconds:.1f} networks/s"
    return f"{seconds / count:.1f} s/network"


def _print_run(result, request, settings, out: Path, seconds: float) -> None:
    if result.num_missing:
        print(
            f"this share is done; {result.num_missing} networks are left to other processes, the "
            f"last of which writes {_FILES} to {out}. Start those again that have died."
        )
        return
    metadata = result.metadata
    several = f" with {settings.num_seeds} seeds each" if settings.num_seeds > 1 else ""
    bad = f", {len(request.bad_lines)} bad lines left out" if request.bad_lines else ""
    print(
        f"{metadata['num_architectures']} architectures, {metadata['num_distinct']} of them "
        f"different{several}{bad}"
    )
    _print_best(result, settings)
    _print_failures(metadata["failures"], settings.metrics)
    if "correlations" in metadata:
        _print_correlations(metadata["correlations"])
    if result.num_run:
        plural = "s" * (result.num_run > 1)
        rate = _rate(result.num_run, seconds)
        engines = " and ".join(metadata["engines"])
        print(
            f"{result.num_run} network{plural} in {seconds:.1f} s, compilation included: {rate}, "
            f"by {engines}"
        )
        _say_what_is_slow(settings, metadata["engines"])
        print(f"written to {out}: {_FILES}")
    else:
        print(f"scored before, nothing was run again; in {out}: {_FILES}")


def _say_what_takes_long(settings) -> None:
    from nasjax.metrics import conv_kernels

    if settings.may_be_native and conv_kernels.is_to_be_compiled():
        print(
            "nasjax: compiling kernels for this processor, once: half a minute at most.",
            file=sys.stderr,
        )


def _say_what_is_slow(settings, engines) -> None:
    from nasjax.metrics import conv_kernels

    if settings.engine == "auto" and "walk" in engines:
        print(
            "nasjax: XLA computes the convolutions, at half the speed of nasjax's kernels for "
            f"CPUs: {conv_kernels.why_not()}.",
            file=sys.stderr,
        )


def _print_best(result, settings) -> None:
    from nasjax.metrics import METRICS
    from nasjax.runs.score_table import best_rows

    rows = Table(
        _metric_column(), "better", "failed", "best", Column("of", overflow="fold"), box=None
    )
    for name in settings.metrics:
        best = best_rows(result.rows, name, 1)
        value = f"{best[0][name]:.6g}" if best else "-"
        failed = str(result.metadata["num_failed"][name])
        rows.add_row(name, METRICS[name].direction, failed, value, _named(best, settings))
    console.print(rows)


def _print_failures(failures, metrics) -> None:
    """A line for every reason, with the metrics that failed for it."""
    told: dict[tuple[str, int], list[str]] = {}
    for metric, counts in failures.items():
        for reason, count in counts.items():
            told.setdefault((reason, count), []).append(metric)
    for (reason, count), names in told.items():
        of = "all metrics" if len(names) == len(metrics) else ", ".join(names)
        print(f"failed for {count} network{'s' * (count > 1)}, {of}: {reason}")


def _metric_column() -> Column:
    return Column("metric", no_wrap=True, overflow="fold")


def _named(best, settings) -> str:
    if not best:
        return "-"
    is_indexed = settings.space == "nasbench201"
    return f"{'index' if is_indexed else 'row'} {best[0]['index']}"


def _print_correlations(found) -> None:
    from nasjax.runs.score_table import MAIN_ACCURACIES

    kinds = {
        "spearman": "Spearman correlation with accuracy",
        "kendall": "Kendall correlation with accuracy",
        "spearman_failed_last": "Spearman correlation, failed architectures last",
    }
    counts = {kind: _num_pairs(found, kind) for kind in kinds}
    for kind, title in kinds.items():
        if kind == "spearman_failed_last" and counts[kind] == counts["spearman"]:
            continue  # nothing failed
        print(f"{title} [95 % interval], positive where the metric helps")
        titles = (name.replace("_", " ") for name in MAIN_ACCURACIES)
        rows = Table(_metric_column(), *titles, "pairs", box=None)
        for (metric, by_accuracy), count in zip(found.items(), counts[kind], strict=True):
            numbers = [_interval(by_accuracy[name][kind]) for name in MAIN_ACCURACIES]
            rows.add_row(metric, *numbers, str(count))
        console.print(rows)


def _num_pairs(found, kind: str) -> list[int]:
    from nasjax.runs.score_table import MAIN_ACCURACIES

    return [by_accuracy[MAIN_ACCURACIES[0]][kind]["num_pairs"] for by_accuracy in found.values()]


def _interval(found) -> str:
    if not math.isfinite(found["value"]):
        return "-"
    if not math.isfinite(found["low"]):
        return f"{found['value']:.3f}"
    return f"{found['value']:.3f} ({found['low']:.3f}, {found['high']:.3f})"


def _score_torch(weights, batch, names, *, arch, is_json: bool, **settings) -> None:
    from nasjax.runs.score import DEFAULT_METRICS, check_metric_names
    from nasjax.runs.torch_score import score_torch_weights

    if weights is None or batch is None:
        raise InputError("--torch-weights, --batch: must be given together, got one of them.")
    if arch and len(arch) > 1:
        raise InputError(f"--arch: must name one cell with --torch-weights, got {len(arch)}.")
    metrics = check_metric_names(names or DEFAULT_METRICS)
    scores = score_torch_weights(
        weights, batch, metrics, arch=arch[0] if arch else None, **settings
    )
    values = {
        name: value if name not in scores.flags and math.isfinite(value) else None
        for name, value in scores.values.items()
    }
    if is_json:
        notes = {"flags": scores.flags, "warnings": scores.warnings}
        print(json.dumps(values | {name: note for name, note in notes.items() if note}))
        return
    rows = Table("metric", "value", "", box=None)
    for name, value in values.items():
        note = scores.flags.get(name, scores.warnings.get(name, ""))
        rows.add_row(name, "-" if value is None else f"{value:.9g}", note)
    console.print(rows)
