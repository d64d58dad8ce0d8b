"""Stores a node's replica of the server's model, and updates the replica from messages.

A message may hold the whole model, the difference of two versions, or the averaged updates of the
server's steps. In the last case the node repeats these steps with the server's optimiser.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from ..base import PayloadError, Vector
from ..batchnorm import trained_entries
from ..coders.shared_context import Activity, SharedContext, recorded
from ..decoder import MAX_SIZE, Update, declared, decode_update
from ..layout import Layout
from .headers import HEALS, DownlinkHeader
from .node.state import Arrays, NodeState, checksum, store_arrays, stored_arrays
from .records import values_of
from .replica import (
    ACTIVITY,
    INITIAL_VERSION,
    MODEL,
    VERSION,
    Optimizer,
    Replica,
    activity_of,
    vector_layout,
)
from .tensor_split import (
    Model,
    TensorSplit,
    converted,
    expect_room,
    form_as_declared,
    form_of_updates,
)
from .tied_weights import Ties, form_with_copies, narrowed, widened, widened_own

REPLICA = "edgewire-replica"  # the record in a node's state that holds its replica
# The record of a second replica; its steps change only the coordinates that the node sent.
MASKED = "edgewire-masked"
LACKS = f"the model is sent relative to a version that this node does not have; it {HEALS}"
OTHER = f"this node's model is not the server's version of it; it {HEALS}"
NOT_MADE = (
    "the server does not send the model before training, and this node does not make it "
    f"(downlink.from_seed); it {HEALS}"
)


class Followed(NamedTuple):
    """The server's model, as decoded from a message; treat it as read-only.

    `form`: the `TensorSplit` for changes of the model. `came`: for a message with a whole model,
    the `TensorSplit` and the values in the message; tensors of other dtypes than float32 are exact
    there. `ties`: the copies that the message left out (`tied_weights.py`). `context`: the context
    of index sets at this version; the next message to any node of the process ends it. `step`: the
    number of the server's next step, for a node that repeats the server's steps.
    """

    form: TensorSplit
    model: Model
    came: tuple[TensorSplit, Model] | None = None
    ties: Ties = ()
    context: SharedContext | None = None
    step: int | None = None

    def arrays(self) -> ArrayRecord:
        """Return the model as named arrays, each in the tensor's dtype."""
        form, model = self.came or (self.form, self.model)
        return form.arrays(model)


class _Version(NamedTuple):
    """A version of the model with its checksum; `activity`: if index sets are coded by context."""

    checksum: bytes
    vector: Vector
    activity: Activity | None = None


