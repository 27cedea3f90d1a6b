"""What a search that trains a one-shot network is told."""

import dataclasses
import math

from nasjax.data.load import LABELS
from nasjax.errors import InputError, unknown_name
from nasjax.networks import MLP_INITIALIZATIONS
from nasjax.runs.folder import run_name
from nasjax.runs.options import check_seed
from nasjax.search import DARTS_ORDERS, DartsRates

DARTS_ALGORITHMS = {
    "darts": "weights and relaxed architecture descend in turn (Liu et al., 2019)",
    "random": "random search with weight sharing (Li and Talwalkar, 2020)",
}


@dataclasses.dataclass(frozen=True)
class DartsSettings:
    """Everything that the result of a run depends on.

    The networks start as Eigen-NAS's algorithm 1 has it, ``"theory"``. The start decides what is
    found: on 25,600 examples of Fashion-MNIST (7 epochs, depth 10, width 1024) every skip was kept,
    and the mixture came to 85 % of held-out examples. ``"he"`` trains sooner (81 % after 300 steps
    where ``"theory"``, whose signal must grow first, has 59 %), and of all 60,000 examples (6
    epochs, 3 seeds) it kept no skip. With ``"ntk"`` (56 %) a learning rate moves a hidden layer as
    ``2 / width`` of it does with ``"he"``, too little for DARTS's rates.

    Attributes:
      space: ``"mlp"``.
      algorithm: a key of ``DARTS_ALGORITHMS``.
      order: of the architecture's gradient, a key of ``search.DARTS_ORDERS``; 1 with ``"random"``.
      data: what ``data.load_data`` takes, whose examples to train with are used.
      labels: ``"true"`` or ``"random"``.
      num_examples: the first so many in stored order; None takes all.
      image_size: height and width in pixels.
      channels: of the images; 1 makes colours grey.
      held_out: the part of the examples that the architecture descends on, or candidates are
        compared on; the weights see the others.
      depth: layers of weights, at least 3.
      width: of the hidden layers.
      epochs: passes over the weights' part; the last batch that is not whole is left out.
      batch_size: of a step, of either part.
      seed: of everything random.
      initialization: a key of ``networks.MLP_INITIALIZATIONS``.
      learning_rate: of the weights, the first.
      architecture_learning_rate: of the architecture.
      architecture_weight_decay: of the architecture; it draws every ``alpha`` towards 0.
      num_candidates: with ``"random"``: architectures that are compared at the end.
      candidate_examples: with ``"random"``: held-out examples they are compared on, at most.

    Raises:
      InputError: if a value is unknown or out of its range.
    """

    space: str = "mlp"
    algorithm: str = "darts"
    order: int = 1
    data: str = "fashion_mnist"
    labels: str = "true"
    num_examples: int | None = None
    image_size: int = 28
    channels: int = 1
    held_out: float = 0.5
    depth: int = 10
    width: int = 1024
    epochs: int = 50
    batch_size: int = 64
    seed: int = 0
    initialization: str = "theory"
    learning_rate: float = DartsRates.learning_rate
    architecture_learning_rate: float = DartsRates.architecture_learning_rate
    architecture_weight_decay: float = DartsRates.architecture_weight_decay
    num_candidates: int = 100
    candidate_examples: int = 1024

    def __post_init__(self):
        """Checks the values."""
        if self.space != "mlp":
            raise InputError(
                f"--space: must be mlp, got {self.space}. Other spaces have `nasjax search nasi`."
            )
        if self.algorithm not in DARTS_ALGORITHMS:
            raise unknown_name("--algorithm", "algorithm", self.algorithm, DARTS_ALGORITHMS)
        if self.order not in DARTS_ORDERS:
            raise InputError(f"--order: must be 1 or 2, got {self.order}.")
        if self.algorithm == "random" and self.order != 1:
            raise InputError(
                f"--order: is of --algorithm darts, got {self.order} with random. Leave it out."
            )
        if self.labels not in LABELS:
            raise unknown_name("--labels", "kind of labels", self.labels, LABELS)
        least = {"depth": 3, "num_examples": 2}
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < least.get(name, 1):
                option = "--" + name.replace("_", "-")
                raise InputError(f"{option}: must be at least {least.get(name, 1)}, got {value}.")
        check_seed(self.seed)
        if not (math.isfinite(self.held_out) and 0 < self.held_out < 1):
            raise InputError(f"--held-out: must be above 0 and below 1, got {self.held_out}.")
        if self.initialization not in MLP_INITIALIZATIONS:
            raise unknown_name(
                "--initialization", "initialisation", self.initialization, MLP_INITIALIZATIONS
            )
        self.rates()

    def rates(self) -> DartsRates:
        """How weights and architecture descend."""
        final = min(DartsRates.final_learning_rate, self.learning_rate)
        return DartsRates(
            learning_rate=self.learning_rate,
            final_learning_rate=final,
            architecture_learning_rate=self.architecture_learning_rate,
            architecture_weight_decay=self.architecture_weight_decay,
        )

    def run_name(self) -> str:
        """A name for the run's folder: space, data, seed, and what is not the default."""
        return run_name("darts", self, DartsSettings())

    def title(self) -> str:
        """Of pictures, without the seed."""
        size = f"depth {self.depth}, width {self.width}"
        return f"{self.algorithm}, {self.data}, {size}, start {self.initialization}"


_COUNTS = (
    "depth",
    "width",
    "epochs",
    "batch_size",
    "image_size",
    "channels",
    "num_examples",
    "num_candidates",
    "candidate_examples",
)
