"""The base class of servers with one model: the model, and the session with the nodes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord
from numpy.typing import NDArray

from compression.base import Vector
from compression.flower import flat_record
from compression.flower.compact_records import restored
from compression.flower.native_tensors import with_natives
from compression.flower.replica import Replica
from compression.flower.server.delta_sync import DeltaSync, DeltaSyncState
from compression.flower.server.session import InitialModel, ServerSession, ServerSessionState
from compression.flower.server.step_log_sync import StepLogSync
from compression.flower.server.update_filter import UpdateFiltersState
from compression.flower.tensor_split import Model, form_of_updates
from strategy.aggregation import NativeMix, NativeState
from strategy.base import ParameterServer, ServerState
from strategy.ordered_grid import OrderedGrid
from task.optimizers import ServerOptimizer


@dataclass
class ModelServerState(ServerState):
    """The state that every `ModelServer` has, as a checkpoint holds it.

    `replica`: the model and the optimiser's state. `deltas`: the versions of the model that nodes
    have, if they get differences.
    """

    replica: dict[str, NDArray[Any]] = field(default_factory=dict)
    session: ServerSessionState = field(default_factory=ServerSessionState)
    deltas: DeltaSyncState = field(default_factory=DeltaSyncState)
    filters: UpdateFiltersState = field(default_factory=UpdateFiltersState)
    natives: NativeState = field(default_factory=NativeState)


class ModelServer:
    """The newest model of a run, and the messages that bring nodes to it.

    `recent`: the server's newest steps with their learning rates, if nodes repeat these steps. With
    None and a downlink codec, nodes get differences of models. `from_initial`, `whole`: options of
    `DeltaSync`. `robust`: an option of `NativeMix`.
    """

    def __init__(
        self,
        strategy: ParameterServer,
        grid: OrderedGrid,
        initial_arrays: ArrayRecord,
        state: ModelServerState,
        optimizer: ServerOptimizer,
        *,
        recent: deque[tuple[bytes, float]] | None = None,
        from_initial: bool = False,
        whole: bool = False,
        robust: bool = False,
    ) -> None:
        codecs, repeats = strategy.codecs, recent is not None
        self._downlink = codecs.downlink if repeats else None  # of the server's steps
        self._replica, self.layout = Replica.of(
            optimizer, initial_arrays, state.replica, contextual=codecs.contextual and repeats
        )
        initial = InitialModel.of(
            self.layout, initial_arrays, strategy.initial, from_seed=codecs.from_seed
        )
        follow = self._downlink is not None
        self._steps = StepLogSync(self._replica, self.layout, follow=follow, recent=recent)
        self._deltas: DeltaSync | None = None
        if codecs.downlink is not None and not repeats:
            self._deltas = DeltaSync(
                codecs.downlink,
                codecs.seed,
                state.deltas,
                initial.seeded,
                from_initial=from_initial,
                whole=whole,
                contextual=codecs.contextual,
            )
        self._session = ServerSession(
            self._deltas or self._steps,
            state.traffic,
            initial,
            state.session,
            codecs.uplink,
            compact_records=codecs.compact_records,
        )
        if codecs.compact_records:
            grid.read_records_with(restored)
        grid.discard = self._session.count_unused
        self.natives = NativeMix(strategy.initial, state.natives, robust)

    @property
    def model(self) -> Vector:
        """The newest model, float32 (n,); the next call of `advance` changes it in place."""
        return self._replica.model

    @property
    def arrays(self) -> ArrayRecord:
        """The newest model: a flat vector, and tensors in their own dtype.

        The next call of `advance` changes the vector in place.
        """
        return with_natives(flat_record(self.model), self.natives.arrays)

    def _offer(self, deltas: DeltaSync, number: int, *, tidy: bool = True) -> None:
        """Tell `deltas` that the next messages must bring nodes to the newest model.

        `number`: the number of these messages. `tidy`: whether to delete versions without a node.
        """
        if tidy:
            deltas.tidy(self._session.versions.held, self._session.versions.in_flight)
        form = form_of_updates(self.layout)
        deltas.offer(Model(self._replica.model), form, number=number, named=False)
