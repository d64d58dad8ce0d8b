"""A node's store of one run on disk: the run's `Context.state`, and the node's last reply.

One file holds the state and the reply, and is written atomically. So they always match. Arrays are
stored as raw bytes. An unchanged array is not written again: the new file refers to the file that
holds it (`blobs.py`). A file is removed when nothing refers to it. The store also holds the state
that this node had at the run's last checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import (
    config_record_from_proto,
    config_record_to_proto,
    metric_record_from_proto,
    metric_record_to_proto,
)
from flwr.proto import recorddict_pb2
from xxhash import xxh3_64_hexdigest

from deploy.device.blobs import (
    Blob,
    Draft,
    head_of,
    numbers_in,
    read,
    remove_others,
    size_of,
    write,
)
from protocol.lineage import Checkpoint, RunLineage, StateChoice, choice_of

_SMALL = 4096  # bytes: an array up to this size is always written again
_ANSWERED = 16  # stored ids of answered messages, to recognise a redelivered one
Arrays = dict[tuple[str, str], Blob]  # (record's name, array's name) -> place on disk
log = getLogger("edgewire")


@dataclass
class CheckpointedState:
    """The node's state at a checkpoint of the run.

    `records`: the state as the head of a file (`blobs.py`) describes it.
    """

    checkpoint: Checkpoint
    records: list[Any]

    @property
    def files(self) -> set[int]:
        """The numbers of the files that hold this state."""
        return {blob.file for blob in _blobs(self.records)}


@dataclass
class NodeStore:
    """The stored state of one run; `open_node_store` loads it.

    `state`: the run's state after the last reply. `answered`: the ids of the last answered
    messages, the newest at the end. `run_id`: the id of the Flower run that sent the last message:
    a resumed run is a new Flower run (`protocol.lineage`). `node`: the id of the node to which the
    state belongs (0: not known).
    """

    folder: Path
    state: RecordDict = field(default_factory=RecordDict)
    answered: list[str] = field(default_factory=list)
    run_id: int = 0
    node: int = 0
    _number: int = 0  # number of the newest file
    _reply: Blob | None = None
    _arrays: Arrays = field(default_factory=dict)
    _records: list[Any] = field(default_factory=list)  # the state as a file's head describes it
    _past: CheckpointedState | None = None

    def reply(self) -> bytes:
        """Return the last reply that `commit` has written.

        Raises `OSError`, and `ValueError` for a missing or damaged reply.
        """
        if self._reply is None:
            raise ValueError("no reply is kept")
        return read(self.folder, self._reply)

    def take_up(self, node: int, lineage: RunLineage | None) -> None:
        """Set `state` to the state that the current message builds on; `commit` writes it later.

        Usually this is the newest state. If the server has gone back to a checkpoint, it is the
        state at that checkpoint. If the node lacks that state, or if the state belongs to another
        node, `state` becomes empty, and the log says so. `lineage`: the run of the message and the
        runs that it resumes (`protocol.lineage`); None: the message does not name them.
        """
        choice = StateChoice.STAY
        if lineage is not None:
            past = None if self._past is None else self._past.checkpoint
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
            self._go_to(self._past.records)
        self.node = node
        if lineage is not None:
            self.run_id, newest = lineage.run_id, lineage.newest
            if newest and (self._past is None or self._past.checkpoint != newest):
                self._past = CheckpointedState(newest, self._records)

    def _go_to(self, records: list[Any]) -> None:
        try:
            self.state, self._arrays = _restored(self.folder, records)
            self._records = records
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the state at the run's checkpoint is damaged (%s): it starts anew", error)
            self.state, self._arrays, self._records = RecordDict(), {}, []

    def commit(self, state: RecordDict, message: str, reply: bytes) -> None:
        """Write the state and the reply to `message` atomically; both are durable on return.

        Raises `OSError` if they cannot be written. The stored state does not change then.
        """
        number = self._number + 1
        draft = Draft(number)
        last = draft.put(memoryview(reply))
        found = {
            (name, key): _bytes_of(array)
            for name, record in state.items()
            if isinstance(record, ArrayRecord)
            for key, array in record.items()
        }
        arrays = self._unchanged({place: content for place, (_, content) in found.items()})
        for place, (_, content) in found.items():
            if place not in arrays:
                arrays[place] = draft.put(content)
        records = list[Any]()
        for name, record in state.items():
            if isinstance(record, ArrayRecord):
                entries = [[k, found[name, k][0], vars(arrays[name, k])] for k in record]
                records.append([name, "arrays", entries])
            else:
                kind = "config" if isinstance(record, ConfigRecord) else "metrics"
                records.append([name, kind, vars(draft.put(_plain_bytes(record)))])
        answered = [*self.answered[1 - _ANSWERED :], message]
        past = self._past
        head = {
            "answered": answered,
            "reply": vars(last),
            "records": records,
            "run_id": self.run_id,
            "node": self.node,
            "past": past and [past.checkpoint, past.records],
        }
        write(self.folder, number, json.dumps(head).encode(), draft.blobs)
        self.state, self.answered = state, answered
        self._number, self._reply, self._arrays, self._records = number, last, arrays, records
        needed = {number, *(blob.file for blob in arrays.values())}
        remove_others(self.folder, needed | (past.files if past else set()))

    def _unchanged(self, found: dict[tuple[str, str], memoryview]) -> Arrays:
        """Return the arrays that need not be written again, with their places on disk.

        They are unchanged and have more than `_SMALL` bytes. Arrays that make up at most half of
        their file are written again, so that the file can be removed.
        """
        same, live = Arrays(), dict[int, int]()
        for place, content in found.items():
            blob = self._arrays.get(place)
            if blob is None or blob.size != content.nbytes or blob.size <= _SMALL:
                continue
            if blob.mark == xxh3_64_hexdigest(content):
                same[place] = blob
                live[blob.file] = live.get(blob.file, 0) + blob.size
        sizes = {file: size_of(self.folder, file) for file in live}
        return {p: b for p, b in same.items() if live[b.file] * 2 > sizes[b.file]}


def open_node_store(folder: Path) -> NodeStore:
    """Return a run's store from its folder; an empty store if the files are missing or damaged."""
    folder.mkdir(parents=True, exist_ok=True)
    newest = max(numbers_in(folder), default=0)
    if newest:
        try:
            return _opened(folder, newest)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the state in %s is damaged (%s): it starts anew", folder, error)
    return NodeStore(folder, _number=newest)


