"""Attacks: functions that change a malicious node's replies, for tests of the server."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from xxhash import xxh3_64_intdigest

from client.app import app as honest
from client.node import node_of
from client.training import trainer_for
from compression import decode_update, describe, make_codec
from compression.batchnorm import own_name
from compression.flower import payload_of, payload_record
from compression.flower.headers import HEADER
from compression.flower.records import STYPE, payload_records
from conf import load_config

BAD = 0  # the malicious node's partition
Attack = Callable[[Message, Message, Context], Message]


def replaced(reply: Message, **records: Any) -> Message:
    """Return a reply with other records; None removes a record."""
    kept = {k: v for k, v in reply.content.items() if k not in records}
    found = {k: v for k, v in records.items() if v is not None}
    reply.content = RecordDict({**kept, **found})
    return reply


def parcel(reply: Message) -> tuple[str, bytes] | None:
    return payload_of(reply.content)


def with_payload(change: Callable[[bytes], bytes], reply: Message) -> Message:
    """Change all payloads of a reply; nodes of a cut model send several."""
    found = parcel(reply)
    if found is None:
        return reply
    payloads = {k: change(array.data) for k, array in reply.content[found[0]].items()}
    return replaced(reply, **{found[0]: payload_records(payloads)})


def unchanged(values: Any) -> Any:
    return values


def with_values(
    change: Callable[[Any], Any],
    reply: Message,
    context: Context,
    counted: Callable[[Any], Any] = unchanged,
) -> Message:
    """Return a reply with changed values; its payload is valid and encoded by the same method.

    `change` gets the update's float32 vector; `counted` gets each integer tensor, such as
    BatchNorm's counters. Tensors that must be sent exactly are sent exactly; otherwise the server
    refuses the payload.
    """
    known = {layout.size: layout for layout in [layout_in(context)] if layout is not None}

    def encoded(payload: bytes) -> bytes:
        update, said = decode_update(payload), describe(payload)
        layout = known.get(update.layout.size, update.layout)
        stages = {"quantizer": said.quantizer, "coder": said.coder}
        whole = said.sparsifier == "dense"  # the server also checks which tensors are exact
        codec = make_codec(**stages) if whole else make_codec("topk", density=1.0, **stages)
        values = np.ascontiguousarray(change(update.dense()), dtype=np.float32)
        own = tuple(
            each._replace(array=counted(each.array)) if each.array.dtype.kind == "i" else each
            for each in update.own
        )
        made = bytearray(codec.encode(values, layout, memory={}, own=own))
        made[4] = payload[4]  # the sparsifier's id
        return bytes(made[:-8]) + xxh3_64_intdigest(made[:-8]).to_bytes(8, "little")

    try:
        return with_payload(encoded, reply)
    except Exception:
        return with_payload(lambda payload: payload[:-9], reply)


def with_metrics(change: dict[str, Any], reply: Message) -> Message:
    name = next((k for k, v in reply.content.items() if isinstance(v, MetricRecord)), None)
    if name is None:
        return reply
    said = {k: v for k, v in {**reply.content[name], **change}.items() if v is not None}
    return replaced(reply, **{name: MetricRecord(said)})


def filled_with(value: float, values: Any) -> Any:
    return np.full_like(values, value)


def metrics(**change: Any) -> Attack:
    said = {name.replace("_", "-"): value for name, value in change.items()}
    return lambda message, reply, context: with_metrics(said, reply)


def payload(change: Callable[[bytes], bytes]) -> Attack:
    return lambda message, reply, context: with_payload(change, reply)


def values(change: Callable[[Any], Any]) -> Attack:
    return lambda message, reply, context: with_values(change, reply, context)


def statistics(name: str, value: float) -> Attack:
    """Return an attack that sets one of BatchNorm's statistics to `value` in all channels."""

    def attack(message: Message, reply: Message, context: Context) -> Message:
        def changed(entries: Any) -> Any:
            if layout is None or entries.size != layout.size:
                return entries
            entries = entries.copy()
            for tensor, own in enumerate(map(own_name, layout.names)):
                if own == name:
                    entries[layout.offsets[tensor] : layout.offsets[tensor + 1]] = value
            return entries

        layout = layout_in(context)
        return with_values(changed, reply, context)

    return attack


