"""A node's replica of the server's model, and how messages update it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from ..base import Indices, PayloadError, Vector
from ..batchnorm import trained_entries
from ..decoder import MAX_SIZE, Update, declared, decode_update
from ..layout import Layout
from ..scatter import find
from .headers import HEALS, DownlinkHeader
from .node.state import Arrays, NodeState, checksum, keep, kept
from .records import layout_of, to_vector
from .tensor_split import (
    Model,
    TensorSplit,
    converted,
    expect_room,
    form_as_declared,
    form_of_updates,
)
from .tied_weights import Ties, form_as_told, narrowed, widened, widened_own

MODEL, VERSION = "model", "version"


class Optimizer(Protocol):
    """The optimiser of the server's step, which nodes with a replica repeat."""

    names: tuple[str, ...]  # names of its state's arrays, each float32 (n,)

    def state(self, size: int) -> dict[str, Vector]:
        """Return the state's arrays before the first step."""

    def step(
        self,
        x: Vector,
        state: dict[str, Vector],
        at: Indices | slice,
        gradient: Vector,
        lr: float,
        number: int,
    ) -> None:
        """Change (n,) `x` and `state` in place; `gradient` (k,) holds the entries `at`."""


class Replica:
    """A flat model, the optimiser's state, and the number of steps taken (the version).

    All of it is in `arrays`: "model" float32 (n,), "version" int64 (1,), and the optimiser's own.
    Replicas with the same arrays share everything. The first `trained` entries are parameters; the
    rest are BatchNorm's running statistics, for which an update holds values, not gradients.
    """

    def __init__(self, optimizer: Optimizer, trained: int, arrays: dict[str, NDArray[Any]]) -> None:
        self.arrays = arrays
        self.model: Vector = arrays[MODEL]
        self._optimizer, self.trained = optimizer, trained
        self._version = arrays[VERSION]
        self._parameters = self.model[:trained]

    @classmethod
    def start(cls, optimizer: Optimizer, trained: int, model: Vector) -> Replica:
        """Return a replica of version 0 whose model is `model` itself."""
        arrays: dict[str, NDArray[Any]] = {MODEL: model, VERSION: np.zeros(1, np.int64)}
        return cls(optimizer, trained, {**arrays, **optimizer.state(trained)})

    @classmethod
    def of(
        cls, optimizer: Optimizer, arrays: ArrayRecord, kept: dict[str, NDArray[Any]]
    ) -> tuple[Replica, Layout]:
        """Return the replica that shares the arrays `kept`, and the layout of the named arrays.

        If `kept` is empty, the replica is version 0, a copy of `arrays`, and is stored in `kept`.
        Raises `ValueError` if running statistics do not come after all parameters, or if `kept`
        belongs to another model.
        """
        layout = layout_of(arrays)
        trained = trained_entries(layout)
        if kept and (
            set(kept) != {MODEL, VERSION, *optimizer.names} or kept[MODEL].size != layout.size
        ):
            raise ValueError(
                f"the state is of another model or optimizer: {kept[MODEL].size} entries, not "
                f"{layout.size}"
            )
        if not kept:
            kept |= cls.start(optimizer, trained, to_vector(arrays).copy()).arrays
        return cls(optimizer, trained, kept), layout

    @property
    def version(self) -> int:
        """How many updates were applied."""
        return int(self._version[0])

    def apply(self, indices: Indices | None, values: Vector, lr: float) -> None:
        """Take the server's step with an averaged update at the learning rate `lr`.

        `values`: (k,) at strictly increasing `indices`, or (n,) if these are None.
        """
        at: Indices | slice = slice(None)
        rest: Indices | slice = slice(self.trained, None)
        cut = self.trained
        if indices is not None:
            cut = find(indices, [self.trained])[0]
            at, rest = indices[:cut], indices[cut:]
        self._version += 1
        number = self.version
        self._optimizer.step(self._parameters, self.arrays, at, values[:cut], lr, number)
        if cut < len(values):
            self.model[rest] = values[cut:]


REPLICA = "edgewire-replica"  # the record in a node's state that holds its replica
MASKED = "edgewire-masked"  # a replica whose steps change only the coordinates that the node sent
LACKS = f"the model is sent relative to a version that this node does not have; it {HEALS}"
OTHER = f"this node's model is not the server's version of it; it {HEALS}"


