"""The commands ``nasjax validate eigen`` and ``nasjax validate generalization``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from nasjax.cli_common import SeedOption, console, print_files, step_progress


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