def counters(value: int) -> Attack:
    """Return an attack that sets each of BatchNorm's counters of mini-batches to `value`."""
    changed = partial(np.full_like, fill_value=value)
    return lambda message, reply, context: with_values(unchanged, reply, context, changed)


def layout_in(context: Context) -> Any:
    """Return the layout of the run's model; None for a cut model."""
    config, folder = configured(context)
    return None if "segments" in config.strategy else trainer_for(config, folder).layout


def configured(context: Context) -> tuple[Any, str | None]:
    """Return the configuration and the data folder of the node's trainer."""
    node = node_of(context)
    return load_config(context.run_config, node.count, context.node_config), node.folder


def fails(message: Message, reply: Message, context: Context) -> Message:
    raise RuntimeError("no power " * 1000)


def renamed(message: Message, reply: Message, context: Context) -> Message:
    reply.content = RecordDict({f"x{k}": v for k, v in reply.content.items() if k != HEADER})
    return reply


def renamed_metrics(message: Message, reply: Message, context: Context) -> Message:
    found = {k: v for k, v in reply.content.items() if isinstance(v, MetricRecord)}
    rest = {k: v for k, v in reply.content.items() if k not in found}
    reply.content = RecordDict({**rest, **{f"x{k}": v for k, v in found.items()}})
    return reply


def two_models(message: Message, reply: Message, context: Context) -> Message:
    found = parcel(reply)
    return reply if found is None else replaced(reply, more=payload_record(found[1]))


def no_model(message: Message, reply: Message, context: Context) -> Message:
    found = parcel(reply)
    return reply if found is None else replaced(reply, **{found[0]: None})


def plain_model(message: Message, reply: Message, context: Context) -> Message:
    found = parcel(reply)
    record = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    return reply if found is None else replaced(reply, **{found[0]: record})


def other_header(said: dict[str, Any]) -> Attack:
    def attack(message: Message, reply: Message, context: Context) -> Message:
        header = reply.content.get(HEADER, ConfigRecord())
        return replaced(reply, **{HEADER: ConfigRecord({**header, **said})})

    return attack


def replayed(message: Message, reply: Message, context: Context) -> Message:
    """Always reply with the payload of the first reply."""
    kept = context.state.config_records.get("first")
    found = parcel(reply)
    if found is None:
        return reply
    if kept is None:
        context.state["first"] = ConfigRecord({"payload": found[1]})
        return reply
    return replaced(reply, **{found[0]: payload_record(kept["payload"])})


def replayed_whole(message: Message, reply: Message, context: Context) -> Message:
    """Always reply with the first reply, including its number and its metrics."""
    kept = {k: v for k, v in context.state.items() if k.startswith("first ")}
    if not kept:
        for name, record in reply.content.items():
            context.state[f"first {name}"] = copy.deepcopy(record)
        return reply
    reply.content = RecordDict({k.removeprefix("first "): v for k, v in kept.items()})
    return reply


def esgd_named(message: Message, reply: Message, context: Context) -> Message:
    """Reply with a payload of eSGD, for which the server would store indices, and with a seed."""

    def encoded(data: bytes) -> bytes:
        update = decode_update(data)
        codec = make_codec("esgd", drop=0.5)
        return codec.encode(update.dense(), update.layout, memory={}, seed=1, own=update.own)

    return other_header({"sequence": 1})(message, with_payload(encoded, reply), context)


def garbled(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]


def other_model(data: bytes) -> bytes:
    from compression import Layout

    layout = Layout(("w",), ((7,),), ("float32",))
    return make_codec().encode(np.ones(7, np.float32), layout)