def _opened(folder: Path, number: int) -> NodeStore:
    head = json.loads(head_of(folder, number))
    reply = Blob(**head["reply"])
    read(folder, reply)  # raises if it is damaged: a state without its reply is useless
    state, arrays = _restored(folder, head["records"])
    past = head.get("past")
    return NodeStore(
        folder,
        state,
        head["answered"],
        head.get("run_id", 0),
        head.get("node", 0),
        number,
        reply,
        arrays,
        head["records"],
        past and CheckpointedState(Checkpoint(*past[0]), past[1]),
    )


def _restored(folder: Path, records: list[Any]) -> tuple[RecordDict, Arrays]:
    """Return the state that `records`, from a file's head, describe, and its arrays' places."""
    state, arrays = RecordDict(), Arrays()
    for name, kind, content in records:
        if kind == "arrays":
            record = ArrayRecord()
            for key, form, place in content:
                arrays[name, key] = blob = Blob(**place)
                record[key] = _array(form, read(folder, blob))
            state[name] = record
        else:
            state[name] = _plain(kind, read(folder, Blob(**content)))
    return state, arrays


def _blobs(records: list[Any]) -> Iterator[Blob]:
    """Yield the places of all blobs that `records`, from a file's head, name."""
    for _, kind, content in records:
        for place in [each[2] for each in content] if kind == "arrays" else [content]:
            yield Blob(**place)


def _plain_bytes(record: ConfigRecord | MetricRecord) -> memoryview:
    if isinstance(record, ConfigRecord):
        return memoryview(config_record_to_proto(record).SerializeToString())
    return memoryview(metric_record_to_proto(record).SerializeToString())


def _plain(kind: str, content: bytes) -> ConfigRecord | MetricRecord:
    if kind == "config":
        return config_record_from_proto(recorddict_pb2.ConfigRecord.FromString(content))
    return metric_record_from_proto(recorddict_pb2.MetricRecord.FromString(content))


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