class Decoder:
    """Decodes the server's payloads; nodes of a process that get the same bytes share the result.

    `layout`: the model's layout, if nodes know it; otherwise a payload declares its tensors.
    """

    def __init__(self, layout: Layout | None) -> None:
        self._layout = layout
        self._last: tuple[bytes, TensorSplit, Update] | None = None

    def __call__(self, payload: bytes) -> Update:
        """Return what a payload holds; errors as `decode_update`."""
        return self.whole(payload)[1]

    def whole(self, payload: bytes, most: int = MAX_SIZE) -> tuple[TensorSplit, Update]:
        """Return the payload's form and content; the vector may have at most `most` entries."""
        if self._last is None or self._last[0] is not payload:
            if self._layout is None:
                form = form_as_declared(*declared(payload))
                expect_room(form, most)
            else:
                form = form_as_declared(self._layout, ())
            update = decode_update(payload, form.whole, own=form.beside)
            self._last = payload, form, update
        return self._last[1:]


class Followed(NamedTuple):
    """The server's model (read-only), and the form for its changes.

    `came`: form and values of a whole model as received, with tensors other than float32 in their
    own type, exactly. `ties`: copies, which the message left out.
    """

    form: TensorSplit
    model: Model
    came: tuple[TensorSplit, Model] | None = None
    ties: Ties = ()

    def arrays(self) -> ArrayRecord:
        """Return the model as named arrays in their own types."""
        form, model = self.came or (self.form, self.model)
        return form.arrays(model)


