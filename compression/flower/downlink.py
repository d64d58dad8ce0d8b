"""What the server sends: the model whole, or what has changed since the version a node has."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from ..codec import Codec
from ..payload import decode_update
from ..statistics import changes
from .arrays import Vector
from .form import Form, Model, converted, form_of_models
from .state import Note, checksum

BUDGET = 512 << 20  # bytes of versions that the server keeps; beyond, nodes get the model whole


class Sent(NamedTuple):
    """One model as it travels to one or more nodes."""

    payload: bytes
    note: Note  # what goes with it
    received: Model  # what the nodes then have


class Downlink:
    """Encodes the model for each node: whole with `whole`, or changes with `changes` if given.

    A change is relative to the version that the node last confirmed. The error of each encoding
    stays in the difference between that version and the model, and so in the next change: the
    server's own error feedback, without a memory beside the versions. What is no change
    (BatchNorm's statistics, tensors of their own type) travels as it is each time. A version is
    named by the checksum of its vector and kept while a node has it, those used last up to `BUDGET`
    bytes. A node that has none of them, or said that its own differs, or did not answer, gets the
    model whole.
    """

    def __init__(self, whole: Codec, changes: Codec | None = None, seed: int = 0) -> None:
        self._whole, self._changes, self._seed = whole, changes, seed
        self._versions: OrderedDict[bytes, Vector] = OrderedDict()
        self._has: dict[int, bytes] = {}  # node -> the version it confirmed last
        self._sent: dict[int, bytes] = {}  # node -> the version it should confirm
        self._count = 0

    def base_of(self, node: int) -> bytes | None:
        """Return the name of the version that a message to this node can build on."""
        version = self._has.get(node)
        return version if version in self._versions else None

    def encode(self, model: Model, form: Form, base: bytes | None, *, names: bool) -> Sent:
        """Encode a model in a form for nodes that have version `base` (None: none)."""
        self._count += 1
        if base is None or self._changes is None:
            return self._encode_whole(model, form, names)
        start, own = self._versions[base], model.own
        seed = (self._seed << 64) | self._count
        change = changes(model.vector, start, form.layout, self._changes.exact_names)
        payload = self._changes.encode(change, form.layout, seed=seed, names=names, own=own)
        received = decode_update(payload, form.whole).model_from(start)
        self._versions.move_to_end(base)
        note: Note = {"base": base, "version": self._remember(received)}
        return Sent(payload, note, Model(received, own))

    def _encode_whole(self, model: Model, form: Form, names: bool) -> Sent:
        whole = form_of_models(form)
        vector, own = converted(model, form, whole)
        payload = self._whole.encode(vector, whole.layout, names=names, own=own)
        update = decode_update(payload, form.whole)
        received = converted(Model(update.dense(), own), whole, form)
        if self._changes is None:
            return Sent(payload, {}, received)
        return Sent(payload, {"version": self._remember(received.vector)}, received)

    def sent(self, node: int, sent: Sent) -> None:
        """Note what goes to a node: until it answers nobody knows which version it has."""
        self._has.pop(node, None)
        version = sent.note.get("version")
        if isinstance(version, bytes):
            self._sent[node] = version

    def confirm(self, node: int, note: Note) -> None:
        """Note which version a node says it has, if it is the one it was sent."""
        version = self._sent.pop(node, None)
        if version is not None and note.get("version") == version:
            self._has[node] = version

    def tidy(self) -> None:
        """Drop versions that no node has, and the oldest beyond the budget: before encoding."""
        held = {*self._has.values(), *self._sent.values()}
        for name in [name for name in self._versions if name not in held]:
            del self._versions[name]
        while sum(version.nbytes for version in self._versions.values()) > BUDGET:
            self._versions.popitem(last=False)

    def _remember(self, version: Vector) -> bytes:
        name = checksum(version)
        self._versions[name] = version
        self._versions.move_to_end(name)
        return name
