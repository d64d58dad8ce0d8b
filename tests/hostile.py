"""Attacks: what a malicious node may reply, for tests of the server."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from edgewire.client.app import app as honest
from edgewire.client.node import node_of
from edgewire.client.training import trainer_for
from edgewire.compression.batchnorm import own_name
from edgewire.compression.decoder import decode_update, describe
from edgewire.compression.flower import payload_of, payload_record
from edgewire.compression.flower.headers import HEADER
from edgewire.compression.flower.native_tensors import NATIVE, Initial, native_payload
from edgewire.compression.flower.records import STYPE
from edgewire.compression.make import make_codec
from edgewire.conf.build import vectors_of
from edgewire.conf.load import load_config
from tests import spoil
from tests.compression.surgery import encoded_again

BAD = 0  # the malicious node's partition
# An attack changes the reply in place, or returns another one.
Attack = Callable[[Message, Message, Context], Message | None]


def in_place(change: Callable[[Message], object]) -> Attack:
    def attack(message: Message, reply: Message, context: Context) -> None:
        change(reply)

    return attack


def metrics(**changes: Any) -> Attack:
    return in_place(spoil.metrics(**changes))


def header(**changes: Any) -> Attack:
    return in_place(spoil.header(**changes))


def payload(change: Callable[[bytes], bytes]) -> Attack:
    return in_place(spoil.payload(change))


def unchanged(values: Any) -> Any:
    return values


def with_values(
    change: Callable[[Any], Any],
    reply: Message,
    context: Context,
    counted: Callable[[Any], Any] = unchanged,
) -> None:
    """Change the values of a reply; its payload is valid and encoded by the same method.

    `change` gets the update's float32 vector; `counted` gets each integer tensor, such as
    BatchNorm's counters. Tensors that must be sent exactly are sent exactly; otherwise the server
    refuses the payload.
    """
    known = {layout.size: layout for layout in [layout_in(context)] if layout is not None}

    def encoded(payload: bytes) -> bytes:
        update = decode_update(payload)
        layout = known.get(update.layout.size, update.layout)
        own = tuple(
            each._replace(array=counted(each.array)) if each.array.dtype.kind == "i" else each
            for each in update.own
        )
        whole = describe(payload).sparsifier == "dense"  # the server checks which are exact
        return encoded_again(payload, change(update.dense()), layout, whole, own=own)

    try:
        spoil.payload(encoded)(reply)
    except Exception:
        spoil.payload(lambda payload: payload[:-9])(reply)


def filled_with(value: float, values: Any) -> Any:
    return np.full_like(values, value)


def values(change: Callable[[Any], Any]) -> Attack:
    return lambda message, reply, context: with_values(change, reply, context)


def statistics(name: str, value: float) -> Attack:
    """Return an attack that sets one of BatchNorm's statistics to `value` in all channels."""

    def attack(message: Message, reply: Message, context: Context) -> None:
        def changed(entries: Any) -> Any:
            if layout is None or entries.size != layout.size:
                return entries
            entries = entries.copy()
            for tensor, own in enumerate(map(own_name, layout.names)):
                if own == name:
                    entries[layout.offsets[tensor] : layout.offsets[tensor + 1]] = value
            return entries

        layout = layout_in(context)
        with_values(changed, reply, context)

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


def fails(reply: Message) -> None:
    raise RuntimeError("no power " * 1000)


def renamed(reply: Message) -> None:
    reply.content = RecordDict({f"x{k}": v for k, v in reply.content.items() if k != HEADER})


def renamed_metrics(reply: Message) -> None:
    for name in tuple(reply.content.metric_records):
        reply.content[f"x{name}"] = reply.content.pop(name)


def with_model(name: str, made: Callable[[bytes], ArrayRecord | None]) -> Attack:
    """Return an attack that puts a record made of the payload under `name`; "" is the model's."""

    def attack(message: Message, reply: Message, context: Context) -> None:
        if found := payload_of(reply.content):
            record = made(found[1])
            spoil.without(name or found[0])(reply)
            if record is not None:
                reply.content[name or found[0]] = record

    return attack


def plain_model(data: bytes) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(3, np.float32))})


def replayed(message: Message, reply: Message, context: Context) -> None:
    """Always reply with the payload of the first reply."""
    kept = context.state.config_records.get("first")
    if found := payload_of(reply.content):
        if kept is None:
            context.state["first"] = ConfigRecord({"payload": found[1]})
        else:
            reply.content[found[0]] = payload_record(kept["payload"])


def replayed_whole(message: Message, reply: Message, context: Context) -> None:
    """Always reply with the first reply, including its number and its metrics."""
    kept = {k: v for k, v in context.state.items() if k.startswith("first ")}
    if not kept:
        for name, record in reply.content.items():
            context.state[f"first {name}"] = copy.deepcopy(record)
    else:
        reply.content = RecordDict({k.removeprefix("first "): v for k, v in kept.items()})


