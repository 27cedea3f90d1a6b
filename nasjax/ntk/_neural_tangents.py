"""neural-tangents 0.6.5 on current JAX: the one file that touches a third party's internals.

The last release of neural-tangents is of December 2023 and does not import on the JAX of today.
``neural_tangents`` supplies what has gone since: names that JAX has moved or dropped stand in
their old places only while the package is imported, and private functions of neural-tangents that
use what JAX has changed are replaced in neural-tangents' own modules. JAX itself stays as it was.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.core
import jax.extend.core
import jax.numpy as jnp
import scipy.linalg
from jax.interpreters import ad

_BRIDGED_VERSION = "0.6.5"
_NEWEST_TESTED_JAX = (0, 12)
_PACKAGE = "neural_tangents"


@functools.cache
def neural_tangents() -> ModuleType:
    """The package neural-tangents, made to work with the installed JAX.

    The first call imports the package (under a second) without TensorFlow, so that
    ``neural_tangents.experimental``, which needs it, is left out. Later calls cost nothing. A
    release other than 0.6.5 is imported as it is.

    What the package says about a user's network is not silenced: ``stax.FanInSum`` always warns
    that it takes its branches for independent, the structured derivatives warn of a primitive
    without a rule, and implementation ``AUTO`` prints the operations that each one needs.

    Returns:
      The module: ``neural_tangents().empirical_ntk_fn``, ``.stax``, ``.predict``, ``.batch``.

    Raises:
      ImportError: if the package is missing, or if JAX is newer than the tests have covered and
        something that the bridge needs is no longer there.

    Example:
      >>> nt = neural_tangents()
      >>> kernel_fn = nt.empirical_ntk_fn(lambda w, x: x @ w)
      >>> kernel_fn(jnp.eye(2), None, jnp.ones((2, 1)))  # x x^T
      Array([[1., 0.],
             [0., 1.]], dtype=float32)

    References:
      Novak et al., `Neural Tangents: Fast and Easy Infinite Neural Networks in Python
      <https://arxiv.org/abs/1912.02803>`_, 2020, and `Fast Finite Width Neural Tangent Kernel
      <https://arxiv.org/abs/2206.08720>`_, 2022.
    """
    try:
        version = importlib.metadata.version("neural-tangents")
    except importlib.metadata.PackageNotFoundError as error:
        raise ImportError(
            "neural_tangents: the package neural-tangents must be installed, got none. Run `pip "
            f"install neural-tangents=={_BRIDGED_VERSION}`."
        ) from error
    if version != _BRIDGED_VERSION:
        return importlib.import_module(_PACKAGE)
    try:
        with _old_names():
            package = importlib.import_module(_PACKAGE)
        # The empty module that stood for it; who needs the real one can still import it.
        vars(package).pop("experimental", None)
        _mend_structured_derivatives(importlib.import_module(f"{_PACKAGE}._src.empirical"))
        _mend_learning_rate(importlib.import_module(f"{_PACKAGE}._src.predict"))
    except (ImportError, AttributeError) as error:
        if jax.__version_info__[:2] <= _NEWEST_TESTED_JAX:
            raise
        newest = ".".join(map(str, _NEWEST_TESTED_JAX))
        raise ImportError(
            f"neural_tangents: JAX must be at most {newest} for neural-tangents {version}, got JAX "
            f"{jax.__version__}, where {error}. Install an older JAX or a newer nasjax."
        ) from error
    return package


# --- names that stand in their old places during the import -------------------------------------


@contextmanager
def _old_names() -> Iterator[None]:
    """Names that importing neural-tangents asks for, taken away again afterwards."""
    extend = jax.extend.core
    with ExitStack() as stack:
        # `jax.core` has handed these to `jax.extend.core`.
        for name in ("Jaxpr", "JaxprEqn", "Literal", "Primitive", "Var"):
            _lend(stack, jax.core, name, lambda name=name: getattr(extend, name))
        # No program holds this primitive any more: it only has to be a key of a table of rules.
        _lend(stack, ad, "zeros_like_p", lambda: extend.Primitive("zeros_like"))
        # `jax.util` is gone altogether.
        if importlib.util.find_spec("jax.util") is None:
            _lend_module(stack, "jax.util", safe_map=_strict_map, safe_zip=_strict_zip)
        # It imports tf2jax and so TensorFlow: seconds and half a gigabyte that nothing here uses.
        _lend_module(stack, f"{_PACKAGE}.experimental")
        yield


def _lend(stack: ExitStack, module: ModuleType, name: str, make: Callable[[], Any]) -> None:
    """Gives a module an attribute that it lacks, until the stack unwinds."""
    if name not in vars(module):
        setattr(module, name, make())
        stack.callback(delattr, module, name)


def _lend_module(stack: ExitStack, name: str, **contents) -> None:
    """Makes a module importable that is not, until the stack unwinds."""
    if name not in sys.modules:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(contents)
        stack.callback(sys.modules.pop, name, None)


def _strict_map(fn: Callable, *sequences) -> list:
    return [fn(*items) for items in zip(*sequences, strict=True)]


def _strict_zip(*sequences) -> list[tuple]:
    return list(zip(*sequences, strict=True))


# --- functions of neural-tangents that are replaced ---------------------------------------------


def _mend_structured_derivatives(empirical: ModuleType) -> None:
    """Structured derivatives, and the choice of an implementation, with today's JAX."""
    from jax.extend import source_info_util

    # Internals of JAX, from its modules for authors of primitives; one that is missing fails here.
    empirical.ad = SimpleNamespace(
        add_tangents=ad.add_tangents,
        is_undefined_primal=ad.is_undefined_primal,
        primitive_jvps=ad.primitive_jvps,
        source_info_util=source_info_util,
        # Its own run-time checks call functions that JAX no longer has.
        config=SimpleNamespace(jax_enable_checks=False),
    )
    empirical.core = SimpleNamespace(
        ShapedArray=jax.core.ShapedArray,
        # A type that no array has: neural-tangents only compares with it.
        DShapedArray=type("DShapedArray", (), {}),
        Var=jax.extend.core.Var,
    )
    # Deprecated uses: the size of a shape, and an array where a dtype belongs.
    empirical.jnp = _overlay(
        jnp, size=lambda x: math.prod(getattr(x, "shape", ())), dtype=jnp.result_type
    )
    _replace(
        empirical,
        "_get_primals_out_and_pullback",
        functools.partial(_primals_out_and_pullback, empirical._backward_pass),
    )
    _replace(empirical, "_eqn_vjp_fn", _transpose_equation)
    _replace(empirical, "_get_flops", _num_flops)


