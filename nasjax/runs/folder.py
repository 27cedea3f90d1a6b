"""A folder that holds one run and survives its interruption at any moment.

Files are replaced whole or not at all, except the history and other records, which grow by a line a
step. A line is on disk before the state that includes its step, so that after a crash the history
is cut to the state and nothing but the step under way is lost.
"""

import contextlib
import dataclasses
import json
import math
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import jax
import numpy as np

from nasjax.errors import InputError
from nasjax.types import PyTree

_SETTINGS, _STATE, _HISTORY = "settings.json", "state.npz", "history.jsonl"
_LOCK = ".lock"


class RunFolder:
    """An open run folder; made by ``open_run_folder``."""

    def __init__(self, path: Path):
        """Takes a folder that exists and is locked."""
        self.path = path

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Keeps the settings of a new run, or compares them with those of the run that is here.

        Args:
          settings: JSON-able; the same settings must mean the same result.

        Raises:
          InputError: if the folder holds a run with other settings (it says which), files that are
            not a run's, or settings that cannot be read.
        """
        file = self.path / _SETTINGS
        if not file.exists():
            others = sorted(p.name for p in self.path.iterdir() if not p.name.startswith("."))
            if others:
                raise InputError(
                    f"--out {self.path}: must be an empty folder or one that holds a nasjax run, "
                    f"but it holds {', '.join(others[:3])}. Give another folder."
                )
            self.write_json(_SETTINGS, settings)
            return
        try:
            old = json.loads(file.read_text())
        except ValueError:
            old = None
        if not isinstance(old, dict):
            raise InputError(
                f"--out {self.path}: {_SETTINGS} is damaged. Remove the folder or give another."
            )
        new = json.loads(_to_json(settings))
        differences = _differences(old, new)
        if differences:
            raise InputError(
                f"--out {self.path}: holds a run with other settings ({'; '.join(differences)}). "
                "Give another folder, or the same settings to resume."
            )

    def load_state(self, template: PyTree) -> PyTree:
        """The last state saved, or ``template`` where there is none.

        Args:
          template: a state of the run, which gives structure, shapes and types.

        Raises:
          InputError: if the file is damaged or of another run.
        """
        file = self.path / _STATE
        if not file.exists():
            return template
        names, leaves, structure = _named_leaves(template)
        try:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
                arrays = [archive[name] for name in names]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(
                f"--out {self.path}: {_STATE} is damaged ({type(error).__name__}). "
                "Remove the folder or give another."
            ) from error
        for name, array, leaf in zip(names, arrays, leaves, strict=True):
            if array.shape != leaf.shape or array.dtype != leaf.dtype:
                raise InputError(
                    f"--out {self.path}: {_STATE} must hold {name} of shape {leaf.shape} and type "
                    f"{leaf.dtype}, got {array.shape} and {array.dtype}. Remove the folder."
                )
        return jax.tree.unflatten(structure, arrays)

    def save_state(self, state: PyTree) -> None:
        """Replaces the state on disk, atomically."""
        names, leaves, _ = _named_leaves(state)
        self.write_arrays(_STATE, dict(zip(names, leaves, strict=True)))

    def cut_history(self, num_lines: int) -> None:
        """Drops the lines after the first ``num_lines``, which a crash left without their state.

        Raises:
          InputError: if there are fewer lines.
        """
        file = self.path / _HISTORY
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        if len(lines) < num_lines:
            raise InputError(
                f"--out {self.path}: {_HISTORY} must have at least {num_lines} lines, as "
                f"{_STATE} says, got {len(lines)}. Remove the folder or give another."
            )
        if len(lines) > num_lines:
            self._write(_HISTORY, b"".join(lines[:num_lines]))

    def read_history(self) -> list[dict[str, Any]]:
        """The lines of the history, for runs whose state is just these: see ``read_lines``."""
        return self.read_lines(_HISTORY)

    def append_history(self, record: Mapping[str, Any]) -> None:
        """Adds a line, on disk before this returns."""
        self.append_line(_HISTORY, record)

    def read_lines(self, name: str, *, is_own: bool = True) -> list[dict[str, Any]]:
        """The records of a file that grows by a line a record; none where there is no file.

        Args:
          name: of the file.
          is_own: a last line that a crash left unfinished is dropped from the file. False where
            another process may be writing that line: it is not read.

        Returns:
          The records.

        Raises:
          InputError: if another line is damaged.
        """
        file = self.path / name
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
            if is_own:
                self._write(name, b"".join(lines))
        records = []
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise self._damaged(name, number, str(error)) from error
            if not isinstance(record, dict):
                raise self._damaged(name, number, "it is no JSON object")
            records.append(record)
        return records

    def _damaged(self, name: str, number: int, reason: str) -> InputError:
        return InputError(
            f"--out {self.path}: line {number} of {name} is damaged ({reason}). Remove that line, "
            "or give another folder."
        )

    def append_line(self, name: str, record: Mapping[str, Any]) -> None:
        """Adds a line to a file of records, on disk before this returns."""
        with (self.path / name).open("ab") as file:
            file.write(_to_json(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def write_json(self, name: str, record: Mapping[str, Any]) -> None:
        """Writes a JSON file, atomically. Numbers that are not finite become null."""
        self._write(name, _to_json(record, indent=2).encode() + b"\n")

    def read_json(self, name: str) -> dict[str, Any]:
        """What ``write_json`` wrote; nothing where there is no such file, or another."""
        return read_json_object(self.path / name)

    def write_text(self, name: str, text: str) -> None:
        """Writes a text file, atomically."""
        self._write(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        """Writes a file, atomically."""
        self._write(name, content)

    def write_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes an ``.npz`` file, atomically."""
        with self._replacing(name) as file:
            np.savez(file, **{key: np.asarray(array) for key, array in arrays.items()})

    def _write(self, name: str, content: bytes) -> None:
        with self._replacing(name) as file:
            file.write(content)

    @contextmanager
    def _replacing(self, name: str) -> Iterator[Any]:
        temporary = self.path / f".{name}.part"
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path / name)
        finally:
            temporary.unlink(missing_ok=True)


