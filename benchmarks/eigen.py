"""Times smallest eigenvalues of many fully connected architectures, against building each by stax.

    python benchmarks/eigen.py                          # 1,000 of depth 10 at 64 points, 5 by stax
    python benchmarks/eigen.py --architectures 100 --stax 3

Both compute kernels of infinite width in float64. neural-tangents' `stax` builds a network an
architecture: ReLU and LeakyReLU have closed forms there, the smooth activations a quadrature
(`ElementwiseNumerical`), and skips are sums of branches taken for independent (`FanInSum`). These
are not independent behind ReLU, LeakyReLU or swish, so that eigenvalues are compared without skips,
and with skips where all activations are odd. Printed are seconds, compilation apart, the ratio for
as many architectures, and the largest relative difference of smallest eigenvalues, which is that of
the quadrature: with `--degree` 25, 50 and 100 it falls from 5e-4 to 2e-6 and 2e-8.
"""

import argparse
import functools
import statistics
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from nasjax.networks.activations import ACTIVATIONS, NEGATIVE_SLOPE
from nasjax.ntk import mlp_lambda_min
from nasjax.ntk._neural_tangents import neural_tangents
from nasjax.runs import versions
from nasjax.spaces import mlp_space
from nasjax.spaces.mlp import ACTIVATION_NAMES, split_genotype

ODD = ("sigmoid", "tanh")


def points(options) -> np.ndarray:
    """Rows of norm 1."""
    x = np.random.default_rng(0).normal(size=(options.points, options.features))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def draw(count: int, depth: int, seed: int) -> np.ndarray:
    """Random architectures."""
    keys = jax.random.split(jax.random.key(seed), count)
    return np.asarray(jax.vmap(mlp_space(depth).sample)(keys))


def without_skips(genotypes) -> np.ndarray:
    """The same activations, no skip."""
    num_hidden = len(split_genotype(genotypes[0])[0])
    return np.where(np.arange(genotypes.shape[1]) < num_hidden, genotypes, 0)


def odd_only(genotypes) -> np.ndarray:
    """The same skips; sigmoid and tanh in the place of all activations."""
    num_hidden = len(split_genotype(genotypes[0])[0])
    odd = np.array([ACTIVATION_NAMES.index(name) for name in ODD])[genotypes % 2]
    return np.where(np.arange(genotypes.shape[1]) < num_hidden, odd, genotypes)


def stax_lambda_min(genotype, x, *, degree: int, is_jitted: bool) -> float:
    """By a network of stax, built for this architecture."""
    stax = neural_tangents().stax

    def dense(scale):
        return stax.Dense(1, scale, None, parameterization="ntk")

    def activation(name):
        if name == "relu":
            return stax.Relu()
        if name == "leaky_relu":
            return stax.LeakyRelu(NEGATIVE_SLOPE)
        return stax.ElementwiseNumerical(ACTIVATIONS[name], deg=degree)

    activations, skips = split_genotype(genotype)
    layers = [dense(np.sqrt(x.shape[1]))]
    for index, has_skip in zip(activations, (0, *skips), strict=True):
        # Sums must be Gaussian in stax, so that the skip leads past the next layer's weights: to
        # branches taken for independent that is the same kernel.
        branch = stax.serial(activation(ACTIVATION_NAMES[index]), dense(np.sqrt(2.0)))
        if has_skip:
            branch = stax.serial(
                stax.FanOut(2), stax.parallel(branch, stax.Identity()), stax.FanInSum()
            )
        layers.append(branch)
    kernel_fn = stax.serial(*layers)[2]

    def kernel(x):
        return kernel_fn(x, None, "ntk")

    matrix = (jax.jit(kernel) if is_jitted else kernel)(jnp.asarray(x))
    return float(np.linalg.eigvalsh(np.asarray(matrix))[0])


def timed(fn):
    """Seconds, and what came out."""
    start = time.perf_counter()
    found = fn()
    return time.perf_counter() - start, found


def compare(label: str, genotypes, x, each: float, *, degree: int, is_equal: bool) -> None:
    """Times stax on some architectures, and prints how far it is off."""
    ours = mlp_lambda_min(genotypes, x)
    for is_jitted in (False, True):
        build = functools.partial(stax_lambda_min, x=x, degree=degree, is_jitted=is_jitted)
        pairs = [timed(functools.partial(build, genotype)) for genotype in genotypes]
        seconds = [pair[0] for pair in pairs]
        theirs = np.array([pair[1] for pair in pairs])
        median = statistics.median(seconds)
        line = (
            f"stax {label}, {'jitted' if is_jitted else 'eager'}: {median:.2f} s an architecture "
            f"({min(seconds):.2f} to {max(seconds):.2f}), {median / each:.0f} times as long"
        )
        if is_equal:
            line += f"; largest relative difference {np.abs(theirs / ours - 1).max():.1e}"
        print(line, flush=True)


def main(options) -> None:
    """Times all and prints."""
    warnings.simplefilter("ignore", UserWarning)  # stax's, of every quadrature and every sum
    x = points(options)
    genotypes = draw(options.architectures, options.depth, seed=0)
    print(
        f"{jax.devices()[0].device_kind}, JAX {versions()['jax']}, float64, depth "
        f"{options.depth}, {options.points} points of {options.features} features"
    )
    first, _ = timed(lambda: mlp_lambda_min(genotypes[:64], x, chunk=64))
    second, _ = timed(lambda: mlp_lambda_min(genotypes[:64], x, chunk=64))
    seconds = [
        timed(lambda: mlp_lambda_min(genotypes, x, chunk=64))[0] for _ in range(options.repeats)
    ]
    each = statistics.median(seconds) / len(genotypes)
    print(
        f"one program, {len(genotypes)} architectures: {statistics.median(seconds):.2f} s "
        f"({min(seconds):.2f} to {max(seconds):.2f}), {1e3 * each:.1f} ms each; compilation "
        f"{first - second:.1f} s before",
        flush=True,
    )
    few = draw(options.stax, options.depth, seed=1)
    with jax.enable_x64(True):
        neural_tangents()
        stax_lambda_min(
            few[0], x, degree=options.degree, is_jitted=False
        )  # what is loaded and compiled once
        compare_all = functools.partial(compare, x=x, each=each, degree=options.degree)
        compare_all("without skips", without_skips(few), is_equal=True)
        compare_all("with skips, odd activations", odd_only(few), is_equal=True)
        compare_all("with skips", few, is_equal=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Times smallest eigenvalues of infinite width.")
    parser.add_argument("--architectures", type=int, default=1000)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--points", type=int, default=64)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--stax", type=int, default=5, help="architectures built by stax")
    parser.add_argument(
        "--degree", type=int, default=25, help="of stax's quadrature, as it advises"
    )
    parser.add_argument("--repeats", type=int, default=3)
    main(parser.parse_args())
