"""What all pictures share: colours, fonts, and files that are complete or absent."""

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nasjax.errors import InputError

FORMATS = ("pdf", "png", "svg")

# The colours of Okabe and Ito, told apart under the common colour blindnesses.
BLUE, SKY, VERMILION, ORANGE = "#0072B2", "#56B4E9", "#D55E00", "#E69F00"
PURPLE, GREEN, GREY = "#CC79A7", "#009E73", "#595959"
CURVES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)
"""Of curves in one picture, in this order."""

_STYLE = {"svg.hashsalt": "nasjax", "svg.fonttype": "path", "font.family": "DejaVu Sans"}
_DOTS_PER_INCH = 200


@contextmanager
def figure_style() -> Iterator[None]:
    """Matplotlib's own settings with ours, whatever the user's are; loads matplotlib."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def open_axis(axis) -> None:
    """Leaves the frame open above and to the right, and draws a faint grid."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color=GREY, alpha=0.2, linewidth=0.6)


def write_figure(where: str, figure, path: Path, formats: Sequence[str]) -> tuple[Path, ...]:
    """Writes a figure; equal figures give equal files.

    Args:
      where: the function that was called, for messages.
      figure: of matplotlib.
      path: where to; each format adds its ending.
      formats: some of ``FORMATS``.

    Returns:
      The files, in the order of ``formats``.

    Raises:
      InputError: if the place cannot be written.
    """
    pictures = [_rendered(figure, name) for name in formats]
    files = tuple(path.parent / f"{path.name}.{name}" for name in formats)
    for file, picture in zip(files, pictures, strict=True):
        _write(where, file, picture)
    return files


def _rendered(figure, name: str) -> bytes:
    buffer = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}[name]
    figure.savefig(buffer, format=name, dpi=_DOTS_PER_INCH, metadata=metadata)
    return buffer.getvalue()


def _write(where: str, file: Path, content: bytes) -> None:
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(
            f"{where}: `path` must be writable, got {str(file)!r} ({error.strerror})."
        ) from error
