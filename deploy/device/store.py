"""What a node keeps of one run on its disk: the run's `Context.state`, and its last reply.

Both are written together, as one file that is there whole or not at all: memory that goes with a
reply is never without it, nor the other way round. Arrays lie in it as raw bytes. Those that have
not changed stay in the file in which they are (`blobs.py`); a file goes when nothing in it counts
any more. So does the state in which the run's last checkpoint has found this node.
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

_SMALL = 4096  # bytes: what is no longer is written every time
_ANSWERED = 16  # ids that are kept: a message that comes twice is replied to once
Arrays = dict[tuple[str, str], Blob]  # by the record's name, and the array's in it
log = getLogger("edgewire")


@dataclass
class Past:
    """The state in which a checkpoint has found the node: records, as a file's head has them."""

    checkpoint: Checkpoint
    records: list[Any]

    @property
    def files(self) -> set[int]:
        """The files in which it is."""
        return {blob.file for blob in _blobs(self.records)}


@dataclass
class NodeStore:
    """One run's folder. `open_shelf` reads it.

    `state`: the run's state as it was after the last reply; `answered`: the ids of the messages
    that were replied to last, the newest at the end; `life`: the run's at that time, `node`: the id
    of the node that it is of (0: nobody has said).
    """

    folder: Path
    state: RecordDict = field(default_factory=RecordDict)
    answered: list[str] = field(default_factory=list)
    life: int = 0
    node: int = 0
    _number: int = 0  # of the newest file
    _reply: Blob | None = None
    _arrays: Arrays = field(default_factory=dict)
    _records: list[Any] = field(default_factory=list)  # of the state, as it is on the disk
    _past: Past | None = None

    def reply(self) -> bytes:
        """Return the last reply as it was given to `commit`. Raises `OSError`, `ValueError`."""
        if self._reply is None:
            raise ValueError("no reply is kept")
        return read(self.folder, self._reply)

    def take_up(self, node: int, lives: RunLineage | None) -> None:
        """Make `state` what the message at hand goes on from; the next `commit` writes it down.

        That is another than the last one after a resumed run's server has gone back to a
        checkpoint. A state that is not of this node, or of a course that the run has left, is
        dropped, and that is said. `lives`: what the message says; None: nothing.
        """
        turn = Turn.STAY
        if lives is not None:
            past = None if self._past is None else self._past.checkpoint
            turn = turn_of(lives, self.life, past)
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
        if lives is not None:
            self.life, newest = lives.life, lives.newest
            if newest and (self._past is None or self._past.checkpoint != newest):
                self._past = Past(newest, self._records)

    def _go_to(self, records: list[Any]) -> None:
        try:
            self.state, self._arrays = _restored(self.folder, records)
            self._records = records
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the state at the run's checkpoint is damaged (%s): it starts anew", error)
            self.state, self._arrays, self._records = RecordDict(), {}, []

    def commit(self, state: RecordDict, message: str, reply: bytes) -> None:
        """Write the state and the reply to `message`; both are durable when this returns.

        Raises `OSError` if that cannot be; then all is as it was before.
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
        """Return the arrays that stay where they are: not small, and most of their file."""
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
    """Return what a run's folder holds; an empty one if there is none, or if it is damaged."""
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
    read(folder, reply)  # it must be whole: the state is what came after it
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
        past and Past(Checkpoint(*past[0]), past[1]),
    )


def _restored(folder: Path, records: list[Any]) -> tuple[RecordDict, Arrays]:
    """Return the state that a file's head describes, and where its arrays are."""
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
    """Yield where all is that a file's head describes."""
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
    """Return what an array is, and its bytes: raw, where it is over a vector of numpy's."""
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
