"""Checks of options that several runs have."""

from nasjax.errors import InputError, unknown_name
from nasjax.networks import INITIALIZATIONS, MLP_INITIALIZATIONS, NORMALIZATIONS


def check_layers(space: str, initialization: str, normalization: str) -> None:
    """Raises an ``InputError`` for an initialisation or normalisation that a space has not."""
    is_mlp = space == "mlp"
    for option, name, known in (
        ("--initialization", initialization, MLP_INITIALIZATIONS if is_mlp else INITIALIZATIONS),
        ("--normalization", normalization, ("none",) if is_mlp else NORMALIZATIONS),
    ):
        if name not in known:
            raise unknown_name(option, f"{option.strip('-')} in {space}", name, known)


def check_number(option: str, value: int, least: int, most: int) -> None:
    """Raises an ``InputError`` for a number out of its range."""
    if not least <= value <= most:
        raise InputError(f"{option}: must be {least} to {most}, got {value}.")


def check_seed(seed: int) -> None:
    """Raises an ``InputError`` for a seed that is none."""
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed: must be in 0 ... 2^32 - 1, got {seed}.")
