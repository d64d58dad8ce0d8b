"""What rounds and pushes both hold: the model, the session with the nodes, the inbox, the means."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from edgewire.compression.flower import flat_record
from edgewire.compression.flower.native_tensors import with_natives
from edgewire.compression.flower.replica import Replica
from edgewire.compression.flower.server.delta_sync import DeltaSync, DeltaSyncState
from edgewire.compression.flower.server.inbox import Inbox
from edgewire.compression.flower.server.norm_screen import Screens, ScreensState
from edgewire.compression.flower.server.session import (
    InitialModel,
    ServerSession,
    ServerSessionState,
)
from edgewire.compression.flower.server.step_log_sync import StepLogSync
from edgewire.compression.flower.tensor_split import Model, form_of_updates
from edgewire.strategy.aggregation import EQUAL, Aggregation, ReportedState, ReportedTensors
from edgewire.strategy.base import ParameterServer, ServerState
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.task.optimizers import SGD, ServerOptimizer

PLAIN_SGD = SGD()


@dataclass
class ModelState(ServerState):
    """The state of a `Server`, as a checkpoint holds it.

    `replica`: the model and the optimiser's state. `recent`: the updates applied last, with their
    learning rates, if nodes repeat the steps. `deltas`: the versions of the model that nodes have,
    if they get differences.
    """

    replica: dict[str, NDArray[Any]] = field(default_factory=dict)
    session: ServerSessionState = field(default_factory=ServerSessionState)
    recent: deque[tuple[bytes, float]] = field(default_factory=deque)
    deltas: DeltaSyncState = field(default_factory=DeltaSyncState)
    screens: ScreensState = field(default_factory=ScreensState)
    reported: ReportedState = field(default_factory=ReportedState)


class Server:
    """The model of a `ParameterServer`, its session with the nodes, the inbox and the means.

    `measured`: names of metrics that each reply must hold as finite numbers. `optimizer`, `how`:
    those of the server. `follow`: as in `SparseAveraging`; it has no effect without a downlink
    codec. `from_initial`: see `DeltaSync`. `every_round`: see `NormScreen`. The attribute
    `reported` averages BatchNorm's statistics and the native tensors.
    """

    def __init__(
        self,
        strategy: ParameterServer,
        grid: OrderedGrid,
        arrays: ArrayRecord,
        state: ModelState,
        measured: Sequence[str],
        optimizer: ServerOptimizer = PLAIN_SGD,
        how: Aggregation = EQUAL,
        *,
        follow: str = "differences",
        from_initial: bool = False,
        every_round: bool = False,
    ) -> None:
        codecs, steps, self._grid = strategy.codecs, follow == "steps", grid
        self.replica, self.layout = Replica.of(
            optimizer, arrays, state.replica, contextual=codecs.contextual and steps
        )
        initial = InitialModel.of(self.layout, arrays, strategy.initial, from_seed=codecs.from_seed)
        repeats = steps and codecs.downlink is not None
        self.steps = StepLogSync(self.replica, self.layout, follow=repeats, recent=state.recent)
        self.deltas: DeltaSync | None = None
        if codecs.downlink is not None and not steps:
            self.deltas = DeltaSync(
                codecs.downlink,
                codecs.seed,
                state.deltas,
                initial.seeded,
                from_initial=from_initial,
                whole=follow == "weights",
                contextual=codecs.contextual,
            )
        self.session = ServerSession(
            self.deltas or self.steps,
            state.traffic,
            initial,
            state.session,
            codecs.uplink,
            compact_records=codecs.compact_records,
        )
        grid.discard = self.session.count_unused
        self.reported = ReportedTensors(
            self.layout, strategy.initial, state.reported, kind=how.kind, trim=how.trim
        )
        screens = Screens(strategy.screening, state.screens, every_round=every_round)
        self.inbox = Inbox(self.session, self.reported, screens, measured, how.weighted_by_key)

    @property
    def model(self) -> NDArray[np.float32]:
        """The newest model, float32 (n,); the next call of `advance` changes it in place."""
        return self.replica.model

    @property
    def arrays(self) -> ArrayRecord:
        """The newest model: a flat vector, and tensors in their own dtype.

        The next call of `advance` changes the vector in place.
        """
        return with_natives(flat_record(self.model), self.reported.natives)

    def offer(self, number: int, *, crowded: bool = True) -> None:
        """Let differences lead to the newest model; `number`: the number of the next message.

        `crowded`: True to delete versions of the model that no node needs.
        """
        if self.deltas is None:
            return
        if crowded:
            self.deltas.tidy(self.session.versions.held, self.session.versions.in_flight)
        form = form_of_updates(self.layout)
        self.deltas.offer(Model(self.model), form, number=number, named=False)
