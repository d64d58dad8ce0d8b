"""A mod for a node's ClientApp; it masks the updates that `CompressionMod` encodes."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from logging import getLogger
from secrets import randbits
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from numpy.typing import NDArray

from ...decoder import quantized
from ...layout import Layout
from ...secure import Member, Roster, SecureError
from ...secure.certificates import CA, Credentials, expect_holders
from ...secure.terms import KEY
from ..compact_records import compact, restored
from ..headers import HEADER, LOSS, STEPS, DownlinkHeader, TrainConfig, read, trains
from ..native_tensors import natives_of
from ..records import (
    UNSTORED,
    VOLATILE,
    content_of,
    filled,
    metadata_of,
    payload_of,
    payload_record,
    payloads_in,
    records,
    reply_to,
    to_vector,
    values_of,
    with_content,
)
from ..secure_messages import (
    HONEST,
    KEYS,
    PLACE,
    SECURE,
    SHARES,
    SumOf,
    loss_units,
    read_roster,
    secure_record,
    secure_values,
)
from .mod import CompressionMod

KNOWN = "edgewire-secure"  # the record in a node's state with what is not secret
RECORDS = (KNOWN, VOLATILE)  # the app does not see them
# What a header may hold: everything else would let the server treat an update differently.
FIELDS = {
    *("number", "applied", "undecided", "workers", "version", "base", "rates", "checksum"),
    *("initial", "common"),
}
STEP = "train.step"  # the only type of messages for training
log = getLogger("edgewire")


class SecureMod:
    """Masks the updates of a `CompressionMod`, and answers the messages about keys and shares.

    The reply to a message for training holds the masked update and the header: neither the loss nor
    the number of samples. The masked update is made of the integers in the payload of `mod`
    (`Grid`), of the tensors' sizes, and of the loss; each is a digit of a sum
    (`edgewire.compression.secure`). In mode `bare` the payload stays on the node, for
    `Codec.restore`.

    A node trains only with the model, the settings and the configuration for which it has given its
    keys. Raises `SecureError` otherwise, and for an update that has more than such a sum can hold,
    such as changed native tensors.

    In mode `sum` nothing of an update must be in two sums, because a server that leaves the node
    out of one of them could tell it from their difference. So `mod` must have a codec that keeps
    nothing from update to update; raises `ValueError` for another.

    `of`: what is summed. `layout`: of the vector. `least`: the fewest nodes of a sum; a node's
    owner may ask for more by `secure-least` in its `--node-config`. `masks`: False simulates the
    same integers and bytes without cryptography. `simulated`: whether a node of a context is one of
    this machine's simulation. `counted`: True if the reply may say the number of local steps; it
    does in a simulation.
    """

    def __init__(
        self,
        mod: CompressionMod,
        of: SumOf,
        layout: Layout,
        *,
        least: int,
        masks: bool,
        simulated: Callable[[Context], bool],
        counted: bool,
    ) -> None:
        if of.sums and mod.codec.memory_bytes(layout):
            raise ValueError("the codec of a secure sum must keep nothing: give feedback=False")
        self._mod, self._of, self._layout = mod, of, layout
        self._least, self._masks = least, masks
        self._simulated, self._counted = simulated, counted

    def answer(self, message: Message, context: Context) -> Message:
        """Answer a message about keys or shares."""
        content, kind = content_of(message), metadata_of(message)["_message_type"]
        member, known = self._load(context)
        if kind.endswith(KEYS):
            run, certify = secure_values(content, "run", certify=b"")
            is_new = values_of(values_of(context.state)[VOLATILE]).get("run") != run
            if is_new:
                known = {"run": run}
            run_key = member.run_key(run)
            said = {"keys": run_key + (member.mask_key() if self._of.sums else b"")}
            own = Credentials.of(context.node_config) if is_new or certify else None
            if own is not None:
                said["certificate"] = own.proof(run, run_key)
            elif is_new and not self._simulated(context):
                log.warning("this node has no certificate: %s", HONEST)
        elif kind.endswith(SHARES):
            names = "terms", "keys", "roster", "masks"
            terms, keys, *shown, proofs = secure_values(content, *names, certificates=[])
            known = {**_extended(known, keys, proofs, context), "terms": terms}
            roster = _roster(known, context, *shown)
            terms = self._of.terms(known["run"], terms)
            said = {"sealed": member.share(terms, roster, self._floor(context))}
        else:
            alive, number = secure_values(content, "alive", "round")
            said = {"shares": member.unmask(alive, int.from_bytes(number, "little"))}
            values_of(values_of(context.state)[VOLATILE])[UNSTORED] = True
        values_of(context.state)[KNOWN] = filled(ConfigRecord, known)
        return reply_to(message, filled(RecordDict, {SECURE: secure_record(**said)}))

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let `mod` and the app answer a message; mask the update in the reply to a training."""
        if not trains(message):
            return self._mod(message, context, call_next)
        came, state = content_of(message), context.state
        asked = restored(came)
        _expect_usual(message, asked)
        header, member, known = read(asked, DownlinkHeader), *self._load(context)
        rest = {name: record for name, record in values_of(asked).items() if name != SECURE}
        if self._of.sums:
            (sealed,) = secure_values(came, "sealed")
            member.opened(sealed)
        else:
            keys, bitmap, proofs = secure_values(came, "keys", "roster", certificates=[])
            known = _extended(known, keys, proofs, context)
            roster = _roster(known, context, bitmap)
            values_of(state)[KNOWN] = filled(ConfigRecord, known)
        seen, metrics = list[bytes](), dict[str, Any]()

        def checked(message: Message, context: Context) -> Message:
            seen.append(self._seen(message, header))
            if self._of.sums and seen[0] != known.get("terms"):
                raise SecureError("the model or the settings are not those of the round's terms")
            reply = call_next(message, context)
            for _, said in [] if reply.has_error() else records(content_of(reply), MetricRecord):
                metrics.update(values_of(said))
            return reply

        self._mod.secret = secret_of(context)
        passed = with_content(message, filled(RecordDict, rest))
        ours = {name: values_of(state).pop(name) for name in RECORDS if name in values_of(state)}
        try:
            reply = self._mod(passed, context, checked)
        finally:
            values_of(context.state).update(ours)
        if reply.has_error():
            return reply
        answered = restored(content_of(reply))
        terms = self._of.terms(known.get("run", b""), seen[0])
        values = self._values(answered, metrics)
        if self._of.sums:
            masked = member.masked(terms, values)
        else:
            masked = member.masked_bare(terms, roster, values, self._floor(context))
        content = {"arrays": payload_record(masked), HEADER: values_of(answered)[HEADER]}
        if STEPS in metrics and (self._counted or self._simulated(context)):
            content["metrics"] = filled(MetricRecord, {STEPS: metrics[STEPS]})
        found = filled(RecordDict, content)
        reply.content = found if asked is came else compact(found)
        return reply

    def _seen(self, message: Message, header: DownlinkHeader) -> bytes:
        """Return what the app gets, as the round's terms say it."""
        content = values_of(content_of(message))
        arrays, orders = content["arrays"], TrainConfig.of(values_of(content["config"]))
        if orders.number != header.number or orders.config() != values_of(content["config"]):
            raise SecureError("the message has other settings than a round of a secure sum")
        return self._of.said(header, orders, to_vector(arrays), natives_of(arrays))

    def _values(self, answered: RecordDict, metrics: dict[str, Any]) -> list[NDArray[Any]]:
        """Return the integers of a reply, by the sections of `SumOf.terms`."""
        payload = payload_of(answered)
        if payload is None or payloads_in(answered) > 1:
            raise SecureError("the update holds native tensors, which cannot be summed")
        streams = quantized(payload[1], self._layout)
        levels, sizes = self._of.quantizer.summed(streams, self._of.parts)
        return [levels, sizes, loss_units(metrics.get(LOSS))]

    def _floor(self, context: Context) -> int:
        return max(self._least, int(context.node_config.get("secure-least", 0)))

    def _load(self, context: Context) -> tuple[Member, dict[str, Any]]:
        """Return the node's side of the sum, whose record changes in place, and what it knows."""
        values = values_of(context.state)
        if VOLATILE not in values:
            values[VOLATILE] = filled(ConfigRecord, {})
        values_of(values[VOLATILE]).pop(UNSTORED, None)
        known = values_of(values[KNOWN]) if KNOWN in values else {}
        return Member(values_of(values[VOLATILE]), self._masks, _config_hash(context)), {**known}


