"""Brings nodes to the newest model by the difference from the version that each node has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord
from xxhash import xxh3_64_digest

from ...batchnorm import changes
from ...codec import Codec
from ...coders.shared_context import Activity, SharedContext, recorded
from ...decoder import Update, decode_update
from ...make import make_codec
from ...sparsifiers.dense import Dense
from ..node.state import checksum, fingerprint
from ..records import Vector, payload_record, payload_records
from ..replica import INITIAL_VERSION
from ..tensor_split import Model, TensorSplit, converted, form_of_models
from ..tied_weights import Ties, narrowed, widened, without, written_ties

# The most bytes of stored versions and their activities. A node whose version is deleted gets the
# whole model.
BUDGET = 512 << 20
RAW = make_codec(quantizer="float32", coder="raw")
UNHEARD = -1  # `base` for a node that never replies
Key = tuple[bytes, bytes, bytes]  # of a version: the hashes of its model, layout and activity


class ModelUpdate(NamedTuple):
    """The payloads that bring a node to the newest model, and the fields of their header."""

    arrays: ArrayRecord  # one Array per payload
    header: Mapping[str, Any]  # fields of `DownlinkHeader`: version, base, rates, checksum
    received: Model | None = None  # the node's model after decoding; None if it was not computed


@dataclass
class DeltaSyncState:
    """State of `DeltaSync`.

    `versions`: the stored models by version, the most recently used last. `keys`: their keys.
    `activities`: if index sets are coded by context, the activities (`shared_context.py`) by
    version, also of versions whose models were deleted on their way to a node. `count`: the last
    version. `encoded`: how many models were encoded.
    """

    versions: dict[int, Vector] = field(default_factory=dict)
    keys: dict[int, Key] = field(default_factory=dict)
    activities: dict[int, Activity] = field(default_factory=dict)
    count: int = 0
    encoded: int = 0


class OfferedModel(NamedTuple):
    """The newest model, to which nodes are updated, as given to `DeltaSync.offer`."""

    model: Model
    form: TensorSplit
    named: bool
    ties: Ties
    number: int


class DeltaSync:
    """Encodes a model for each node: the change since the node's version, or the whole model.

    A version is the model that a node has after decoding, so it contains the error of the encoding.
    The next difference is computed from this version and corrects the error. This is error feedback
    at the server, which needs no memory except the versions. BatchNorm's statistics and native
    tensors are sent as exact values, not as differences.

    Versions are numbered from 1, and equal models have the same version. A version is stored while
    a node has it. If the stored versions exceed `BUDGET` bytes, the least recently used versions
    are deleted. Without a `codec`, or with a lossless one, each message holds the whole model, and
    no versions are stored.

    `seeded`: the model before training, float32 (n,), if nodes make it from the run's seed; else
    None. While this is the newest model, messages hold no values. A node whose first message comes
    later gets the whole model: a lossy difference from version 0 would be less precise. With
    `from_initial` it gets that difference, which has fewer bytes.

    `whole`: True if a message holds the whole model also with a lossy `codec`. Later messages do
    not correct its error, and no versions are stored.

    `contextual`: True if index sets are coded by context. A version's activity says which entries
    the last eight differences changed that led to the version. A whole model has none. Models that
    are equal and have different activities are different versions.
    """

    skips = False  # a node takes every update, so the server waits until the node confirms it

    def __init__(
        self,
        codec: Codec | None = None,
        seed: int = 0,
        state: DeltaSyncState | None = None,
        seeded: Vector | None = None,
        *,
        from_initial: bool = False,
        whole: bool = False,
        contextual: bool = False,
    ) -> None:
        whole = codec is not None and (codec.exact or whole)
        self._whole = codec if codec is not None and whole else RAW
        self._codec = None if whole else codec
        self._unheard = _of_models(self._codec)
        self._seed = seed
        self._state = DeltaSyncState() if state is None else state
        self._bytes = sum(map(self._size, self._state.versions))
        self._contextual = contextual
        self._context: tuple[int, SharedContext] | None = None  # of the version used last
        self._numbers = {key: version for version, key in self._state.keys.items()}
        self._offered: OfferedModel | None = None
        self._seeded = seeded
        self._is_seeded = False  # whether the newest model is the model before training
        self._from_initial = from_initial and seeded is not None and self._codec is not None
        self._made: dict[int | None, ModelUpdate] = {}  # of the newest model, by the base

    def offer(
        self, model: Model, form: TensorSplit, *, number: int, named: bool, ties: Ties = ()
    ) -> None:
        """Set the newest model, to which later model updates lead.

        `model`: the values, split by `form_of_models(form)`. `form`: the `TensorSplit` for the
        model's changes. `number`: the number of the message, as in its header. `named`: True if the
        payloads must hold the names of their tensors, for nodes without a layout. `ties`: the
        copies that the payloads leave out.
        """
        self._offered = OfferedModel(model, form, named, ties, number)
        self._made.clear()
        if self._seeded is not None:
            self._is_seeded = np.array_equal(model.vector, self._seeded)
            if self._from_initial:
                self._keep_initial(form)
            if not self._is_seeded:
                self._seeded = None  # no later model is the model before training

    def starts_from_seed(self, *, new: bool) -> bool:
        """Return whether a model update can begin at version 0, the model before training.

        `new`: whether the node has got no version so far.
        """
        stored = self._from_initial and INITIAL_VERSION in self._state.versions
        return self._is_seeded or (new and stored)

    def context(self, version: int | None) -> SharedContext | None:
        """Return the context of index sets at a version that a node has; None without one."""
        if version is None or version not in self._state.activities:
            return None
        if self._context is None or self._context[0] != version:
            self._context = version, SharedContext(self._state.activities[version])
        return self._context[1]

    def knows(self, version: int) -> bool:
        """Return whether a version is stored and has the same tensors as the newest model."""
        if self._offered is None:
            return False
        key = self._state.keys.get(version)
        return key is not None and key[1] == fingerprint(self._offered.form.layout)

    def model_update(self, base: int | None) -> ModelUpdate:
        """Encode the newest model for nodes at the version `base`.

        None: the node has no version. `UNHEARD`: it will not confirm one either.
        """
        if base not in self._made:
            self._made[base] = self._encoded(base)
        return self._made[base]

    def _encoded(self, base: int | None) -> ModelUpdate:
        assert self._offered is not None
        offered, codec = self._offered, self._codec
        self._state.encoded += 1
        if base == INITIAL_VERSION and self._is_seeded:
            return self._nothing_new(offered)
        model, form, ties = offered.model, offered.form, offered.ties
        if base is None or base == UNHEARD or codec is None:
            # A node that never confirms a version gets the whole model with quantized values.
            quantized = self._unheard if base == UNHEARD else None
            split = form_of_models(form) if quantized is None else form
            model = converted(model, form_of_models(form), split)
            payload, update = self._sent(quantized or self._whole, model, split, offered)
            received = Model(widened(update.dense(), split, ties), model.own)
            return self._parcel(payload, converted(received, split, form), offered, {})
        model, versions = converted(model, form_of_models(form), form), self._state.versions
        start, context = versions[base], self.context(base)
        change = changes(model.vector, start, form.layout, codec.exact_names)
        payload, update = self._sent(codec, Model(change, model.own), form, offered, context)
        before = narrowed(Model(start), form, ties).vector
        vector = widened(update.model_from(before), form, ties)
        versions[base] = versions.pop(base)  # moves it to the end, as the most recently used
        activity = None if context is None else recorded(context.activity, update.indices)
        return self._parcel(payload, Model(vector, model.own), offered, {"base": base}, activity)

    def _sent(
        self,
        codec: Codec,
        values: Model,
        form: TensorSplit,
        offered: OfferedModel,
        context: SharedContext | None = None,
    ) -> tuple[bytes, Update]:
        """Encode values, split by `form`, without copies of tensors; also return them decoded."""
        small = without(form, offered.ties)
        vector, own = narrowed(values, form, offered.ties)
        payload = codec.encode(
            vector,
            small.layout,
            seed=(self._seed << 64) | self._state.encoded,
            number=offered.number,
            names=offered.named,
            own=own,
            context=context,
        )
        return payload, decode_update(payload, small.whole, own=small.beside, context=context)

    def _nothing_new(self, offered: OfferedModel) -> ModelUpdate:
        """Return a model update without values, for nodes that make the newest model themselves."""
        vector = converted(offered.model, form_of_models(offered.form), offered.form).vector
        name = self._keep_initial(offered.form) if self._codec is not None else checksum(vector)
        header = {"base": INITIAL_VERSION, "version": INITIAL_VERSION, "checksum": name}
        return ModelUpdate(payload_records({}), header, offered.model)

    def _keep_initial(self, form: TensorSplit) -> bytes:
        """Store the model before training as version 0; return its checksum."""
        state, seeded = self._state, self._seeded
        if INITIAL_VERSION not in state.versions:
            assert seeded is not None
            activity = np.zeros(len(seeded), dtype=np.uint8) if self._contextual else None
            key = _key_of(checksum(seeded), fingerprint(form.layout), activity)
            self._store(INITIAL_VERSION, seeded.copy(), key, activity)
        return state.keys[INITIAL_VERSION][0]

    def _parcel(
        self,
        payload: bytes,
        received: Model,
        offered: OfferedModel,
        header: Mapping[str, int],
        activity: Activity | None = None,
    ) -> ModelUpdate:
        """Return the model update that leads to a version; `activity`: of a whole model None."""
        form, says = offered.form, {**header, **written_ties(offered.form, offered.ties)}
        if self._codec is not None:
            name = checksum(received.vector)
            version = self._remember(name, received.vector, fingerprint(form.layout), activity)
            says |= {"version": version, "checksum": name}
        return ModelUpdate(payload_record(payload), says, received)

    def tidy(self, held: Iterable[int], in_flight: Collection[int] = ()) -> None:
        """Delete stored versions of the model that no node has (`held`: those that nodes have).

        If the rest exceeds `BUDGET` bytes, also delete the least recently used versions. The
        activities of versions that are `in_flight` stay: the replies may be coded by them.
        """
        initial = {INITIAL_VERSION} if self._from_initial else set()
        needed = {*held, *initial}
        for version in self._state.versions.keys() - needed:
            self._drop(version)
        while self._bytes > BUDGET and self._state.versions.keys() - initial:
            self._drop(next(v for v in self._state.versions if v not in initial))
        stay = {*self._state.versions, *in_flight} if self._contextual else set()
        for version in self._state.activities.keys() - stay:
            del self._state.activities[version]

    def crowded(self, nodes: int) -> bool:
        """Return whether a server that sends to `nodes` nodes one by one should call `tidy`."""
        return len(self._state.versions) > 2 * nodes or self._bytes > BUDGET

    def _drop(self, version: int) -> None:
        """Delete a version, but not its activity."""
        del self._numbers[self._state.keys.pop(version)]
        self._bytes -= self._size(version)
        del self._state.versions[version]

    def _remember(
        self, name: bytes, vector: Vector, tensors: bytes, activity: Activity | None
    ) -> int:
        if self._contextual and activity is None:
            activity = np.zeros(len(vector), dtype=np.uint8)
        key = _key_of(name, tensors, activity)
        version = self._numbers.get(key)
        if version is None:
            version = self._state.count = self._state.count + 1
            self._store(version, vector, key, activity)
        else:
            versions = self._state.versions
            versions[version] = versions.pop(version)  # at the end, as the most recently used
        return version

    def _store(self, version: int, vector: Vector, key: Key, activity: Activity | None) -> None:
        if activity is not None:
            self._state.activities[version] = activity
        self._state.versions[version], self._state.keys[version] = vector, key
        self._bytes += self._size(version)
        self._numbers[key] = version

    def _size(self, version: int) -> int:
        """Return the bytes of a stored version and of its activity."""
        activity = self._state.activities.get(version)
        return self._state.versions[version].nbytes + (0 if activity is None else activity.nbytes)


def _key_of(name: bytes, tensors: bytes, activity: Activity | None) -> Key:
    return name, tensors, b"" if activity is None else xxh3_64_digest(activity.data)


def _of_models(codec: Codec | None) -> Codec | None:
    """Return a codec that sends whole models with the quantizer and the coder of `codec`.

    None: the quantizer is lossless, or not precise enough, because it may increase the norm.
    """
    if codec is None or codec.quantizer.exact or not codec.quantizer.keeps_norm:
        return None
    return Codec(Dense(), codec.quantizer, codec.coder, exact_names=codec.exact_names)
