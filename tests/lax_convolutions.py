"""XLA's own convolutions and derivatives, the reference for nasjax's in several test files."""

import pytest
from jax import lax

from nasjax.networks import layers


def lax_conv2d(x, kernel, *, dilation=1, groups=1):
    """What ``conv2d`` computes."""
    pad = dilation * (kernel.shape[0] // 2)
    return lax.conv_general_dilated(
        x,
        kernel,
        (1, 1),
        ((pad, pad), (pad, pad)),
        rhs_dilation=(dilation, dilation),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def lax_depthwise_conv2d(x, kernel, *, dilation=1):
    """What ``depthwise_conv2d`` computes."""
    return lax_conv2d(x, kernel[:, :, None], dilation=dilation, groups=x.shape[-1])


def on_lax_convolutions(fn):
    """Traces ``fn`` with XLA's convolutions in place of ours."""

    def traced(*args):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layers, "conv2d", lax_conv2d)
            patch.setattr(layers, "depthwise_conv2d", lax_depthwise_conv2d)
            return fn(*args)

    return traced
