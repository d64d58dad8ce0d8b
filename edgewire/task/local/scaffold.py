"""SCAFFOLD: control variates correct the drift of the nodes' gradients."""

from typing import ClassVar

import torch

from edgewire.task.local.base import LocalAlgorithm, LocalRun

CONTROL, CORRECTION, SUM = "control", "correction", "sum"


class Scaffold(LocalAlgorithm):
    """Corrects each gradient by c - c_i (Karimireddy et al. 2020, Algorithm 1).

    c_i, the node's control variate, is the mean of the node's gradients in its last training. For
    plain SGD this is the paper's option II, (start - x) / (K lr) + c_i - c, line 12. It is defined
    for any optimiser: with momentum, option II would be too large by 1 / (1 - momentum). The server
    stores c. A node reports c + share (c_i' - c_i), where c_i' is its new control variate. From
    these reports the server computes line 17, c + |S| / N mean(c_i' - c_i), with the set S of the
    nodes whose replies it uses (`NodeMeans`). If a reply is lost or refused, the node goes back to
    c_i. So c is the mean of all c_i, weighted as the strategy weights nodes. A node that has lost
    its state takes c as its c_i.
    """

    vectors: ClassVar[tuple[str, ...]] = (CONTROL,)
    over_all_nodes: ClassVar[bool] = True

    def begin(self, run: LocalRun) -> None:
        """Compute the correction c - c_i."""
        correction = run.vectors[CONTROL].clone()
        if CONTROL in run.state:
            correction -= run.state[CONTROL]
        elif run.lost:
            correction.zero_()
        run.temporary[CORRECTION] = correction
        run.temporary[SUM] = torch.zeros_like(correction)

    def correct(self, run: LocalRun) -> None:
        """Add the correction to the gradient (Algorithm 1, line 10)."""
        run.temporary[SUM] += run.gradient
        run.gradient.add_(run.temporary[CORRECTION])

    def end(self, run: LocalRun) -> None:
        """Compute the new control variate, and the node's report."""
        server, new = run.vectors[CONTROL], run.temporary[SUM] / run.steps
        own = server - run.temporary[CORRECTION]
        run.state[CONTROL] = new
        run.vectors[CONTROL] = server + run.share * (new - own)
