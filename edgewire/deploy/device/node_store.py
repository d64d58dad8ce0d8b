"""Stores a node's state of a run with its last reply, so that no message is trained twice.

The store is one record of the node's database (`node_database.py`). The record says what the state
holds; the bytes of arrays and of the reply are the record's blobs. State and reply are written in
one transaction, so they always match. The store also holds the state that this node had at the
run's last checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from edgewire.deploy.device.node_database import NodeDatabase, hash_of
from edgewire.protocol.lineage import (
    UNSTORED,
    VOLATILE,
    Checkpoint,
    RunLineage,
    StateChoice,
    choice_of,
)

_KINDS: dict[str, Any] = {each.__name__: each for each in (ArrayRecord, ConfigRecord, MetricRecord)}
_ANSWERED = 16  # stored ids of answered messages, to recognise a redelivered one
log = getLogger("edgewire")


@dataclass
class NodeStore:
    """The stored state of one run; `open_node_store` loads it.

    `name`: the name of the store's record. `state`: the run's state after the last reply.
    `answered`: the ids of the last answered messages, the newest at the end. `run_id`: the id of
    the Flower run that sent the last message: a resumed run is a new Flower run
    (`edgewire.protocol.lineage`). `node`: the id of the node to which the state belongs (0: not
    known).
    """

    database: NodeDatabase
    name: str
    state: RecordDict = field(default_factory=RecordDict)
    answered: list[str] = field(default_factory=list)
    run_id: int = 0
    node: int = 0
    _reply: str | None = None  # the hash of the last reply
    _records: list[Any] = field(default_factory=list)  # the state as the store's record says it
    _past: tuple[Checkpoint, list[Any]] | None = None  # a checkpoint, and the state there

    def reply(self) -> bytes:
        """Return the last reply that `commit` has written; b"" if it was not to be written.

        Raises `OSError`, and `ValueError` for a missing or damaged reply.
        """
        if self._reply is None:
            raise ValueError("no reply is kept")
        return self.database.blob(self.name, self._reply)

    def take_up(self, node: int, lineage: RunLineage | None) -> None:
        """Set `state` to the state that the current message builds on; `commit` writes it later.

        Usually this is the newest state. If the server has gone back to a checkpoint, it is the
        state at that checkpoint. If the node lacks that state, or if the state belongs to another
        node, `state` becomes empty, and the log says so. `lineage`: the run of the message and the
        runs that it resumes (`edgewire.protocol.lineage`); None: the message does not name them.
        """
        choice = StateChoice.STAY
        if lineage is not None:
            past = self._past and self._past[0]
            choice = choice_of(lineage, self.run_id, past)
        if self.node not in (0, node) and self.state:
            log.warning("the state kept of this run is of node %d: it starts anew", self.node)
            self._go_to([])
            self._past = None
        elif choice is StateChoice.ANEW and self.state:
            log.warning("the run has gone back to a checkpoint that this node's state is not of: "
                        "it starts anew")  # fmt: skip
            self._go_to([])
        elif choice is StateChoice.BACK and self._past is not None:
            log.info("the run was resumed: the state goes back to its checkpoint, too")
            self._go_to(self._past[1])
        self.node = node
        if lineage is not None:
            self.run_id, newest = lineage.run_id, lineage.newest
            if newest and (self._past is None or self._past[0] != newest):
                self._past = newest, self._records

    def _go_to(self, records: list[Any]) -> None:
        try:
            self.state, self._records = self._restored(records), records
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the state at the run's checkpoint is damaged (%s): it starts anew", error)
            self.state, self._records = RecordDict(), []

    def commit(self, state: RecordDict, message: str, reply: bytes) -> None:
        """Write the state and the reply to `message` atomically; both are durable on return.

        The record `VOLATILE` is not written, so it ends with this process. If it has a value
        `UNSTORED`, the reply is not written either, and `reply` returns b"" afterwards.
        Raises `OSError` if they cannot be written. The stored state does not change then.
        """
        blobs = dict[str, memoryview]()

        def put(content: memoryview) -> str:
            digest = hash_of(content)
            blobs[digest] = content
            return digest

        unstored = VOLATILE in state and UNSTORED in state[VOLATILE]
        last, records = put(memoryview(b"" if unstored else reply)), list[Any]()
        for name, record in state.items():
            if name == VOLATILE:
                continue
            entries = [[key, form, put(content)] for key, form, content in _entries(record)]
            kind = next(kind for kind, each in _KINDS.items() if isinstance(record, each))
            records.append([name, kind, entries])
        answered = [*self.answered[1 - _ANSWERED :], message]
        said = {
            "answered": answered,
            "reply": last,
            "records": records,
            "run_id": self.run_id,
            "node": self.node,
            "past": self._past,
        }
        keep = set(_hashes(self._past[1])) if self._past else ()
        self.database.write(self.name, json.dumps(said).encode(), blobs, keep)
        self.state, self.answered = state, answered
        self._reply, self._records = last, records

    def _load(self, said: dict[str, Any]) -> None:
        """Set all fields from the store's record. Raises an error if the record is damaged."""
        self.answered, self.run_id, self.node = said["answered"], said["run_id"], said["node"]
        self._reply, self._records = said["reply"], said["records"]
        self.reply()  # raises if it is damaged: a state without its reply is useless
        self.state = self._restored(self._records)
        if past := said["past"]:
            self._past = Checkpoint(*past[0]), past[1]

    def _restored(self, records: list[Any]) -> RecordDict:
        """Return the state that `records` describe."""
        state = RecordDict()
        for name, kind, entries in records:
            found = [(*each, self.database.blob(self.name, digest)) for *each, digest in entries]
            if kind == "ArrayRecord":
                state[name] = ArrayRecord({key: _array(form, blob) for key, form, blob in found})
            else:
                state[name] = _KINDS[kind].inflate(found[0][2])
        return state


def open_node_store(database: NodeDatabase, name: str) -> NodeStore:
    """Return the store with a name; an empty store if it is missing or damaged."""
    node_store = NodeStore(database, name)
    try:
        if (found := database.read(name)) is not None:
            node_store._load(json.loads(found))
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("the state of run %s is damaged (%s): it starts anew", name, error)
        return NodeStore(database, name)
    return node_store


def _hashes(records: list[Any]) -> Iterator[str]:
    """Yield the hashes of all blobs of a state, as `records` describe it."""
    return (digest for _, _, entries in records for _, _, digest in entries)


def _entries(record: ArrayRecord | ConfigRecord | MetricRecord) -> list[Any]:
    """Return a record's arrays, each [key, description, bytes]; a plain record is one entry."""
    if isinstance(record, ArrayRecord):
        return [[key, *_bytes_of(array)] for key, array in record.items()]
    return [["", [], memoryview(record.deflate())]]


def _bytes_of(array: Array) -> tuple[list[Any], memoryview]:
    """Return an array's description [dtype, shape, stype], and its bytes.

    A numpy array is stored as raw bytes, with stype "". Any other array is stored as Flower has
    serialized it.
    """
    vector = getattr(array, "vector", None)
    if isinstance(vector, np.ndarray) and not vector.dtype.hasobject:
        flat = np.ascontiguousarray(vector).reshape(-1)
        return [vector.dtype.str, list(vector.shape), ""], flat.view(np.uint8).data
    return [array.dtype, list(array.shape), array.stype], memoryview(array.data)


def _array(form: list[Any], content: bytes) -> Array:
    dtype, shape, stype = form
    if stype:
        return Array(dtype, tuple(shape), stype, content)
    return Array(np.ndarray(tuple(shape), dtype, content))