class SharedFolder(RunFolder):
    """A run folder that several processes write into; made by ``open_shared_folder``."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps the other processes waiting, for what more than one may write.

        Raises:
          InputError: if another process has not let go of the folder after a minute.
        """
        with _locked(self.path, _LOCK, timeout_s=60.0):
            yield


def read_json_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds; an empty one where there is none."""
    try:
        held = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return held if isinstance(held, dict) else {}


@contextmanager
def open_run_folder(path: Path) -> Iterator[RunFolder]:
    """Makes the folder where it does not exist, and keeps other processes out of it.

    Args:
      path: the folder.

    Yields:
      The folder. The lock goes with the process, however that ends.

    Raises:
      InputError: if the path is no folder, cannot be written, or another process works in it.
    """
    _make(path)
    with _locked(path, _LOCK):
        yield RunFolder(path)


@contextmanager
def open_shared_folder(
    path: Path, *, process_id: int = 0, num_processes: int = 1
) -> Iterator[SharedFolder]:
    """Makes the folder where it does not exist, for one of several processes.

    Args:
      path: the folder.
      process_id: from 0; no two processes with one number work in the folder.
      num_processes: that share the work; all in the folder agree on it.

    Yields:
      The folder. The lock goes with the process, however that ends.

    Raises:
      InputError: if the path is no folder, cannot be written, or a process works in it that has the
        same number or shares the work among another number of processes.
    """
    _make(path)
    with contextlib.ExitStack() as stack:
        with _locked(path, _LOCK, timeout_s=60.0):
            own_end = f"-of-{num_processes}"
            for other in sorted(path.glob(f"{_LOCK}-*-of-*")):
                if not other.name.endswith(own_end):
                    with _locked(path, other.name):
                        pass
            stack.enter_context(_locked(path, f"{_LOCK}-{process_id}{own_end}"))
        yield SharedFolder(path)


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"--out {path}: must be a folder, got a file. Give another.") from None
    except OSError as error:
        raise _unwritable(path, error) from error


@contextmanager
def _locked(path: Path, name: str, *, timeout_s: float = 0.0) -> Iterator[None]:
    lock = filelock.FileLock(path / name)
    try:
        lock.acquire(timeout=timeout_s)
    except filelock.Timeout:
        raise InputError(
            f"--out {path}: another process works in this folder. Wait for it, or give another."
        ) from None
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield
    finally:
        lock.release()


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"--out {path}: cannot be written ({error.strerror}). Give another folder.")


def run_name(prefix: str, settings: Any, defaults: Any, *, left_out: Sequence[str] = ()) -> str:
    """A name for a run's folder: space, data, seed, and what is not a default.

    Args:
      prefix: what is run.
      settings: a dataclass with ``space``, ``data`` and ``seed``.
      defaults: the same class with default values.
      left_out: names of settings that the prefix tells.

    Returns:
      A file name, the same for equal settings and another for others.
    """
    changed = changed_settings(settings, defaults, left_out=("space", "data", "seed", *left_out))
    data = re.sub(r"[:/#\\]", "-", settings.data)
    return "-".join([prefix, settings.space, data, *changed, f"seed{settings.seed}"])


def changed_settings(settings: Any, defaults: Any, *, left_out: Sequence[str]) -> list[str]:
    """``NAME=VALUE`` of the settings that are not the default, for the name of a folder.

    Args:
      settings: a dataclass.
      defaults: the same class with default values.
      left_out: names of settings that are not told.
    """
    return [
        f"{field.name}={re.sub('[/#]', '-', _short(value))}"
        for field in dataclasses.fields(settings)
        if field.name not in left_out
        and (value := getattr(settings, field.name)) not in (None, getattr(defaults, field.name))
    ]


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_short, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs, by name: plain settings, or where these are equal what nested ones hold."""
    names = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    pairs = {name: (old.get(name), new.get(name)) for name in names}
    plain = [
        f"{name}: there {_excerpt(there)}, here {_excerpt(here)}"
        for name, (there, here) in pairs.items()
        if not (isinstance(there, Mapping) and isinstance(here, Mapping))
    ]
    if plain:
        return plain
    return [
        f"{name}.{line}"
        for name, (there, here) in pairs.items()
        for line in _differences(there, here)
    ]


def _excerpt(value: Any, length: int = 60) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= length else text[: length - 3] + "..."


def _named_leaves(tree: PyTree):
    paths, structure = jax.tree.flatten_with_path(tree)
    names = [jax.tree_util.keystr(path) for path, _ in paths]
    return names, [leaf for _, leaf in paths], structure


def _to_json(record: Mapping[str, Any], *, indent: int | None = None) -> str:
    return json.dumps(_plain(record), indent=indent, allow_nan=False)


def _plain(value):
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
