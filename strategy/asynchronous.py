"""The asynchronous parameter server: each update is applied as it arrives, by its staleness."""

from __future__ import annotations

import math
from collections.abc import Collection
from logging import getLogger

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from compression import Codec, Layout
from compression.flower import to_arrays
from conf.schema import FOREVER
from strategy.base import FLOWER, EvaluateFn, ParameterServer, expect_positive
from strategy.ordered_grid import OrderedGrid
from strategy.pushes import Pushes, PushesState
from strategy.staleness import Ignored, Staleness

log = getLogger("edgewire")
IGNORED = Ignored()
SOME = Layout(("weight",), ((2, 2),), ("float32",))  # enough to see who keeps a memory


class Asynchronous(ParameterServer):
    """A node gets the newest model, and is waited for by nobody; its update is applied at once.

    x = x - rate * factor * update, where `staleness` gives the factor: ASGD, Comp-ASGD and AdaComp
    (Hardy, Le Merrer, Sericola 2017, Algorithms 1 and 2). An update is a gradient, at the run's lr,
    or a delta (`update="delta"`), at `server_lr`. `mix`: x = (1 - a) x + a (the node's model), a =
    server_lr * factor (FedAsync, Xie et al. 2019, Algorithm 1). `proximal_mu`: its rho, of the
    nodes' pull towards the model that they were sent, rho / 2 |x - x_sent|^2. `buffer` K > 1: K
    updates make one step with their mean (FedBuff, Nguyen et al. 2022, Algorithm 1); staleness then
    counts steps, and what is left in the buffer at the end is not applied. At most `in_flight`
    messages are with a node at a time: it need not wait for the server. With a `downlink` codec a
    node gets what has changed since the version that it was last known to have; what encoding
    loses stays in that difference.

    `most`: a node that has been sent so many times as many messages as is usual rests: who answers
    at once would else make the model alone.

    The run ends after `pushes` replies, used or not. Every `record_every` the model is handed to
    `evaluate_fn`. A node that does not answer within the time-out is sent a message anew.
    """

    unit = "PUSH"
    State = PushesState
    state: PushesState

    def __init__(
        self,
        *,
        pushes: int = 20_000,
        staleness: Staleness = IGNORED,
        update: str = "gradient",
        server_lr: float = 1.0,
        mix: bool = False,
        proximal_mu: float = 0.0,
        buffer: int = 1,
        in_flight: int = 1,
        most: float | None = None,
        record_every: int = 1,
        uplink: Codec | None = None,
        downlink: Codec | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(update, server_lr)
        counts = {"buffer": buffer, "in_flight": in_flight, "record_every": record_every}
        expect_positive(pushes=pushes, **counts)
        if buffer > pushes:
            raise ValueError(f"buffer={buffer} is never full with pushes={pushes}")
        if mix and (update != "delta" or buffer > 1 or server_lr > 1):
            raise ValueError("mix goes with update=delta, buffer=1 and a server_lr of at most 1")
        if not 0 <= proximal_mu < math.inf or (proximal_mu and update != "delta"):
            raise ValueError("proximal_mu, a number of at least 0, goes with update=delta")
        if not isinstance(staleness, Staleness):
            raise ValueError(
                "staleness is chosen by strategy/staleness=none, global, polynomial, per_parameter"
            )
        if in_flight > 1 and downlink is not None and not downlink.exact:
            raise ValueError("in_flight above 1 goes with downlink=full: a node keeps one version")
        if in_flight > 1 and uplink and uplink.memory_bytes(SOME):
            raise ValueError("in_flight above 1 goes with methods that keep no memory")
        self.uplink, self.downlink, self.seed = uplink, downlink, seed
        self.pushes, self.staleness, self.mix, self.buffer = pushes, staleness, mix, buffer
        if most is not None and not most >= 1:
            raise ValueError(f"most must be a number of at least 1, or null, not {most!r}")
        self.in_flight, self.record_every, self.most = in_flight, record_every, most
        self.proximal_mu = proximal_mu

    @property
    def done(self) -> int:
        """How many pushes there were."""
        return self.state.done

    def abandon(self, back: Collection[int] = ()) -> None:
        """Give up what is under way: all nodes count as new, and are sent the model."""
        state = self.state
        state.flight.clear()
        state.late.messages.clear()
        state.turns.resting.clear()
        state.turns.known.clear()
        state.looked = -math.inf
        state.dialogue.go_back(back)

    def summary(self) -> None:
        """Log what the strategy does."""
        policy = type(self.staleness).__name__
        FLOWER.info("asynchronous: a %s a push, staleness %s", self.update, policy)

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
        """Run until `pushes` replies are there; arguments and result as `Strategy.start`.

        `num_rounds` is not used. `timeout`: seconds for one message. `train_config["lr"]` is read
        anew for every message.
        """
        goes_on = self._begin()
        grid = grid if isinstance(grid, OrderedGrid) else OrderedGrid(grid)
        config = train_config or ConfigRecord({"lr": 0.1})
        timeout = timeout if timeout < FOREVER else math.inf
        pushes = Pushes(self, grid, initial_arrays, self.state, timeout, config)
        result = Result()

        def record(done: int) -> None:
            self._evaluate(evaluate_fn, done, self.pushes, pushes.arrays, result)

        if not goes_on:
            record(0)
        while self.state.done < self.pushes:
            if not pushes.turn(record):
                done = self.state.done
                log.warning("no node is left after %d of %d pushes", done, self.pushes)
                break
            self._turned()
        result.arrays = to_arrays(pushes.model, pushes.layout, pushes.natives.arrays)
        return result
