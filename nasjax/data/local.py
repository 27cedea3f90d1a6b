"""Data sets that are files of this machine: npz archives, Fashion-MNIST, scikit-learn's digits."""

import gzip
import math
import os
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from nasjax.data.base import RawData, check_bytes, check_dtypes, check_examples
from nasjax.errors import InputError, first_line

FASHION_MNIST_VARIABLE = "NASJAX_FASHION_MNIST"
"""Environment variable that names the folder of the Fashion-MNIST files."""

FASHION_MNIST_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Where the Debian package ``dataset-fashion-mnist`` puts them."""

_READ_ERRORS = (
    EOFError,
    NotImplementedError,  # a compression that zipfile does not know
    OSError,
    RuntimeError,  # an encrypted archive
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)

_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def open_file(where: str, path: Path) -> BinaryIO:
    """Opens a regular file for reading.

    Args:
      where: the function and data set, for the message.
      path: the file.

    Returns:
      The open file; the caller closes it.

    Raises:
      InputError: if there is none, it is a folder or a device, or it must not be read.
    """
    try:
        if path.is_dir():
            problem = "a folder"
        elif not path.exists():
            problem = "no such file"
        elif not path.is_file():
            problem = "something that is not a regular file"
        else:
            return open(path, "rb")
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        problem = "an error when opening it: " + (getattr(error, "strerror", None) or str(error))
    raise InputError(
        f"{where}: {str(path)!r} must be a file that can be read, got {problem}. "
        "Check the path and its permissions."
    )


class _Member(NamedTuple):
    """An array of an npz archive, of which only the header was read."""

    archive: zipfile.ZipFile
    file_name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def read(self) -> np.ndarray:
        with self.archive.open(self.file_name) as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)


def _read_header(where: str, archive: zipfile.ZipFile, file_name: str) -> _Member:
    """Shape and type of an array, compared with the bytes there are for it."""
    with archive.open(file_name) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADER_READERS:
            raise ValueError(f"array format {version}, where (1, 0) or (2, 0) is known")
        try:
            shape, _, dtype = _HEADER_READERS[version](stream)
        except (SyntaxError, TypeError, tokenize.TokenError) as error:
            # NumPy lets these through for a header that is no dict of the right keys.
            raise ValueError(f"array header that is none: {first_line(error)}") from error
        header_bytes = stream.tell()
    check_bytes(where, f"the array {file_name!r}", shape, dtype.itemsize)
    num_bytes = math.prod(shape) * dtype.itemsize
    stored_bytes = archive.getinfo(file_name).file_size - header_bytes
    if not dtype.hasobject and (min(shape, default=0) < 0 or num_bytes != stored_bytes):
        raise ValueError(
            f"shape {shape} of {dtype}, {num_bytes} bytes, over {stored_bytes} bytes of data"
        )
    return _Member(archive, file_name, shape, dtype)


def parse_npz_target(where: str, target: str) -> tuple[Path, str, str]:
    """Splits ``PATH`` or ``PATH#images=KEY,labels=KEY``.

    Args:
      where: the function and data set, for the message.
      target: what follows ``npz:``.

    Returns:
      The path (a leading ``~`` expanded), the key of the images and the key of the labels, ``x``
      and ``y`` unless chosen.

    Raises:
      InputError: if there is no path, or the choice of keys is not understood.

    Example:
      >>> parse_npz_target("load_data", "a.npz#labels=t")
      (PosixPath('a.npz'), 'x', 't')
    """
    path, mark, choice = target.rpartition("#")
    keys = {"images": "x", "labels": "y"}
    if not mark or "=" not in choice:  # a path may itself contain '#'
        path, choice = target, ""
    for part in filter(None, choice.split(",")):
        name, _, key = part.partition("=")
        if name not in keys or not key:
            raise InputError(
                f"{where}: what follows '#' must be images=KEY,labels=KEY, got {choice!r}. "
                "Name the arrays of the archive that way."
            )
        keys[name] = key
    if not path:
        raise InputError(
            f"{where}: a path must follow 'npz:', got none. Write npz:PATH, or "
            "npz:PATH#images=KEY,labels=KEY where the arrays are not called x and y."
        )
    return Path(path).expanduser() if path.startswith("~/") else Path(path), *keys.values()


def npz_arrays(where: str, path: Path) -> list[str]:
    """Names of the arrays in a NumPy archive, sorted; none where it is no archive.

    Raises:
      InputError: if there is no such file.
    """
    with open_file(where, path) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                return sorted(name.removesuffix(".npy") for name in archive.namelist())
        except _READ_ERRORS:
            return []


def read_npz(where: str, target: str) -> RawData:
    """Images and labels from a NumPy archive; no pickled object in it is ever executed.

    Headers are read first, so that a wrong type or an array beyond 4 GiB is refused unread.

    Args:
      where: the function and data set, for the messages.
      target: ``PATH`` or ``PATH#images=KEY,labels=KEY``.

    Returns:
      The raw data; the classes are ``0`` to the greatest label.

    Raises:
      InputError: for anything that is not such an archive.
    """
    path, images_key, labels_key = parse_npz_target(where, target)
    with open_file(where, path) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                names = {name.removesuffix(".npy"): name for name in archive.namelist()}
                missing = [key for key in (images_key, labels_key) if key not in names]
                if missing:
                    held = ", ".join(repr(name) for name in sorted(names)[:10]) or "nothing"
                    raise InputError(
                        f"{where}: {str(path)!r} must hold the arrays {images_key!r} and "
                        f"{labels_key!r}, got {held}. Store them under these names, or write "
                        "npz:PATH#images=KEY,labels=KEY."
                    )
                images = _read_header(where, archive, names[images_key])
                labels = _read_header(where, archive, names[labels_key])
                check_dtypes(where, images.dtype, labels.dtype)
                images_array, labels_array = images.read(), labels.read()
        except InputError:
            raise
        except _READ_ERRORS as error:
            raise InputError(
                f"{where}: {str(path)!r} must be a NumPy archive as `numpy.savez` writes it, got "
                f"{type(error).__name__}: {first_line(error)}. Write it again with "
                "`numpy.savez(path, x=images, y=labels)`."
            ) from error
    images_array, labels_array = check_examples(where, images_array, labels_array)
    return RawData(
        images_array,
        labels_array,
        int(labels_array.max()) + 1,
        f"NumPy archive {path}, arrays {images_key} and {labels_key}",
    )


def parse_idx(data: bytes, *, num_dimensions: int, where: str = "parse_idx") -> np.ndarray:
    """The array of unsigned bytes in an IDX file.

    The file is two zero bytes, the type of the elements (0x08, unsigned byte), the number of
    dimensions, every length as a big-endian 32-bit integer, and the elements, row-major.

    Args:
      data: the file's bytes, uncompressed.
      num_dimensions: how many dimensions there must be.
      where: who asks, for the messages.

    Returns:
      uint8, read-only, of the shape the file states.

    Raises:
      InputError: if the magic number or the number of bytes is wrong.

    References:
      LeCun, Cortes, Burges, `The MNIST database <http://yann.lecun.com/exdb/mnist/>`_, section
      "File formats".

    Example:
      >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), num_dimensions=1)
      array([7, 9], dtype=uint8)
    """
    magic = bytes([0, 0, 8, num_dimensions])
    if data[:4] != magic:
        raise InputError(
            f"{where}: an IDX file of {num_dimensions} dimensions of unsigned bytes must begin "
            f"with {magic.hex()}, got {data[:4].hex() or 'nothing'}. Download the file again."
        )
    start = 4 + 4 * num_dimensions
    if len(data) < start:
        raise InputError(
            f"{where}: the header of the IDX file must have {start} bytes, got {len(data)}. "
            "Download the file again."
        )
    shape = struct.unpack(f">{num_dimensions}I", data[4:start])
    if math.prod(shape) != len(data) - start:
        raise InputError(
            f"{where}: the IDX file must hold {math.prod(shape)} bytes for its shape {shape}, got "
            f"{len(data) - start}. Download the file again."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _read_idx(where: str, folder: Path, name: str, num_dimensions: int) -> np.ndarray:
    packed = folder / f"{name}.gz"
    path = packed if packed.exists() or not (folder / name).exists() else folder / name
    with open_file(where, path) as stream:
        try:
            data = gzip.decompress(stream.read()) if path == packed else stream.read()
        except (EOFError, OSError, zlib.error) as error:
            raise InputError(
                f"{where}: {str(path)!r} must be a gzip file, got {first_line(error)}. "
                "Download the file again."
            ) from error
    return parse_idx(data, num_dimensions=num_dimensions, where=f"{where}: {str(path)!r}")


def find_fashion_mnist() -> Path | None:
    """The folder of the Fashion-MNIST files.

    Returns:
      The folder that ``NASJAX_FASHION_MNIST`` names, whether it exists or not; else the folder
      of the Debian package ``dataset-fashion-mnist`` if it is installed; else None.
    """
    named = os.environ.get(FASHION_MNIST_VARIABLE)
    if named:
        return Path(named)
    return FASHION_MNIST_FOLDER if FASHION_MNIST_FOLDER.is_dir() else None


def read_fashion_mnist(where: str, folder: Path, *, split: str = "train") -> RawData:
    """A part of Fashion-MNIST, from IDX files, gzipped or not.

    Args:
      where: the function and data set, for the messages.
      folder: holds ``train-images-idx3-ubyte`` and ``train-labels-idx1-ubyte``, or both with
        ``.gz``; for tests ``t10k-`` in the place of ``train-``.
      split: ``"train"`` or ``"test"``.

    Returns:
      60,000 or 10,000 images of 28x28 pixels in 10 classes, if the files are the original ones.

    Raises:
      InputError: if a file is missing, unreadable or no IDX file.
    """
    prefix = {"train": "train", "test": "t10k"}[split]
    images = _read_idx(where, folder, f"{prefix}-images-idx3-ubyte", 3)
    labels = _read_idx(where, folder, f"{prefix}-labels-idx1-ubyte", 1)
    images, labels = check_examples(where, images, labels)
    num_classes = max(10, int(labels.max()) + 1)
    part = {"train": "training", "test": "test"}[split]
    return RawData(images, labels, num_classes, f"Fashion-MNIST {part} part, IDX, {folder}")


def read_digits(where: str) -> RawData:
    """scikit-learn's handwritten digits: 1,797 grey images of 8x8 pixels, values 0 to 16.

    Args:
      where: the function and data set, for the message.

    Returns:
      The raw data, 10 classes.

    Raises:
      InputError: if scikit-learn is not installed.
    """
    try:
        # Here, not above: it is slow to import and most runs do without.
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InputError(
            f"{where}: scikit-learn must be importable, got {first_line(error)}. "
            "Run `pip install scikit-learn`."
        ) from error
    digits = load_digits()
    # The values are whole numbers from 0 to 16, stored as float64.
    images, labels = check_examples(where, digits.images.astype(np.uint8), digits.target)
    return RawData(images, labels, 10, "scikit-learn load_digits")
