"""The picture of searched activations and skips: what stands where."""

import numpy as np
import pytest

from nasjax.errors import InputError
from nasjax.evaluation import choices_plot, draw_choices
from nasjax.spaces.mlp import ACTIVATION_NAMES

RNG = np.random.default_rng(0)
ACTIVATIONS, SKIPS = RNG.dirichlet(np.ones(5), (3, 4)), RNG.uniform(size=(3, 3))


@pytest.fixture
def figures(monkeypatch):
    """Figures that were drawn."""
    drawn = []

    def write_figure(where, figure, path, formats):
        drawn.append(figure)
        return ()

    monkeypatch.setattr(choices_plot, "write_figure", write_figure)
    return drawn


def _ends(bars):
    """Lower and upper ends of the bars of a container of matplotlib."""
    (lines,) = bars[2]
    return np.array([segment[:, 1] for segment in lines.get_segments()])


def test_points_are_means_and_bars_deviations(figures, tmp_path):
    draw_choices(ACTIVATIONS, SKIPS, tmp_path / "a")
    left, right = figures[0].axes
    assert len(left.containers) == 5 and len(right.containers) == 1
    labels = [text.get_text() for text in left.get_legend().get_texts()]
    plain = [label.lower().split()[0].replace("leakyrelu", "leaky_relu") for label in labels]
    assert plain == list(ACTIVATION_NAMES)
    series = [ACTIVATIONS[:, :, number] for number in range(5)] + [SKIPS]
    containers = [*left.containers, *right.containers]
    for values, bars, first in zip(series, containers, [1] * 5 + [2], strict=True):
        layers, heights = bars[0].get_data()
        np.testing.assert_array_equal(np.round(layers), first + np.arange(values.shape[1]))
        mean = values.sum(0) / 3
        spread = np.sqrt(((values - mean) ** 2).sum(0) / 2)
        np.testing.assert_allclose(heights, mean)
        np.testing.assert_allclose(_ends(bars), np.stack([mean - spread, mean + spread], 1))
    low, high = right.get_ylim()
    assert low + high == pytest.approx(1.0)  # kept skips lie in the upper half
    assert high > _ends(right.containers[0]).max() and low < _ends(right.containers[0]).min()
    assert "3 runs" in figures[0].get_suptitle()


def test_one_run_has_no_bars(figures, tmp_path):
    draw_choices(ACTIVATIONS[:1], SKIPS[:1], tmp_path / "a", title="a title")
    left, right = figures[0].axes
    np.testing.assert_allclose(left.containers[2][0].get_ydata(), ACTIVATIONS[0, :, 2])
    np.testing.assert_allclose(right.containers[0][0].get_ydata(), SKIPS[0])
    assert all(not bars[2] for bars in [*left.containers, *right.containers])
    assert figures[0].get_suptitle() == "a title"


def test_equal_choices_give_equal_pictures(tmp_path):
    files = [draw_choices(ACTIVATIONS, SKIPS, tmp_path / name, title="t") for name in ("a", "b")]
    assert [path.name for path in files[0]] == ["a.svg", "a.png"]
    for one, other in zip(*files, strict=True):
        assert one.read_bytes() == other.read_bytes()
    other = draw_choices(ACTIVATIONS, 1 - SKIPS, tmp_path / "c", title="t", formats=("svg",))
    assert other[0].read_bytes() != files[0][0].read_bytes()


@pytest.mark.parametrize(
    ("activations", "skips", "message"),
    [
        (ACTIVATIONS, SKIPS[:, 1:], r"depth >= 3, got \[3, 4, 5\] and \[3, 2\]"),
        (ACTIVATIONS[:0], SKIPS[:0], r"depth >= 3, got \[0, 4, 5\]"),
        (ACTIVATIONS[0], SKIPS, r"depth >= 3, got \[4, 5\]"),
        (ACTIVATIONS, 2 * SKIPS, r"`skips` must be in \[0, 1\], got .* to 1\."),
        (np.nan * ACTIVATIONS, SKIPS, r"`activations` must be in \[0, 1\], got nan"),
    ],
)
def test_what_cannot_be_drawn(tmp_path, activations, skips, message):
    with pytest.raises(InputError, match=message):
        draw_choices(activations, skips, tmp_path / "a")
