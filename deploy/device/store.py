"""A node's store of one run on disk: the run's `Context.state`, and the node's last reply.

One file holds both and is written atomically, so a state never exists without its reply, or a
reply without its state. Arrays are stored as raw bytes. An unchanged array stays in the file that
holds it (`blobs.py`); a file is removed when nothing refers to it. The store also keeps the state
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
from protocol.lineage import Checkpoint, RunLineage, Turn, turn_of

_SMALL = 4096  # bytes: an array up to this size is written every time
_ANSWERED = 16  # ids of answered messages: a redelivered one is not computed again
Arrays = dict[tuple[str, str], Blob]  # (name of the record, name of the array in it) -> its place
log = getLogger("edgewire")


@dataclass
class CheckpointedState:
    """The node's state at a checkpoint: its records in the form of a file's head."""

    checkpoint: Checkpoint
    records: list[Any]

    @property
    def files(self) -> set[int]:
        """The numbers of the files that hold it."""
        return {blob.file for blob in _blobs(self.records)}


@dataclass
class NodeStore:
    """The folder of one run. `open_shelf` reads it.

    `state`: the run's state after the last reply; `answered`: the ids of the last answered
    messages, the newest at the end; `life`: the number of the run's life (`RunLineage`) at that
    time; `node`: the id of the node whose state it is (0: not known).
    """

    folder: Path
    state: RecordDict = field(default_factory=RecordDict)
    answered: list[str] = field(default_factory=list)
    life: int = 0
    node: int = 0
    _number: int = 0  # number of the newest file
    _reply: Blob | None = None
    _arrays: Arrays = field(default_factory=dict)
    _records: list[Any] = field(default_factory=list)  # the state as a file's head describes it
    _past: CheckpointedState | None = None

    def reply(self) -> bytes:
        """Return the last reply that `commit` was given. Raises `OSError` and `ValueError`."""
        if self._reply is None:
            raise ValueError("no reply is kept")
        return read(self.folder, self._reply)

    def take_up(self, node: int, lineage: RunLineage | None) -> None:
        """Set `state` to the state that the current message builds on; `commit` will write it.

        When a resumed run's server has gone back to a checkpoint, that is not the last state but
        the one at the checkpoint. A state of another node, or of a part of the run that the server
        has gone back behind, is dropped with a line in the log. `lineage`: the lineage that the
        message carries; None: it carries none.
        """
        turn = Turn.STAY
        if lineage is not None:
            past = None if self._past is None else self._past.checkpoint
            turn = turn_of(lineage, self.life, past)
        if self.node not in (0, node) and self.state:
            log.warning("the state kept of this run is of node %d: it starts anew", self.node)
            self._go_to([])
            self._past = None
        elif turn is Turn.ANEW and self.state:
            log.warning("the run has gone back to a checkpoint that this node's state is not of: "
                        "it starts anew")  # fmt: skip
            self._go_to([])
        elif turn is Turn.BACK and self._past is not None:
            log.info("the run was resumed: the state goes back to its checkpoint, too")
            self._go_to(self._past.records)
        self.node = node
        if lineage is not None:
            self.life, newest = lineage.life, lineage.newest
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

        Raises `OSError` if they cannot be written; then nothing has changed.
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
            "life": self.life,
            "node": self.node,
            "past": past and [past.checkpoint, past.records],
        }
        write(self.folder, number, json.dumps(head).encode(), draft.blobs)
        self.state, self.answered = state, answered
        self._number, self._reply, self._arrays, self._records = number, last, arrays, records
        needed = {number, *(blob.file for blob in arrays.values())}
        remove_others(self.folder, needed | (past.files if past else set()))

    def _unchanged(self, found: dict[tuple[str, str], memoryview]) -> Arrays:
        """Return the arrays that need not be written again.

        Such an array is unchanged and larger than `_SMALL`, and such arrays make more than half of
        its file: else a file would stay on disk for a small share of its bytes.
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


def open_shelf(folder: Path) -> NodeStore:
    """Return the store in a run's folder; an empty one if it is missing or damaged."""
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
    read(folder, reply)  # raises if it is damaged: the state is of no use without its reply
    state, arrays = _restored(folder, head["records"])
    past = head.get("past")
    return NodeStore(
        folder,
        state,
        head["answered"],
        head.get("life", 0),
        head.get("node", 0),
        number,
        reply,
        arrays,
        head["records"],
        past and CheckpointedState(Checkpoint(*past[0]), past[1]),
    )


def _restored(folder: Path, records: list[Any]) -> tuple[RecordDict, Arrays]:
    """Return the state that a file's head describes, and the places of its arrays."""
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
    """Yield the places of all blobs that a file's head describes."""
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
    """Return an array's description, and its bytes: raw ones if numpy has serialized it."""
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
