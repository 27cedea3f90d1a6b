"""What a search is: a tuple of pure functions over an explicit state."""

from typing import Any, NamedTuple, Protocol

from nasjax.types import Key


class InitFn(Protocol):
    """Makes the first state of a search."""

    def __call__(self, key: Key) -> Any:
        """The state before the first step."""
        ...


class StepFn(Protocol):
    """Advances a search; may be jitted."""

    def __call__(self, key: Key, state: Any, *data: Any) -> tuple[Any, Any]:
        """The next state, and a record of the step.

        Args:
          key: of this step alone; a loop passes ``fold_in(key, step)``.
          state: the state before the step.
          *data: passed on to the objective (parameters, images ...): a search does not look at it.

        Returns:
          ``(state, info)``.
        """
        ...


class SearchAlgorithm(NamedTuple):
    """A search.

    Attributes:
      init: ``init(key) -> state``.
      step: ``step(key, state, *data) -> (state, info)``.
    """

    init: InitFn
    step: StepFn
