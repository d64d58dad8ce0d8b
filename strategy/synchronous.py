"""Synchronous sparse averaging: every worker sends an update, all apply the same mean of them."""

from __future__ import annotations

from collections.abc import Collection
from logging import getLogger
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from compression import Codec
from compression.flower import to_arrays
from compression.flower.headers import EXAMPLES, STEPS
from conf import Config
from strategy.base import FLOWER, EvaluateFn, ParameterServer
from strategy.flower_checks import expect_trained
from strategy.ordered_grid import OrderedGrid
from strategy.robust_aggregation import ABSENT, KINDS
from strategy.rounds import AveragingState, Rounds
from task.optimizers import SGD, ServerOptimizer

WEIGHTS = (None, EXAMPLES, STEPS)  # metrics that every node reports
PLAIN_SGD = SGD()
log = getLogger("edgewire")


class SparseAveraging(ParameterServer):
    """x = optimiser(x, mean of all workers' sparse updates); what is not sent counts as 0.

    The scheme of eSGD (Algorithm 1, line 2), CE-SGD (Algorithm 2), DGC (Algorithm 1) and of all
    methods they are compared with. An update is the gradient of one mini-batch
    (`update="gradient"`) or what local steps changed, model before less model after
    (`update="delta"`); either way the server's `optimizer` takes it as a gradient, at the run's
    lr or, for a delta, at `server_lr`. BatchNorm's statistics are values, and mixed: the nodes'
    mean (for a delta the share `server_lr` of it, at most 1) takes the place of what was there.

    With a `downlink` codec nodes get the averaged update and take the server's own step on their
    replica; without one, the whole model. A round ends when `quorum` (a share) of the drawn nodes
    have answered, or at the time-out: what comes later is not applied, and put back at the node.
    Every `verify_every` rounds (0: never) nodes compare their replica's checksum with the server's.
    `weighted_by_key` names the metric that weighs a node's update (None: all the same). `mean`:
    "mean", or "median" or "trimmed", which a few bad nodes cannot lead anywhere (`RobustMean`, with
    its `trim` and `absent`).
    `mask_received`: CE-SGD's line 7 taken literally, at the nodes; their mean distance from the
    server's model is then the metric `drift`. `uplink`: the nodes' codec.
    """

    State = AveragingState
    state: AveragingState
    no_steps = "give strategy/optimizer="

    def __init__(
        self,
        *,
        optimizer: ServerOptimizer = PLAIN_SGD,
        update: str = "gradient",
        server_lr: float = 1.0,
        fraction_train: float = 1.0,
        min_train_nodes: int = 1,
        quorum: float = 1.0,
        weighted_by_key: str | None = None,
        mean: str = "mean",
        trim: float = 0.2,
        absent: str = "zero",
        verify_every: int = 100,
        mask_received: bool = False,
        uplink: Codec | None = None,
        downlink: Codec | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(update, server_lr)
        if not 0 < quorum <= 1:
            raise ValueError(f"quorum must be a share above 0, at most 1, not {quorum:g}")
        if verify_every < 0:
            raise ValueError(f"verify_every must be 0 (never) or more, not {verify_every}")
        if mask_received and (downlink is None or not (uplink and uplink.sparsifier.repeats)):
            raise ValueError("mask_received goes with compression=cesgd or esgd, downlink=average")
        if mask_received and uplink and uplink.exact_names:
            raise ValueError("mask_received does not go with compression.exact=")
        if mean not in KINDS:
            raise ValueError(f"mean must be one of {', '.join(KINDS)}, not {mean!r}")
        if not 0 <= trim < 0.5:
            raise ValueError(f"trim must be a share of at least 0, below 0.5, not {trim:g}")
        if absent not in ABSENT:
            raise ValueError(f"absent must be one of {', '.join(ABSENT)}, not {absent!r}")
        if not isinstance(optimizer, ServerOptimizer):
            raise ValueError("optimizer is chosen by strategy/optimizer=sgd, momentum or adam")
        if weighted_by_key not in WEIGHTS:
            raise ValueError(f"weighted_by_key must be null or one of {', '.join(WEIGHTS[1:])}")
        self.optimizer = optimizer
        self.fraction_train, self.min_train_nodes = fraction_train, min_train_nodes
        self.quorum, self.weighted_by_key = quorum, weighted_by_key
        self.mean, self.trim, self.absent = mean, trim, absent
        self.verify_every = verify_every
        self.mask_received = mask_received
        self.uplink, self.downlink, self.seed = uplink, downlink, seed

    @property
    def done(self) -> int:
        """How many rounds are through."""
        return self.state.round

    def abandon(self, back: Collection[int] = ()) -> None:
        """Give up late replies; between two rounds nothing else is under way."""
        self.state.exchange.late.messages.clear()
        self.state.dialogue.go_back(back)

    def check_config(self, config: Config) -> None:
        """Raise `ConfigError`, one line, for what of a run's configuration does not go with it."""
        expect_trained(config.nodes, self.fraction_train, self.min_train_nodes)
        super().check_config(config)

    def summary(self) -> None:
        """Log what the strategy does."""
        what = self.update, type(self.optimizer).__name__, self.quorum
        FLOWER.info("sparse averaging of a %s, %s at the server, quorum %g", *what)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the rounds; arguments and result as `Strategy.start`, arrays as one flat vector.

        `train_config["lr"]` is read anew in every round. `timeout`: seconds of a round.
        """
        goes_on = self._begin()
        grid = grid if isinstance(grid, OrderedGrid) else OrderedGrid(grid)
        config = train_config or ConfigRecord({"lr": 0.1})
        rounds, result = Rounds(self, grid, initial_arrays, self.state), Result()
        if not goes_on:
            self._evaluate(evaluate_fn, 0, num_rounds, rounds.arrays, result)
        while self.state.round < num_rounds:
            if not rounds.turn(cast(float, config["lr"]), timeout):
                log.warning("no node is left; %d of %d rounds", self.state.round, num_rounds)
                break
            self._evaluate(evaluate_fn, self.state.round, num_rounds, rounds.arrays, result)
            self._turned()
        result.arrays = to_arrays(rounds.model, rounds.layout, rounds.natives.arrays)
        return result
