"""Recipes, a file each: what is trained on what, how long, and what comes out."""

import importlib
import runpy
from pathlib import Path

from nasjax.errors import InputError, first_line, unknown_name
from nasjax.training.recipe import Recipe

RECIPES = {
    "quick": "something learned in minutes on two CPU cores",
    "cifar10": "a DARTS network of full size on CIFAR-10 (NASI, NESBS)",
    "cifar100": "a DARTS network of full size on CIFAR-100 (HNAS)",
    "tiny_imagenet": "a DARTS network of full size on Tiny-ImageNet-200 (cell topology)",
    "imagenet": "a DARTS network of mobile size on ImageNet (NASI, HNAS, NESBS)",
    "nasbench201": "NAS-Bench-201's 200 epochs",
    "nasbench201_12": "NAS-Bench-201's 12 epochs",
    "hnas_candidate": "the 10 epochs by which HNAS checks a candidate",
    "supernet": "a one-shot network, a uniformly drawn path a step (NESBS)",
}
"""Names that ``get_recipe`` takes, and what each is."""


def get_recipe(name: str) -> Recipe:
    """A recipe by its name, or out of a Python file of one's own.

    Args:
      name: a key of ``RECIPES``, or the path of a ``.py`` file that sets ``RECIPE``. Such a file is
        run.

    Returns:
      The recipe.

    Raises:
      InputError: if there is none.

    Example:
      >>> get_recipe("nasbench201").epochs
      200
    """
    if name in RECIPES:
        return importlib.import_module(f"{__name__}.{name}").RECIPE
    if not name.endswith(".py"):
        unknown = unknown_name("--recipe", "recipe", name, RECIPES)
        raise InputError(f"{unknown} A recipe of your own is a Python file that sets RECIPE.")
    if not Path(name).is_file():
        raise InputError(f"--recipe: must be a file, got {name!r}, which there is not.")
    try:
        recipe = runpy.run_path(name).get("RECIPE")
    except InputError:
        raise
    except Exception as error:  # whatever a user's file raises
        raise InputError(
            f"--recipe: {name!r} must run, got {type(error).__name__}: {first_line(error)}."
        ) from error
    if not isinstance(recipe, Recipe):
        raise InputError(
            f"--recipe: {name!r} must set RECIPE to a nasjax.training.Recipe, got "
            f"{type(recipe).__name__}."
        )
    return recipe
