"""The commands ``nasjax validate eigen`` and ``nasjax validate generalization``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from nasjax.cli_common import DataOption, SeedOption, console, print_files, step_progress
from nasjax.errors import InputError


def validate_eigen(
    num_points: Annotated[int, typer.Option(help="N, on the unit sphere.")] = 64,
    input_dim: Annotated[int, typer.Option(help="d; the upper bound holds from N = d on.")] = 16,
    max_depth: Annotated[int, typer.Option(help="L goes from 3 to this.")] = 10,
    num_seeds: Annotated[int, typer.Option(help="Draws of points.")] = 5,
    num_architectures: Annotated[
        int, typer.Option(help="Random ones of the largest depth, for each layer's importance.")
    ] = 1000,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run. [runs/validate-eigen-seedSEED, the options that differ from "
            "the defaults between]"
        ),
    ] = None,
) -> None:
    """Compare theorem 1 of Eigen-NAS with smallest eigenvalues of infinite-width kernels."""
    from nasjax.runs import EigenValidationSettings, run_eigen_validation

    settings = EigenValidationSettings(
        num_points=num_points,
        input_dim=input_dim,
        max_depth=max_depth,
        num_seeds=num_seeds,
        num_architectures=num_architectures,
        seed=seed,
    )
    out = out or Path("runs") / settings.run_name()
    with step_progress(_EIGEN_PHASES, "compiling ...") as on_step:
        result = run_eigen_validation(settings, out, on_step=on_step)
    _print_eigen(result, out)


_EIGEN_PHASES = {
    "chains": ("depths", lambda record: f"L {record['depth']} {record['method']}"),
    "architectures": ("architectures", lambda record: ""),
}


def _print_eigen(result, out: Path) -> None:
    found = result.summary["claims"]["exact"]
    settings = result.summary["settings"]
    console.print(
        f"smallest eigenvalue at depth {settings['max_depth']} over that at 3, exact kernels, and "
        "how it changes between; claimed of the lower bound"
    )
    rows = Table("activation", "claimed", "no skips", "", "bound", "skips", "", box=None)
    for name, one in found["depth"].items():
        rows.add_row(
            name,
            one["claimed"],
            f"{one['deepest_over_shallowest']:.3g}",
            one["found"],
            one["found_of_lower_bound"],
            f"{one['deepest_over_shallowest_with_skips']:.3g}",
            one["found_with_skips"],
        )
    console.print(rows)
    skips, bounds = found["skips"], found["bounds"]
    if skips["share_of_chains"] is not None:
        console.print(
            f"skips raise it in {100 * skips['share_of_chains']:.0f} % of chains, "
            f"{skips['smallest_ratio']:.3g} to {skips['largest_ratio']:.3g} times; it is at most "
            f"{bounds['largest_share_of_upper']:.2g} of the upper bound"
        )
    if not found["resolution"]["holds"]:
        least = found["resolution"]["least_share_of_lambda_max"]
        console.print(
            f"some are {least:.0e} of the largest eigenvalue, where the kernels' own error may "
            "decide; give fewer points or more dimensions"
        )
    shares = result.summary["importance"]["exact"]
    console.print(
        "share of the variance of its logarithm over random architectures; relative: of its share "
        "of the mean diagonal"
    )
    rows = Table("layer", "activation", "skip", "activation, relative", "skip, relative", box=None)
    for layer in range(1, settings["max_depth"]):
        values = []
        for found in (shares["lambda_min"], shares["relative"]):
            values.append(f"{found['activations'][layer - 1]:.3f}")
            values.append(f"{found['skips'][layer - 2]:.3f}" if layer > 1 else "")
        rows.add_row(str(layer), *values)
    console.print(rows)
    print_files(result, out, "lambda_min.csv, summary.json, lambda_min.svg, lambda_min.png")


def validate_generalization(
    data: DataOption = "digits",
    classes: Annotated[str, typer.Option(help="Two labels.")] = "3,8",
    image_size: Annotated[int, typer.Option(help="Pixels a side.")] = 8,
    depth: Annotated[int, typer.Option(help="L, layers of weights.")] = 5,
    width: Annotated[int, typer.Option(help="m, of the hidden layers.")] = 256,
    num_examples: Annotated[int, typer.Option(help="N, steps of the pass.")] = 128,
    num_test: Annotated[int, typer.Option(help="Most examples to measure the error on.")] = 1000,
    num_architectures: Annotated[int, typer.Option(help="Random ones.")] = 60,
    num_runs: Annotated[
        int, typer.Option(help="Passes of an architecture, over which errors are averaged.")
    ] = 5,
    step_size: Annotated[
        float, typer.Option(help="Of the passes beside those with the theorem's step size.")
    ] = 0.3,
    kappa: Annotated[float, typer.Option(help="Of the theorem's step size.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Of the bound.")] = 0.1,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run. [runs/validate-generalization-DATA-seedSEED, the options that "
            "differ from the defaults between]"
        ),
    ] = None,
) -> None:
    """Compare theorem 3 of Eigen-NAS with errors after one pass of SGD (algorithm 1)."""
    from nasjax.runs import GeneralizationSettings, run_generalization

    settings = GeneralizationSettings(
        data=data,
        classes=_labels(classes),
        image_size=image_size,
        depth=depth,
        width=width,
        num_examples=num_examples,
        num_test=num_test,
        num_architectures=num_architectures,
        num_runs=num_runs,
        step_size=step_size,
        kappa=kappa,
        delta=delta,
        seed=seed,
    )
    out = out or Path("runs") / settings.run_name()
    with step_progress(_GENERALIZATION_PHASES, "compiling ...") as on_step:
        result = run_generalization(settings, out, on_step=on_step)
    _print_generalization(result, out)


_GENERALIZATION_PHASES = {
    "architectures": (
        "architectures",
        lambda record: f"errors {record['error_theory']:.2f}, {record['error_practical']:.2f}",
    ),
}


def _labels(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--classes: must be labels such as 3,8, got {text!r}.") from error


def _print_generalization(result, out: Path) -> None:
    summary = result.summary
    console.print(
        f"{summary['num_architectures']} architectures, {summary['num_test']} held-out examples; "
        f"the bound is above 1 for {100 * summary['share_of_vacuous_bounds']:.0f} %, and at least "
        f"{summary['smallest_bound']:.3g}"
    )
    steps = summary["steps"]
    names = ("theorem's", "--step-size", "untrained")
    rows = Table("steps, medians", *names, box=None)
    sizes = (summary["median_theory_step_size"], summary["settings"]["step_size"])
    rows.add_row("step size", *(f"{value:.3g}" for value in sizes))
    for name, label in (("median_error", "drawn"), ("median_last_error", "last")):
        values = [one[name] for one in steps.values()]
        values.append(steps["theory"]["median_initial_error"])
        rows.add_row(f"error, {label} iterate", *(f"{100 * value:.1f} %" for value in values))
    console.print(rows)
    rows = Table("Spearman", *names, box=None)
    for name, label in (
        ("label_term", "label term"),
        ("eigenvalue_term", "eigen term"),
        ("lambda_min", "lambda_min"),
    ):
        found = [one["spearman"][name] for one in steps.values()]
        found.append(summary["spearman_untrained"][name])
        rows.add_row(
            label, *(f"{one['value']:.2f} ({one['low']:.2f}, {one['high']:.2f})" for one in found)
        )
    console.print(rows)
    files = "generalization.csv, summary.json, generalization.svg, generalization.png"
    print_files(result, out, files)
