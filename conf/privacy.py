"""The options of differential privacy."""

from __future__ import annotations

from dataclasses import dataclass

from edgewire.conf.option_group import bounded

NONE, SAMPLE, NODE = "none", "sample", "node"


@dataclass
class Privacy:
    """Options of differential privacy (docs/privacy.md).

    `unit`: whose presence is hidden: none; sample, one training sample of one node; or node, one
    node with all its samples; `epsilon`: the budget. The run stops before it would exceed the
    budget. null: no budget, which needs `noise`; `delta`: the probability with which the bound
    `epsilon` may fail. It should be well below 1 / number of samples, or of nodes; `clip`: the
    largest L2 norm of a sample's gradient, or of a node's update. What is larger is scaled down;
    `noise`: the noise multiplier, the standard deviation of the noise divided by `clip`; null: the
    command computes the least noise that keeps the planned rounds within `epsilon`; `rate`: the
    probability with which each sample of a node is in a mini-batch, in place of `batch_size`. All
    nodes have the same. `local_epochs` epochs are `local_epochs` / `rate` mini-batches. With node,
    it is `strategy.fraction_train`, the probability with which each node is in a round; `anyway`:
    true accepts node with fewer than 1,000 nodes, where the noise mostly ruins the model.

    Raises `ValueError` for values out of bounds, and if both `epsilon` and `noise` are None.
    """

    unit: str = bounded(NONE, one_of=(NONE, SAMPLE, NODE))
    epsilon: float | None = bounded(None, above=0)
    delta: float = bounded(1e-5, above=0, below=1)
    clip: float = bounded(1.0, above=0)
    noise: float | None = bounded(None, above=0)
    rate: float = bounded(0.1, at_least=1e-6, at_most=1)
    anyway: bool = False

    @property
    def on(self) -> bool:
        """Whether the run has differential privacy."""
        return self.unit != NONE

    def __post_init__(self) -> None:
        if self.on and self.epsilon is None and self.noise is None:
            raise ValueError(
                "privacy needs privacy.epsilon=8, say, the budget, or privacy.noise=1, the noise "
                "without a budget"
            )