def _mend_learning_rate(predict: ModuleType) -> None:
    """``max_learning_rate``, for which SciPy has renamed ``eigvals`` to ``subset_by_index``."""

    def eigvalsh(matrix, *, eigvals):
        return scipy.linalg.eigvalsh(matrix, subset_by_index=eigvals)

    _replace(predict, "sp", SimpleNamespace(linalg=SimpleNamespace(eigvalsh=eigvalsh)))


def _overlay(module: ModuleType, **names) -> ModuleType:
    """A module that is another one but for a few names."""
    overlay = ModuleType(module.__name__)
    vars(overlay).update(names, __getattr__=functools.partial(getattr, module))
    return overlay


def _replace(module: ModuleType, name: str, value: Any) -> None:
    if not hasattr(module, name):
        raise AttributeError(f"{module.__name__} has no `{name}` to replace")
    setattr(module, name, value)


def _primals_out_and_pullback(
    backward_pass, fn, mode, _j_rules, _s_rules, _fwd, *primals_in
) -> tuple[Any, Callable]:
    """Outputs of ``fn``, and what neural-tangents collects on the way back through it.

    ``ad.linearize``, which it called here, has changed; ``jax.linearize`` is the public way to the
    same linear program.
    """
    leaves, in_tree = jax.tree.flatten(primals_in)
    # Without jit, calls dissolve into primitives: there are rules for these, not for calls.
    with jax.disable_jit():
        primals_out, linear_fn = jax.linearize(
            lambda *leaves: fn(*jax.tree.unflatten(in_tree, leaves)), *leaves
        )
        linear = jax.make_jaxpr(linear_fn)(*leaves)

    def pullback_fn(*cotangents):
        collected = backward_pass(
            linear.jaxpr,
            mode=mode,
            consts=linear.consts,
            primals_in=[ad.UndefinedPrimal(var.aval) for var in linear.jaxpr.invars],
            cotangents_in=tuple(jax.tree.leaves(cotangents)),
            _j_rules=_j_rules,
            _s_rules=_s_rules,
            _fwd=_fwd,
        )
        return jax.tree.unflatten(in_tree, collected)

    return primals_out, pullback_fn


def _transpose_equation(equation, cotangent, *operands) -> list:
    """Cotangents of an equation's linear operands, ``None`` for the others.

    The tables of transposes that neural-tangents read here are gone or no longer complete;
    ``jax.linear_transpose`` knows them all.
    """
    if equation is None:  # an output that is an input
        return [cotangent]

    def bind(*linear):
        linear = iter(linear)
        values = [
            next(linear) if ad.is_undefined_primal(operand) else _value(operand)
            for operand in operands
        ]
        return equation.primitive.bind(*values, **equation.params)

    shapes = [
        jax.ShapeDtypeStruct(operand.aval.shape, operand.aval.dtype)
        for operand in operands
        if ad.is_undefined_primal(operand)
    ]
    cotangents = iter(jax.linear_transpose(bind, *shapes)(cotangent))
    return [next(cotangents) if ad.is_undefined_primal(operand) else None for operand in operands]


def _value(operand):
    """An operand that is only known by its shape does not enter the derivative."""
    if isinstance(operand, jax.core.ShapedArray):
        return jnp.zeros(operand.shape, operand.dtype)
    return operand


def _num_flops(fn, optimize: bool, *args, **kwargs) -> float:
    """Operations of a program by XLA's count, which came inside a list once."""
    stage = jax.jit(fn).lower(*args, **kwargs)
    return (stage.compile() if optimize else stage).cost_analysis()["flops"]
