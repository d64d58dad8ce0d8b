"""Rounds of `SparseAveraging` whose sum of updates has noise that hides each single node.

McMahan et al. 2018, "Learning differentially private recurrent language models", Algorithm 1, with
the estimator of a fixed denominator (section 2.2) and flat clipping.
"""

import math
from collections.abc import Mapping

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from edgewire.compression.base import Indices, Vector
from edgewire.conf.privacy import Privacy
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.synchronous import Rounds, SparseAveraging
from edgewire.strategy.update_mean import UpdateMean
from edgewire.task.local.secret_draws import normal, uniform

# A sum of a million updates in float64 is rounded by less than this share of the clipping norm.
ROUNDED = 1e-6


class NoisyMean(UpdateMean):
    """The sum of clipped updates and noise, divided by the expected number of updates.

    Without one of the updates, the sum changes by an L2 norm of at most C, `clip`. The noise of the
    sum has the standard deviation z C, where z is `noise`. All n entries get noise, also those that
    no node has sent: the set of the others would tell what a node sent. `expected`: the divisor. It
    depends on no node, unlike the number of updates. `total`: the sum so far, float64 (n,).
    """

    def __init__(self, size: int, clip: float, noise: float, expected: float) -> None:
        self._clip, self._noise, self.expected = clip, noise, expected
        self.begin(size)
        self.total = np.zeros(size)

    def add(self, indices: Indices | None, values: Vector, weight: float = 1.0) -> None:
        """Add a node's update, clipped; the weights of all updates are equal, whatever is given."""
        exact = values.astype(np.float64)  # squares of float32 numbers do not overflow
        norm = math.sqrt(np.dot(exact, exact))
        share = min(self._clip * (1 - ROUNDED) / norm, 1.0) if norm else 1.0
        self.total[slice(None) if indices is None else indices] += share * exact

    def take(self) -> tuple[Indices | None, Vector]:
        """Return all entries of the noisy mean, float32 (n,); without updates it is noise.

        The rounding to float32 hides the gaps between the float64 numbers that can be drawn
        (Mironov 2012).
        """
        noise = normal(self.size).numpy()
        noisy, self.total = self.total + self._noise * self._clip * noise, np.zeros(self.size)
        return None, (noisy / self.expected).astype(np.float32)


class NoisyRounds(Rounds):
    """Runs the rounds of `SparseAveraging` with differential privacy of nodes, at the server.

    Each node is in a round with the probability q, independently of the other nodes, by a draw that
    nobody can repeat. A round without nodes is noise alone. So what nodes receive tells of a node's
    data only by the noisy means, and neither how many nodes take part, nor which.

    `privacy`: the options; `rate` is q. `nodes`: the number N of nodes in the configuration; the
    sum is divided by q N. Raises `TaskError` for a model with tensors that are sent as values.
    """

    def __init__(
        self,
        strategy: SparseAveraging,
        grid: OrderedGrid,
        arrays: ArrayRecord,
        *,
        privacy: Privacy,
        nodes: int,
    ) -> None:
        super().__init__(strategy, grid, arrays)
        self.expect_changes("privacy=node has noise for the changes of parameters")
        assert strategy.count_round  # the ledger's, which expects noise
        assert privacy.noise
        self._count_round, self._rate = strategy.count_round, privacy.rate
        self.updates, size = privacy.rate * nodes, self.reported.trained
        self._mean = NoisyMean(size, privacy.clip, privacy.noise, self.updates)

    def advance(self, lr: float, timeout: float) -> bool:
        """Run one round at the learning rate `lr`; return False if no node is available."""
        number = self._state.round + 1
        asked, needed = self.drawn(number)
        if not self._present:
            return False
        self._count_round()
        # The draws of an encoded model follow from this count, which then tells no empty rounds.
        self._state.deltas.encoded = number - 1
        self._round(number, asked, needed, lr, timeout)
        return True

    def drawn(self, number: int) -> tuple[list[int], int]:
        """Return the nodes to ask, and their number; whether one is asked depends on no other.

        Nodes that have left are not forgotten, because when that is done depends on their number.
        """
        nodes, resting = self._grid.wait_for_nodes(), self._exchange.resting()
        self._present = len(nodes)
        draws = zip(nodes, uniform(len(nodes)).tolist(), strict=True)
        asked = [node for node, coin in draws if coin < self._rate and node not in resting]
        return asked, len(asked)

    def use(self, used: Mapping[int, MetricRecord], rate: float) -> None:
        """Take the step, also without updates; the metrics of the nodes are told to nobody."""
        self._step(rate, len(used))
        self.session.acks.applied(used)