def secret_of(context: Context) -> int:
    """Return a number that changes all draws of a node whose owner asks for mode `sum`, or 0.

    A server that knew them could choose a round in which those of all other nodes leave nothing of
    an update: dropout, or levels that are rounded down.
    """
    return randbits(63) if str(context.node_config.get("secure")).lower() == "sum" else 0


def _extended(
    known: dict[str, Any], keys: bytes, proofs: list[bytes], context: Context
) -> dict[str, Any]:
    """Return what a node knows after a message with further run keys.

    `holders`: of a node with a CA, a line for each key (`Credentials.holder`), found out once, when
    the key comes.
    """
    before, start = known.get("keys", b""), int.from_bytes(keys[:PLACE], "little")
    if "run" not in known or len(keys) < PLACE or start * KEY > len(before):
        raise SecureError("this node has lost the keys of the other nodes")
    known = {**known, "keys": before[: start * KEY] + keys[PLACE:]}
    more = [keys[at : at + KEY] for at in range(PLACE, len(keys), KEY)]
    if more and (own := Credentials.of(context.node_config)) is not None:
        proofs = [each if isinstance(each, bytes) else b"" for each in proofs] + [b""] * len(more)
        found = [own.holder(proofs[i], known["run"], key) for i, key in enumerate(more)]
        known["holders"] = [*known.get("holders", [])[:start], *found]
    return known


def _roster(known: dict[str, Any], context: Context, *said: bytes) -> Roster:
    """Return a roster, as `read_roster` does; a node with a CA expects a holder of each key."""
    roster = read_roster(known["keys"], *said)
    if context.node_config.get(CA):
        expect_holders([known["holders"][peer.node] for peer in roster.peers])
    return roster


def _expect_usual(message: Message, asked: RecordDict) -> None:
    """Raise `SecureError` for a message that would make another update of a node than of others."""
    said = values_of(asked)
    header = said.get(HEADER)
    fields = {*values_of(header)} if isinstance(header, ConfigRecord) else set()
    if (
        metadata_of(message)["_message_type"] != STEP
        or {*said} - {"arrays", "config", HEADER, SECURE}
        or fields - FIELDS
    ):
        raise SecureError("the message is not one of a secure sum")


def _config_hash(context: Context) -> bytes:
    """Return the SHA-256 of the run's configuration, which must be the same at all nodes."""
    said = [str(context.run_config.get(name)) for name in ("config", "overrides")]
    return sha256(repr(said).encode()).digest()
