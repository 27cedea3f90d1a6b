"""Packages import only what stands to their left, and importing them stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nasjax

ROOT = Path(nasjax.__file__).parent
BASE = {"errors", "types"}
ALLOWED = {  # package -> packages of nasjax that it may import
    "errors": set(),
    "types": set(),
    "data": BASE,
    "spaces": BASE,
    "networks": BASE | {"spaces"},
    "ntk": BASE | {"networks"},
    "metrics": BASE | {"spaces", "networks", "ntk"},
    "objectives": BASE,
    "search": BASE,
    "training": BASE | {"networks"},
    "evaluation": BASE | {"spaces"},
}
# They put the parts together: may import everything.
AT_THE_EDGE = {
    "runs",
    "cli",
    "cli_architecture",
    "cli_common",
    "cli_pool",
    "cli_compare",
    "cli_darts",
    "cli_eigen",
    "cli_eigen_theory",
    "cli_hnas",
    "cli_score",
    "cli_train",
    "__main__",
}
FORBIDDEN_LIBRARIES = {  # package -> libraries it must do without
    "data": {"flax", "neural_tangents"},
    "spaces": {"flax", "neural_tangents"},
    "objectives": {"flax", "neural_tangents"},
    "search": {"flax", "neural_tangents"},
    "evaluation": {"flax", "neural_tangents"},
    "networks": {"neural_tangents", "sklearn", "matplotlib", "tensorflow", "tensorflow_datasets"},
}
HEAVY = ["pyarrow", "tensorflow", "tensorflow_datasets", "matplotlib", "sklearn"]


def _package(path: Path) -> str:
    """``data`` for ``nasjax/data/load.py``, ``cli`` for ``nasjax/cli.py``."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def _imports(source: str, module: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Everything that a module imports, anywhere in its text, as dotted paths.

    Args:
      source: Python.
      module: where it stands, ``("nasjax", "data", "load")``, for relative imports.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = module[: len(module) - node.level] if node.level else ()
            origin = above + tuple((node.module or "").split(".") if node.module else ())
            found |= {(*origin, alias.name) for alias in node.names}
    return found


def _module(path: Path) -> tuple[str, ...]:
    return ("nasjax", *path.relative_to(ROOT).with_suffix("").parts)


def _violations(source: str, module: tuple[str, ...]) -> list[str]:
    package = module[1]
    bad = []
    for target in sorted(_imports(source, module)):
        if target[0] == "nasjax":
            other = target[1] if len(target) > 1 else "__init__"
            if other not in ALLOWED[package] | {package, "__version__"}:
                bad.append(f"{'.'.join(module)} imports {'.'.join(target)}")
        elif target[0] in FORBIDDEN_LIBRARIES.get(package, ()):
            bad.append(f"{'.'.join(module)} imports {'.'.join(target)}")
    return bad


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def test_every_package_has_its_rule():
    packages = {_package(path) for path in FILES}
    assert packages <= ALLOWED.keys() | AT_THE_EDGE
    assert {"data", "networks", "objectives", "search", "spaces"} <= packages


def test_rules_only_point_left():
    order = list(ALLOWED)
    for package, allowed in ALLOWED.items():
        assert all(order.index(other) < order.index(package) for other in allowed)


def test_packages_import_to_their_left():
    checked = [path for path in FILES if _package(path) not in AT_THE_EDGE]
    assert [bad for path in checked for bad in _violations(path.read_text(), _module(path))] == []


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("search", "import flax"),
        ("search", "import flax.linen as nn"),
        ("search", "from nasjax.networks import layers"),
        ("objectives", "from nasjax import networks"),
        ("data", "def f():\n    import nasjax.spaces.base"),
        ("spaces", "from ..networks import layers"),
        ("spaces", "from .. import networks"),
        ("evaluation", "import nasjax"),
        ("networks", "from nasjax.runs import folder"),
    ],
)
def test_a_wrong_import_is_seen(package, line):
    assert len(_violations(line, ("nasjax", package, "module"))) == 1


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("search", "from nasjax.errors import InputError"),
        ("search", "from nasjax.search.base import SearchAlgorithm"),
        ("search", "from . import base"),
        ("networks", "from nasjax.spaces import darts"),
        ("networks", "import flax.linen as nn"),
        ("data", "from nasjax import __version__"),
    ],
)
def test_a_right_import_is_not(package, line):
    assert _violations(line, ("nasjax", package, "module")) == []


@pytest.mark.parametrize(
    "module", ["nasjax", "nasjax.spaces", "nasjax.networks", "nasjax.objectives", "nasjax.search"]
)
def test_import_loads_nothing_heavy(module):
    loaded = _loaded_by(module)
    assert module in loaded
    assert sorted(loaded & set(HEAVY)) == []


def test_search_runs_without_flax():
    assert "flax" not in _loaded_by("nasjax.search")
    assert "flax" not in _loaded_by("nasjax.objectives")
    assert "flax" in _loaded_by("nasjax.networks")  # the probe does see it


def _loaded_by(module: str) -> set[str]:
    code = f"import sys, {module}; print(chr(10).join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())
