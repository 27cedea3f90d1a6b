"""Errors that a caller can mend, and the sentences they are told in.

Every message reads *who: what must be, what was got. What to do.* The command line prints an
``InputError`` as one line and exits with code 2; any other exception is a defect of nasjax.
"""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A value from outside (argument, file, string) cannot be used; the message says why."""


def unknown_name(where: str, kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not in a registry, with the nearest known name.

    Args:
      where: the function or option that was given the name.
      kind: what is being named, for example ``"space"``.
      name: the unknown name.
      known: the names that exist.

    Returns:
      The error, to be raised by the caller.

    Example:
      >>> unknown_name("space", "kind", "dart", ["darts", "nasbench201"])
      InputError("space: unknown kind 'dart'. Did you mean 'darts'? Known: darts, nasbench201.")
    """
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return InputError(f"{where}: unknown {kind} {name!r}.{hint} Known: {', '.join(names)}.")


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, short enough to stand inside another.

    Args:
      error: the exception.

    Returns:
      At most 200 characters without a final full stop; the name of the exception's type if it
      says nothing.
    """
    lines = str(error).strip().splitlines()
    return lines[0][:200].rstrip(".") if lines else type(error).__name__