def esgd_named(reply: Message) -> None:
    """Reply with a payload of eSGD, for which the server would store indices, and with a seed."""

    def encoded(data: bytes) -> bytes:
        update = decode_update(data)
        codec = make_codec("esgd", drop=0.5)
        return codec.encode(update.dense(), update.layout, memory={}, seed=1, own=update.own)

    spoil.payload(encoded)(reply)
    spoil.header(sequence=1)(reply)


def garbled(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]


def other_model(data: bytes) -> bytes:
    return make_codec().encode(np.ones(9, np.float32), spoil.OTHER)


ATTACKS: dict[str, Attack] = {
    "raises": in_place(fails),
    "records renamed": in_place(renamed),
    "metrics renamed": in_place(renamed_metrics),
    "two models": with_model("more", payload_record),
    "no model": with_model("", lambda data: None),
    "a model without a payload": with_model("", plain_model),
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
    "a strange note": header(hello="there"),
    "a note of a megabyte": header(hello="x" * 10**6),
    "a note of another type": in_place(spoil.record(HEADER, MetricRecord({"version": 1}))),
    "a version it has not": header(version=10**6),
    "a sequence from far ahead": header(sequence=10**15),
    "a model where an update is asked": header(whole=1),
    "other tensors' names": header(named=1),
    "another method's payload": in_place(esgd_named),
    "an array of another kind": in_place(
        spoil.record("arrays", ArrayRecord({"payload": Array("float32", (4,), STYPE, b"1234")}))
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


def vectors(change: Callable[[Any, Any], Any]) -> Attack:
    """Return an attack that changes the local algorithm's vectors, such as SCAFFOLD's.

    `change` gets a reported vector and the one in the message; both are float32 (n,).
    """

    def attack(message: Message, reply: Message, context: Context) -> None:
        trainer = trainer_for(*configured(context))
        beside = vectors_of(trainer.config, trainer.local, trainer.layout)
        initial = Initial(trainer.flat.natives(), vectors=beside)
        record = reply.content["arrays"]
        before = initial.all(native_payload(message.content))
        after = initial.all(native_payload(reply.content))
        made = {n: np.float32(change(after[n], before[n])) for n in beside.names}
        if data := initial.payload({**after, **made}):
            record[NATIVE] = Array("uint8", (len(data),), STYPE, data)

    return attack


def all_of(*attacks: Attack) -> Attack:
    """Return an attack that makes several attacks."""

    def attack(message: Message, reply: Message, context: Context) -> None:
        for each in attacks:
            each(message, reply, context)

    return attack


def all_steps(factor: float) -> Attack:
    """Return an attack that multiplies its update, and reports all steps that the server allows."""

    def attack(message: Message, reply: Message, context: Context) -> None:
        most = message.content.config_records["config"].get("most-steps", 1)
        with_values(lambda v: v * np.float32(factor), reply, context)
        metrics(num_steps=min(int(cast(int, most)), 10**6))(message, reply, context)

    return attack


LIES: dict[str, Attack] = {  # attacks that look honest; docs/bad-nodes.md says what limits them
    "turned round": values(np.negative),
    "turned round, times 9": values(lambda v: v * np.float32(-9)),
    "turned round, times 50": values(lambda v: v * np.float32(-50)),
    "turned round, times 90": values(lambda v: v * np.float32(-90)),
    "a weight of 1e9, turned round": all_of(
        values(np.negative), in_place(spoil.metrics(num_examples=10**9))
    ),
}
STEPS: dict[str, Attack] = {  # for strategy.deadline=
    f"all steps, turned round, times {factor}": all_steps(-factor) for factor in (1, 9, 90)
}
CONTROLS: dict[str, Attack] = {  # for local=scaffold
    "a control variate turned round": vectors(lambda report, sent: -report),
    "a control variate turned round, times 9": vectors(lambda report, sent: -9 * report),
    "a change of it turned round": vectors(lambda report, sent: 2 * sent - report),
    "a change of it turned round, times 9": vectors(lambda report, sent: 10 * sent - 9 * report),
    "a change of it of norm 100": vectors(
        lambda report, sent: sent + np.float32(100 / np.sqrt(len(sent)))
    ),
}


def at_once(message: Message, reply: Message, context: Context) -> None:
    """Send zeros and report 0 steps, which take no time on a virtual clock."""
    with_values(np.zeros_like, reply, context)
    spoil.metrics(num_steps=0)(reply)


def app_with(attack: Attack, bad: int = BAD) -> Callable[[Message, Context], Message]:
    """Return the project's ClientApp; the node with partition `bad` attacks with every reply."""

    def answer(message: Message, context: Context) -> Message:
        reply = honest(message, context)
        if context.node_config["partition-id"] != bad or reply.has_error():
            return reply
        reply = copy.deepcopy(reply)
        return attack(message, reply, context) or reply

    return answer


def all_in_turn() -> Callable[[Message, Context], Message]:
    """Return the project's ClientApp; the node with partition `BAD` makes all attacks in turn.

    The message's number selects the attack, because a failing node may lose its own count.
    """
    attacks = list(ATTACKS.values())

    def attack(message: Message, reply: Message, context: Context) -> Message | None:
        count = message.content.config_records[HEADER]["number"]
        return attacks[count % len(attacks)](message, reply, context)

    return app_with(attack)
