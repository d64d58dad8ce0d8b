"""A worker of a parameter server: a message of a step in, the update of its samples out."""

from __future__ import annotations

import functools
import time
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from client.node import Node
from client.trainer import Metrics, Trainer, Vector
from compression import PayloadError, decode_update
from compression.flower import FlatArray, filled, payload_record
from compression.flower.answer import codec_seed, encode_answer
from compression.flower.arrays import Decoder
from compression.flower.state import NOTE, NodeState, checksum, own_array
from compression.layout import Layout
from compression.statistics import trained_entries
from conf.build import codec_of, server_optimizer_of
from task.replica import MODEL, VERSION, Replica

FOLLOWED = "replica"  # the record in a node's state that holds its copy of the model
MASKED = "masked-replica"  # what that would be with the mean applied only where the node sent


class Worker:
    """Follows the server's model, and answers each message with one compressed update.

    All nodes of a process share its trainer. Those whose replicas are equal share the arrays, too:
    whoever gets to a version first makes it for all.
    """

    def __init__(self, trainer: Trainer) -> None:
        config = trainer.config
        self._trainer = trainer
        self._config = config
        self._codec = codec_of(config)
        self._layout = trainer.layout
        self._trained = trained_entries(self._layout)
        self._keeps = self._codec.memory_bytes(self._layout) > 0
        self._optimizer = server_optimizer_of(config)
        self._gradient = config.strategy["update"] == "gradient"
        self._mask_received = bool(config.strategy.get("mask_received"))
        self._decode = Decoder(self._layout)
        self._snapshot: tuple[bytes, Replica] | None = None

    def step(self, message: Message, node: Node, context: Context) -> Message:
        """Bring the model to the server's version, make this round's update, answer with it.

        Reads `server-round`, `lr`, `applied`, `workers`, `proximal-mu`, `checksum` and what
        `strategy.versions` adds from the message's ConfigRecord. Raises `PayloadError` if the node
        cannot follow, or for an update that is not finite.
        """
        start = time.perf_counter()
        config = cast(ConfigRecord, message.content["config"])
        model = self._follow(config, cast(ArrayRecord, message.content["arrays"]), context)
        server_round = cast(int, config["server-round"])
        drift = 0.0
        if self._mask_received:
            model, drift = self._masked(model, config, message.content, context)
        update, metrics = self._update(node, model, server_round, config)
        if self._mask_received:
            metrics["drift"] = drift
        content = self._encoded(update, metrics, config, node, context)
        metrics["seconds"] = time.perf_counter() - start
        content["metrics"] = filled(MetricRecord(), metrics)
        return Message(content, reply_to=message)

    def _update(
        self, node: Node, model: Vector, server_round: int, config: ConfigRecord
    ) -> tuple[Vector, Metrics]:
        """Return the round's update, float32 (n,), which the server's optimiser will subtract."""
        if self._gradient:
            return self._trainer.gradient(node, model, number=server_round - 1)
        trained, metrics = self._trainer.train(
            node,
            model,
            server_round=server_round,
            lr=cast(float, config["lr"]),
            proximal_mu=cast(float, config.get("proximal-mu", 0.0)),
        )
        update: Vector = model - trained
        update[self._trained :] = trained[self._trained :]  # statistics: values
        return update, metrics

    def _encoded(
        self, update: Vector, metrics: Metrics, config: ConfigRecord, node: Node, context: Context
    ) -> RecordDict:
        server_round = cast(int, config["server-round"])
        seed = codec_seed(self._config.seed, node.index, server_round)
        if not self._keeps:
            payload = self._codec.encode(update, self._layout, seed=seed)
            return RecordDict({"arrays": payload_record(payload)})
        payload = encode_answer(
            self._codec,
            update,
            self._layout,
            NodeState(context.state),
            applied=cast(int, config["applied"]),
            sequence=server_round,
            seed=seed,
            loss=cast(float, metrics["loss"]),
            workers=cast(int, config.get("workers", 0)),
        )
        note = ConfigRecord({"sequence": server_round})
        return RecordDict({"arrays": payload_record(payload), NOTE: note})

    def _follow(self, config: ConfigRecord, arrays: ArrayRecord, context: Context) -> Vector:
        """Return the model of the server's newest version, float32 (n,): read only."""
        if "base" not in config and "version" not in config:
            return self._decode(arrays[MODEL].data).dense()
        if "version" in config:
            replica = self._start(config, arrays)
            _keep(replica, context)
        else:
            replica = self._kept(context)
            self._catch_up(replica, config, arrays)
        if "checksum" in config and checksum(replica.model) != config["checksum"]:
            del context.state[FOLLOWED]
            raise PayloadError("this node's model is not the server's; it will be sent whole")
        return replica.model

    def _masked(
        self, followed: Vector, config: ConfigRecord, content: RecordDict, context: Context
    ) -> tuple[Vector, float]:
        """Return the model as line 7 of CE-SGD's Algorithm 2 has it, and its distance from x.

        The server's mean is multiplied by this node's own selection vector V, that of its last
        update, before the step. So the copies of the model drift apart.
        """
        arrays = cast(ArrayRecord, content["arrays"])
        if "version" in config:
            kept = {n: a.copy() for n, a in self._kept(context).arrays.items()}
            masked = Replica(self._optimizer, self._trained, kept)
        else:
            masked = self._kept(context, MASKED)
            sent = NodeState(context.state).memory["sent"]
            self._catch_up(masked, config, arrays, sent)
        _keep(masked, context, MASKED)
        return masked.model, float(np.linalg.norm(masked.model - followed))

    def _start(self, config: ConfigRecord, arrays: ArrayRecord) -> Replica:
        """Return the replica that a snapshot holds: one for all nodes that get the same one."""
        payload = arrays[MODEL].data
        if self._snapshot is None or self._snapshot[0] is not payload:
            made: dict[str, NDArray[Any]] = {
                VERSION: np.array([config["version"]], dtype=np.int64),
                MODEL: decode_update(payload, self._layout).dense().copy(),
            }
            for name in self._optimizer.names:
                layout = Layout((name,), ((self._trained,),), ("float32",))
                made[name] = decode_update(arrays[name].data, layout).dense().copy()
            self._snapshot = payload, Replica(self._optimizer, self._trained, made)
        replica = self._snapshot[1]
        if replica.version != config["version"]:  # others have gone on: this node has its own
            self._snapshot = None
            return self._start(config, arrays)
        return replica

    def _kept(self, context: Context, name: str = FOLLOWED) -> Replica:
        """Return a replica in a node's state."""
        if name not in context.state:
            raise PayloadError("this node has no model to update; it will be sent whole")
        record = cast(ArrayRecord, context.state[name])
        kept = {name: own_array(array) for name, array in record.items()}
        replica = Replica(self._optimizer, self._trained, kept)
        if any(record[name].__dict__.get("vector") is not kept[name] for name in kept):
            _keep(replica, context, name)  # it came from another process, as a copy
        return replica

    def _catch_up(
        self,
        replica: Replica,
        config: ConfigRecord,
        arrays: ArrayRecord,
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Apply the updates that the replica lacks; it may have some of them already.

        `mask`, (trained entries,): apply to these parameters alone.
        """
        base, rates = cast(int, config["base"]), cast(list[float], config["rates"])
        if not base <= replica.version <= base + len(rates):
            raise PayloadError(
                f"this node's model has version {replica.version}, the updates begin after {base}"
            )
        for version in range(replica.version + 1, base + len(rates) + 1):
            update = self._decode(arrays[str(version)].data)
            indices, values = update.indices, update.values
            if mask is not None:
                indices = np.arange(len(values), dtype=np.uint32) if indices is None else indices
                every = np.ones(self._layout.size, dtype=np.bool_)
                every[: len(mask)] = mask
                indices, values = indices[every[indices]], values[every[indices]]
            replica.apply(indices, values, rates[version - base - 1])


def _keep(replica: Replica, context: Context, name: str = FOLLOWED) -> None:
    arrays = {key: FlatArray(array) for key, array in replica.arrays.items()}
    context.state[name] = filled(ArrayRecord(), arrays)


@functools.lru_cache(maxsize=1)
def worker_for(trainer: Trainer) -> Worker:
    """Return the worker that uses a process's trainer."""
    return Worker(trainer)