class NodeReplica:
    """Reads the server's model from messages, for all nodes of a process.

    Nodes with equal models share the arrays. The first node that gets a version computes it, and
    the other nodes use the result. `optimizer`: the server's optimiser; it is needed if nodes
    repeat the server's steps. In this case a `layout` is needed too. `seeded`: the model before
    training (version 0), float32 (n,), which this node has made from the run's seed; None: the
    server sends it. `contextual`: True if index sets are coded by context.
    """

    def __init__(
        self,
        layout: Layout | None = None,
        optimizer: Optimizer | None = None,
        seeded: Vector | None = None,
        *,
        contextual: bool = False,
    ) -> None:
        self._contextual = contextual
        self._contexts = deque[tuple[int | None, SharedContext]](maxlen=2)  # by version
        self._layout, self._optimizer, self._seeded = layout, optimizer, seeded
        self._from_seed: Replica | None = None  # began at version 0; nodes of the process share it
        self._last: tuple[bytes, TensorSplit, Update] | None = None  # the payload decoded last
        self._made: _Version | None = None  # the version that was computed last
        self._snapshot: tuple[bytes, Replica] | None = None

    def model(self, arrays: ArrayRecord, header: DownlinkHeader, state: RecordDict) -> Followed:
        """Return the server's model that this message brings.

        Raises `PayloadError` if the node lacks the version `header.base`, or if the payload does
        not fit the model. Also raises it if the result's checksum differs from the header's.
        """
        if header.rates is not None or MODEL in values_of(arrays):
            if self._layout is None:
                raise PayloadError(
                    "the server's steps come, and this node knows no layout for them"
                )
            vector, context = self._by_steps(arrays, header, state)
            form, step = form_of_updates(self._layout), (header.version or 0) + 1
            return Followed(form, Model(vector), context=context, step=step)
        here = {} if header.base is None else self._base(header.base, state)
        if header.base == header.version == INITIAL_VERSION:  # the message holds no values
            if self._layout is None:
                raise PayloadError(NOT_MADE)
            vector, context = self._kept_version(here[MODEL], header, state, None)
            return Followed(form_of_updates(self._layout), Model(vector), context=context)
        context = self._context(header.base, here)
        most = here[MODEL].size if here else MAX_SIZE  # changes have the replica's size
        sent, update = self._decoded(next(iter(arrays.values())).data, context, most)
        if self._layout is not None and header.tied:
            raise PayloadError("the message tells of copies, and this node's model has none")
        sent, ties = form_with_copies(sent, header, most)
        form = form_of_updates(sent.whole, tuple(header.exact or ()))
        own = widened_own(update.own, sent, ties)
        if header.base is None:
            came = Model(widened(update.dense(), sent, ties), own)
            model = converted(came, sent, form)
            if header.version is None:
                values_of(state).pop(REPLICA, None)  # the server will not send changes of it
                return Followed(form, model, (sent, came), ties)
            vector, context = self._kept_version(model.vector, header, state, None)
            return Followed(form, Model(vector, model.own), (sent, came), ties, context)
        if sent.beside != form.beside:
            raise PayloadError("the model's changes come in another form than is expected")
        if here[MODEL].size != form.layout.size:
            raise PayloadError(LACKS)
        if self._made is not None and self._made.checksum == header.checksum:
            vector = self._made.vector
        else:
            before = narrowed(Model(here[MODEL]), form, ties).vector
            vector = widened(update.model_from(before), form, ties)
        later = None if context is None else recorded(context.activity, update.indices)
        vector, context = self._kept_version(vector, header, state, later)
        return Followed(form, Model(vector, own), ties=ties, context=context)

    def _decoded(
        self, payload: bytes, context: SharedContext | None = None, most: int = MAX_SIZE
    ) -> tuple[TensorSplit, Update]:
        """Decode a payload of up to `most` entries; return how it splits the model, and its update.

        Nodes that get the same bytes share the decoded arrays.
        """
        if self._last is None or self._last[0] != payload:
            if self._layout is None:
                form = form_as_declared(*declared(payload))
                expect_room(form, most)
            else:
                form = form_as_declared(self._layout, ())
            update = decode_update(payload, form.whole, own=form.beside, context=context)
            self._last = payload, form, update
        return self._last[1:]

    # messages that hold the whole model or the difference of two versions

    def _base(self, version: int, state: RecordDict) -> Arrays:
        """Return the arrays of a version that this node has stored, or has made from the seed."""
        here = stored_arrays(state, REPLICA)
        if not here or int(here[VERSION][0]) != version:
            if version != INITIAL_VERSION:
                raise PayloadError(LACKS)
            if self._seeded is None:
                raise PayloadError(NOT_MADE)
            here = {MODEL: self._seeded}
        if self._contextual and ACTIVITY not in here:  # or a state from before the context
            here[ACTIVITY] = np.zeros(len(here[MODEL]), dtype=np.uint8)
        return here

    def _context(self, version: int | None, arrays: Arrays) -> SharedContext | None:
        """Return the context at a version with these arrays; None if index sets are coded without.

        Nodes that share the activity share the context.
        """
        activity = arrays.get(ACTIVITY) if self._contextual else None
        if activity is None:
            return None
        for number, known in self._contexts:
            if number == version and known.activity is activity:
                return known
        self._contexts.append((version, SharedContext(activity)))
        return self._contexts[-1][1]

    def _kept_version(
        self,
        vector: Vector,
        header: DownlinkHeader,
        state: RecordDict,
        activity: Activity | None,
    ) -> tuple[Vector, SharedContext | None]:
        """Store a version of the model in a node's state; return its vector and its context.

        `activity`: of the version, uint8 (n,); None for a whole model, which has none. Raises
        `PayloadError` if the vector's checksum is not the header's.
        """
        made = self._made
        if made is None or made.checksum != header.checksum:
            if header.checksum is None or checksum(vector) != header.checksum:
                state.pop(REPLICA, None)
                raise PayloadError(OTHER)
            made = _Version(header.checksum, vector)
        if self._contextual:
            activity = np.zeros(len(vector), dtype=np.uint8) if activity is None else activity
            if made.activity is None or not np.array_equal(made.activity, activity):
                made = made._replace(activity=activity)
        self._made = made
        arrays = {MODEL: made.vector, VERSION: np.array([header.version])}
        if made.activity is not None:
            arrays[ACTIVITY] = made.activity
        store_arrays(state, REPLICA, arrays)
        return made.vector, self._context(header.version, arrays)

    # messages that hold the updates of the server's steps

    def _by_steps(
        self, arrays: ArrayRecord, header: DownlinkHeader, state: RecordDict
    ) -> tuple[Vector, SharedContext | None]:
        if header.version is None:
            return self._decoded(arrays[MODEL].data)[1].dense(), None
        if header.base is None:
            replica = self._start(arrays, header)
            store_arrays(state, REPLICA, replica.arrays)
        else:
            replica = self._begun(header, state) or self._replica(state)
            self._catch_up(replica, arrays, header)
        if header.checksum is not None and checksum(replica.model) != header.checksum:
            del state[REPLICA]
            raise PayloadError(OTHER)
        return replica.model, self._context(replica.version, replica.arrays)

    def _begun(self, header: DownlinkHeader, state: RecordDict) -> Replica | None:
        """Return a replica that began at version 0, for a node that has none; else None."""
        if header.base != INITIAL_VERSION or stored_arrays(state, REPLICA):
            return None
        if self._seeded is None or self._layout is None:
            raise PayloadError(NOT_MADE)
        shared, newest = self._from_seed, len(header.rates or ())
        if shared is None or shared.version > newest:
            trained = trained_entries(self._layout)
            model, contextual = self._seeded.copy(), self._contextual
            shared = Replica.start(self._rule, trained, model, contextual=contextual)
        self._from_seed = shared
        store_arrays(state, REPLICA, shared.arrays)
        return shared

    def _start(self, arrays: ArrayRecord, header: DownlinkHeader) -> Replica:
        """Return a replica from a message that holds the whole model and the optimiser's state.

        All nodes that get the same bytes share the replica.
        """
        payload, last = arrays[MODEL].data, self._snapshot
        # Other nodes may have taken steps with the last replica.
        if last is None or last[0] != payload or last[1].version != header.version:
            model = decode_update(payload, self._layout)
            trained = trained_entries(model.layout)
            made: Arrays = {VERSION: np.array([header.version], dtype=np.int64)}
            made[MODEL] = model.dense().copy()
            for name in self._rule.names:
                stored = decode_update(arrays[name].data, vector_layout(name, trained))
                made[name] = stored.dense().copy()
            if self._contextual:
                made[ACTIVITY] = activity_of(arrays[ACTIVITY].data, model.layout.size)
            self._snapshot = last = payload, Replica(self._rule, trained, made)
        return last[1]

    @property
    def _rule(self) -> Optimizer:
        if self._optimizer is None:
            raise PayloadError("the server's steps come, and this node knows no optimizer for them")
        return self._optimizer

    def _replica(self, state: RecordDict, record: str = REPLICA) -> Replica:
        """Return the replica in a node's state; raises `PayloadError` if there is none."""
        arrays = stored_arrays(state, record)
        if not arrays:
            raise PayloadError(LACKS)
        assert self._layout is not None
        store_arrays(state, record, arrays)  # a state from another process does not share them yet
        return Replica(self._rule, trained_entries(self._layout), arrays)

    def _catch_up(
        self,
        replica: Replica,
        arrays: ArrayRecord,
        header: DownlinkHeader,
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Apply the averaged updates in a message, except those that the replica already has.

        `mask`: (`trained`,) bool, True for the parameters to change; None changes all parameters.
        Raises `PayloadError` if the replica lacks a step before the message's first update.
        """
        base, rates = header.base or 0, header.rates or []
        newest, there = base + len(rates), replica.version
        if not base <= there <= newest:
            raise PayloadError(LACKS)
        for version in range(there + 1, newest + 1):
            payload = values_of(arrays)[str(version)].data
            _, update = self._decoded(payload, self._context(version - 1, replica.arrays))
            indices, values = update.indices, update.values
            if mask is not None:
                indices = np.arange(len(values), dtype=np.uint32) if indices is None else indices
                every = np.ones(replica.model.size, dtype=np.bool_)
                every[: len(mask)] = mask
                indices, values = indices[every[indices]], values[every[indices]]
            replica.apply(indices, values, rates[version - base - 1])

    @property
    def sends_momentum(self) -> bool:
        """Whether this node sends something else than its gradients (`uplink`)."""
        return self._optimizer is not None and self._optimizer.sends_momentum

    def uplink(self, gradient: Vector, state: RecordDict) -> Vector:
        """Return what this node sends for its gradient, (n,), after a message."""
        if not {*self._rule.names} <= {*stored_arrays(state, REPLICA)}:
            return gradient  # the optimiser has no state before the first step
        return self._replica(state).uplink(gradient)

    def masked(
        self, followed: Vector, arrays: ArrayRecord, header: DownlinkHeader, state: RecordDict
    ) -> tuple[Vector, float]:
        """Return this node's own model in CE-SGD, and its L2 distance from the server's model.

        In CE-SGD's Algorithm 2, line 7, each node multiplies the server's averaged update by the
        selection vector V of its own last update, and takes a step with the product. So its model
        differs from the server's. `followed`: the server's model, (n,).
        """
        first = header.base == INITIAL_VERSION and MASKED not in values_of(state)
        if header.base is None or first:
            own = {name: array.copy() for name, array in stored_arrays(state, REPLICA).items()}
            replica = Replica(self._rule, self._replica(state).trained, own)
        else:
            replica = self._replica(state, MASKED)
            self._catch_up(replica, arrays, header, NodeState(state).memory["sent"])
        store_arrays(state, MASKED, replica.arrays)
        return replica.model, float(np.linalg.norm(replica.model - followed))