BEYOND = 1e18
ATTACKS: dict[str, Attack] = {
    "raises": fails,
    "records renamed": renamed,
    "metrics renamed": renamed_metrics,
    "two models": two_models,
    "no model": no_model,
    "a model without a payload": plain_model,
    "nothing at all": lambda m, r, c: Message(RecordDict(), reply_to=m),
    "a cut payload": payload(lambda data: data[:-9]),
    "an empty payload": payload(lambda data: b""),
    "a flipped byte": payload(garbled),
    "another model": payload(other_model),
    "a million bytes of noise": payload(lambda data: np.random.default_rng(0).bytes(1_000_000)),
    "3e38 everywhere": values(partial(filled_with, 3e38)),
    "1e20 everywhere": values(partial(filled_with, 1e20)),
    "1e5 everywhere": values(partial(filled_with, 1e5)),
    "a million times its update": values(lambda v: v * np.float32(1e6)),
    "turned round, times 1e4": values(lambda v: v * np.float32(-1e4)),
    "noise of length 1e4": values(
        lambda v: np.random.default_rng(1).normal(size=v.shape) * 1e4 / np.sqrt(v.size)
    ),
    "one entry of 1e6": values(lambda v: np.where(np.arange(v.size) == 0, 1e6, v)),
    "zeros": values(np.zeros_like),
    "the same for ever": replayed,
    "its first reply for ever": replayed_whole,
    "a weight of 1e18": metrics(num_examples=10**18),
    "a weight of 1e9": metrics(num_examples=10**9),
    "a weight of 0": metrics(num_examples=0),
    "a weight below 0": metrics(num_examples=-5),
    "a list of weights": metrics(num_examples=[1, 2]),
    "no weight": metrics(num_examples=None),
    "a loss of NaN": metrics(loss=float("nan")),
    "an infinite loss": metrics(loss=float("inf")),
    "a loss below 0": metrics(loss=-1.0),
    "a loss of 0": metrics(loss=0.0),
    "a loss of 1e30": metrics(loss=1e30),
    "no loss": metrics(loss=None),
    "a weight of a thousand bits": metrics(num_examples=10**300),
    "steps of a thousand bits": metrics(num_steps=10**300),
    "gradients refused": metrics(gradients_refused=1),
    "steps of NaN": metrics(num_steps=float("nan")),
    "a million metrics": metrics(more=[1.0] * 100_000),
    "a strange note": other_header({"hello": "there"}),
    "a note of a megabyte": other_header({"hello": "x" * 10**6}),
    "a note of another type": lambda m, r, c: replaced(r, **{HEADER: MetricRecord({"version": 1})}),
    "a version it has not": other_header({"version": 10**6}),
    "a sequence from far ahead": other_header({"sequence": 10**15}),
    "a model where an update is asked": other_header({"whole": 1}),
    "other tensors' names": other_header({"named": 1}),
    "another method's payload": esgd_named,
    "an array of another kind": lambda m, r, c: replaced(
        r, arrays=ArrayRecord({"payload": Array("float32", (4,), STYPE, b"1234")})
    ),
}


STATISTICS: dict[str, Attack] = {  # for a model with BatchNorm
    "a mean of 2": statistics("running_mean", 2),
    "a mean of 5": statistics("running_mean", 5),
    "a mean of 1e5": statistics("running_mean", 1e5),
    "a variance of 0": statistics("running_var", 0),
    "a variance of 1e-12": statistics("running_var", 1e-12),
    "a variance of 1e6": statistics("running_var", 1e6),
    "a counter below 0": counters(-1),
    "a counter of 2^62": counters(1 << 62),
}


LIES: dict[str, Attack] = {  # attacks that look honest; docs/bad-nodes.md lists them as undefended
    "turned round, times 9": values(lambda v: v * np.float32(-9)),
    "turned round, times 50": values(lambda v: v * np.float32(-50)),
}


def at_once(message: Message, reply: Message, context: Context) -> Message:
    """Send zeros and report 0 steps, which take no time on a virtual clock."""
    return with_metrics({"num-steps": 0}, with_values(np.zeros_like, reply, context))


def app_with(attack: Attack, bad: int = BAD) -> Callable[[Message, Context], Message]:
    """Return the project's ClientApp; the node with partition `bad` attacks with every reply."""

    def answer(message: Message, context: Context) -> Message:
        reply = honest(message, context)
        if context.node_config["partition-id"] != bad or reply.has_error():
            return reply
        return attack(message, copy.deepcopy(reply), context)

    return answer


def all_in_turn() -> Callable[[Message, Context], Message]:
    """Return the project's ClientApp; the node with partition `BAD` makes all attacks in turn.

    The message's number selects the attack, because a failing node may lose its own count.
    """
    attacks = list(ATTACKS.values())

    def attack(message: Message, reply: Message, context: Context) -> Message:
        count = message.content.config_records[HEADER]["number"]
        return attacks[count % len(attacks)](message, reply, context)

    return app_with(attack)


class AllInTurn(ClientApp):
    """The app of `all_in_turn`, for engines that load an app from its folder."""

    def __call__(self, message: Message, context: Context) -> Message:
        return all_in_turn()(message, context)


app = AllInTurn()