class NodeReplica:
    """Gives every node of a process the server's model.

    Nodes with equal replicas share the arrays: the first node that gets a version computes it for
    all. `optimizer`: the server's, for nodes that repeat its steps; these need a `layout`.
    """

    def __init__(self, layout: Layout | None = None, optimizer: Optimizer | None = None) -> None:
        self._layout, self._optimizer = layout, optimizer
        self._decode = Decoder(layout)
        self._made: tuple[bytes, Vector] | None = None  # a version's checksum and model
        self._snapshot: tuple[bytes, Replica] | None = None

    def model(self, arrays: ArrayRecord, note: DownlinkHeader, state: RecordDict) -> Followed:
        """Return the server's model.

        Raises `PayloadError` if the node lacks the base version, or has another model.
        """
        if note.rates is not None or MODEL in arrays:
            if self._layout is None:
                raise PayloadError(
                    "the server's steps come, and this node knows no layout for them"
                )
            model = Model(self._by_steps(arrays, note, state))
            return Followed(form_of_updates(self._layout), model)
        here = kept(state, REPLICA).get(MODEL) if note.base is not None else None
        if note.base is not None and here is None:
            raise PayloadError(LACKS)
        most = MAX_SIZE if here is None else here.size  # changes have the replica's size
        sent, update = self._decode.whole(next(iter(arrays.values())).data, most)
        if self._layout is not None and note.tied:
            raise PayloadError("the message tells of copies, and this node's model has none")
        sent, ties = form_as_told(sent, note, most)
        form = form_of_updates(sent.whole, tuple(note.exact or ()))
        own = widened_own(update.own, sent, ties)
        if note.base is None:
            came = Model(widened(update.dense(), sent, ties), own)
            model = converted(came, sent, form)
            if note.version is not None:
                model = Model(self._kept_version(model.vector, note, state), model.own)
            return Followed(form, model, (sent, came), ties)
        if sent.beside != form.beside:
            raise PayloadError("the model's changes come in another form than is expected")
        vector = self._changed(update, form, ties, note, state)
        return Followed(form, Model(vector, own), ties=ties)

    # by differences

    def _changed(
        self, update: Update, form: TensorSplit, ties: Ties, note: DownlinkHeader, state: RecordDict
    ) -> Vector:
        here = kept(state, REPLICA)
        if (
            MODEL not in here
            or int(here[VERSION][0]) != note.base
            or len(here[MODEL]) != form.layout.size
        ):
            raise PayloadError(LACKS)
        if self._made is not None and self._made[0] == note.checksum:
            return self._kept_version(self._made[1], note, state)
        changed = update.model_from(narrowed(here[MODEL], form, ties))
        return self._kept_version(widened(changed, form, ties), note, state)

    def _kept_version(self, vector: Vector, note: DownlinkHeader, state: RecordDict) -> Vector:
        """Store a version: one array for all nodes of this process that have it."""
        if self._made is None or self._made[0] != note.checksum:
            if note.checksum is None or checksum(vector) != note.checksum:
                state.pop(REPLICA, None)
                raise PayloadError(OTHER)
            self._made = note.checksum, vector
        keep(state, REPLICA, {MODEL: self._made[1], VERSION: np.array([note.version])})
        return self._made[1]

    # by steps

    def _by_steps(self, arrays: ArrayRecord, note: DownlinkHeader, state: RecordDict) -> Vector:
        if note.version is None:
            return self._decode(arrays[MODEL].data).dense()
        if note.base is None:
            replica = self._start(arrays, note)
            keep(state, REPLICA, replica.arrays)
        else:
            replica = self._replica(state)
            self._catch_up(replica, arrays, note)
        if note.checksum is not None and checksum(replica.model) != note.checksum:
            del state[REPLICA]
            raise PayloadError(OTHER)
        return replica.model

    def _start(self, arrays: ArrayRecord, note: DownlinkHeader) -> Replica:
        """Return a snapshot's replica: one object for all nodes that get the same snapshot."""
        payload = arrays[MODEL].data
        if self._snapshot is None or self._snapshot[0] is not payload:
            model = decode_update(payload, self._layout)
            trained = trained_entries(model.layout)
            made: Arrays = {VERSION: np.array([note.version], dtype=np.int64)}
            made[MODEL] = model.dense().copy()
            for name in self._rule.names:
                layout = Layout((name,), ((trained,),), ("float32",))
                made[name] = decode_update(arrays[name].data, layout).dense().copy()
            self._snapshot = payload, Replica(self._rule, trained, made)
        replica = self._snapshot[1]
        if replica.version != note.version:  # others took steps with it: make a new one
            self._snapshot = None
            return self._start(arrays, note)
        return replica

    @property
    def _rule(self) -> Optimizer:
        if self._optimizer is None:
            raise PayloadError("the server's steps come, and this node knows no optimizer for them")
        return self._optimizer

    def _replica(self, state: RecordDict, record: str = REPLICA) -> Replica:
        """Return a replica in a node's state."""
        arrays = kept(state, record)
        if not arrays:
            raise PayloadError(LACKS)
        assert self._layout is not None
        there = state[record]
        if any(there[n].__dict__.get("vector") is not a for n, a in arrays.items()):
            keep(state, record, arrays)  # the state is a copy from another process: share it again
        return Replica(self._rule, trained_entries(self._layout), arrays)

    def _catch_up(
        self,
        replica: Replica,
        arrays: ArrayRecord,
        note: DownlinkHeader,
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Apply the updates that the replica lacks; it may have some of them already.

        `mask`: (trained entries,) bool, the parameters to change; None: all.
        """
        base, rates = note.base or 0, note.rates or []
        if not base <= replica.version <= base + len(rates):
            raise PayloadError(LACKS)
        for version in range(replica.version + 1, base + len(rates) + 1):
            update = self._decode(arrays[str(version)].data)
            indices, values = update.indices, update.values
            if mask is not None:
                indices = np.arange(len(values), dtype=np.uint32) if indices is None else indices
                every = np.ones(replica.model.size, dtype=np.bool_)
                every[: len(mask)] = mask
                indices, values = indices[every[indices]], values[every[indices]]
            replica.apply(indices, values, rates[version - base - 1])

    def masked(
        self, followed: Vector, arrays: ArrayRecord, note: DownlinkHeader, state: RecordDict
    ) -> tuple[Vector, float]:
        """Return the model by line 7 of CE-SGD's Algorithm 2, and its distance from `followed`.

        Before a step, the server's mean is multiplied by this node's selection vector V of its last
        update. So the nodes' models drift apart.
        """
        if note.base is None:
            own = {name: array.copy() for name, array in kept(state, REPLICA).items()}
            replica = Replica(self._rule, self._replica(state).trained, own)
        else:
            replica = self._replica(state, MASKED)
            self._catch_up(replica, arrays, note, NodeState(state).memory["sent"])
        keep(state, MASKED, replica.arrays)
        return replica.model, float(np.linalg.norm(replica.model - followed))
