"""An optimiser whose state a node stores from one message to the next."""

from typing import ClassVar

from torch import Tensor

from edgewire.task.local.base import LocalAlgorithm, LocalRun


class KeptOptimizer(LocalAlgorithm):
    """Keeps the optimiser's state, such as Adam's moments, from one message to the next.

    The plain algorithm begins each message with a new optimiser. The state is kept if a reply is
    lost: the server has no counterpart of it, and a second copy would double a node's memory.
    Raises `ValueError` for an optimiser whose state holds other values than tensors.
    """

    pending: ClassVar[bool] = False

    def begin(self, run: LocalRun) -> None:
        """Give the optimiser the state after this node's last message."""
        if run.state:
            run.optimizer.state[run.flat.parameters] = dict(run.state)

    def end(self, run: LocalRun) -> None:
        """Store the optimiser's state."""
        for name, value in run.optimizer.state[run.flat.parameters].items():
            if not isinstance(value, Tensor):
                kind = type(run.optimizer).__name__
                raise ValueError(f"the state {name} of {kind} is no tensor and cannot be kept")
            run.state[name] = value
