"""Rounds of `SparseAveraging` of which the server sees only the sum of the nodes' updates."""

import os
import re
from collections.abc import Callable, Mapping
from itertools import count
from logging import getLogger
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from numpy.typing import NDArray

from edgewire.compression.base import PayloadError, quiet
from edgewire.compression.flower.headers import HEADER, LOSS, DownlinkHeader, TrainConfig
from edgewire.compression.flower.message_size import measured, other_than_payloads
from edgewire.compression.flower.node_names import called
from edgewire.compression.flower.records import (
    content_of,
    filled,
    message_to,
    payload_of,
    values_of,
)
from edgewire.compression.flower.secure_messages import (
    HONEST,
    KEYS,
    LOSS_UNITS,
    PLACE,
    SECURE,
    SHARES,
    UNMASK,
    SumOf,
    secure_record,
    secure_values,
)
from edgewire.compression.flower.server.inbox import count_received
from edgewire.compression.flower.traffic import in_one_line, reason_of
from edgewire.compression.secure import Coordinator, Roster, SecureError, roster_of
from edgewire.compression.secure.certificates import LONGEST
from edgewire.compression.secure.terms import KEY, expect_bytes, to_bitmap
from edgewire.compression.wire import StreamSizes
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.synchronous import Rounds, SparseAveraging

NO_CERTIFICATE = "it has no certificate, and most nodes have: `keys node --renew NAME` makes one"
PLACED = re.compile(r"a share of place (\d{1,3})\b")  # what `Masks.open` says of another node
SPARE = 64  # keys of nodes that have others now, which the list of keys may hold
log = getLogger("edgewire")


class SecureRounds(Rounds):
    """Runs the rounds of `SparseAveraging` with a secure sum (`edgewire.compression.secure`).

    In mode `sum` a round has four exchanges: keys, shares, masked updates, and the secrets of the
    masks that do not cancel. In mode `bare` a round has one, and the keys are asked for once. A
    round that has no sum leaves the model as it is. In mode `bare` its updates return to the nodes'
    residuals. In mode `sum` they are lost (`SecureMod`).

    A run has keys of its own in each session of the server, so a resumed run has new ones. Raises
    `TaskError` for a model with tensors that cannot be summed.
    """

    def __init__(self, strategy: SparseAveraging, grid: OrderedGrid, arrays: ArrayRecord) -> None:
        super().__init__(strategy, grid, arrays)
        self._options, mode = strategy.secure, strategy.secure.mode
        self.expect_changes(f"secure={mode} sums the changes of parameters")
        assert strategy.codecs.uplink is not None  # conf/rules.py
        self._of = SumOf.of(strategy.codecs.uplink, self.layout, mode)
        self._warned = False
        least, among = self._options.least, strategy.participation
        enough = next(n for n in count(least) if among.drawn(n) >= least)  # conf/rules.py
        self.least_online = enough, f"secure.least={least}"
        self._begin_session()

    def _begin_session(self) -> None:
        """Let the nodes make new run keys; until then the list of run keys is empty."""
        self._run = os.urandom(16)
        self._keys: list[bytes] = []  # the run keys, in the order in which all nodes know them
        self._places: dict[int, int] = {}  # by node, the place of its run key in the list
        self._proofs: list[bytes] = []  # for each key of the list the proof whose it is, or b""
        self._told: dict[int, int] = {}  # by node, how many keys of the list it knows

    def advance(self, lr: float, timeout: float) -> bool:
        """Run one round at the learning rate `lr`; return False if too few nodes are available."""
        number, failures = self._state.round + 1, self._strategy.failures
        asked, _ = self.drawn(number)
        if self._present < self.least_online[0]:
            text = "%d nodes are left, and %s asks for %d"
            self.ended = text % (self._present, *reversed(self.least_online))
            return False
        failures.begin_round(asked=len(asked))
        self._heard, used = 0, list[int]()
        totals = list[NDArray[np.int64]]()
        self._peers = list[int]()  # the round's nodes, by their place in the roster
        self._summing, self._silent = list[int](), dict[int, str]()
        try:
            used, totals = self._summed(number, asked, lr, timeout)
        except PayloadError as error:
            used = []
            log.warning("round %d has no sum, and the model stays as it was: %s", number, error)
            for node, reason in self._silent.items():
                failures.leave_out(node, reason, f"round {number}: ")
        if used and self._silent:
            text = "round %d: the sum has the updates of nodes that sent no shares for it: %s"
            nodes = (f"{called(node)} ({reason})" for node, reason in self._silent.items())
            log.warning(text, number, in_one_line(", ".join(nodes)))
        failures.end_round(number, len(used), self._heard)
        self._apply(used, totals, lr)
        self._state.round = number
        return True

    def _summed(
        self, number: int, asked: list[int], lr: float, timeout: float
    ) -> tuple[list[int], list[NDArray[np.int64]]]:
        """Return the nodes in the sum, and the sums of the sections; PayloadError without a sum."""
        of, draws = self._of, np.random.default_rng((self._strategy.codecs.seed, 0))
        common = self._state.common or of.quantizer.first_common(self.model, of.parts, draws)
        self._state.common = common
        header, orders = DownlinkHeader(number, common=common), TrainConfig(lr, number)
        said = of.said(header, orders, self.model, self.reported.natives)
        while True:  # until all nodes of the roster share
            roster = self._roster(number, asked, timeout)
            sum_of = Coordinator(self._of.terms(self._run, said), roster, self._options.masks)
            there = {peer.node for peer in roster.peers}
            at = {place: node for node, place in self._places.items()}
            self._peers = [at[peer.node] for peer in roster.peers]
            nodes = [node for node in asked if self._places.get(node) in there]
            bitmap = to_bitmap(there, len(self._keys))
            offers = {node: {**self._unknown_keys(node), "roster": bitmap} for node in nodes}
            if not self._of.sums:
                break
            shown = {"terms": said, "masks": b"".join(peer.mask_key for peer in roster.peers)}
            offers = {node: {**each, **shown} for node, each in offers.items()}
            asked = self._ask(number, SHARES, offers, "sealed", timeout, sum_of.take_shares)
            self._told |= dict.fromkeys(asked, len(self._keys))
            if len(asked) == len(nodes):
                break
        if self._of.sums:
            offers = {node: {"sealed": sum_of.sealed_for(self._places[node])} for node in nodes}
        self._summing = used = self._train(number, offers, lr, timeout, sum_of)
        if self._of.sums:
            ending = {"alive": sum_of.alive(), "round": number.to_bytes(8, "little")}
            offers = dict.fromkeys(used, ending)
            self._ask(number, UNMASK, offers, "shares", timeout, sum_of.take_unmasked)
        else:
            self._told |= dict.fromkeys(used, len(self._keys))
        return used, sum_of.totals()

    def _roster(self, number: int, asked: list[int], timeout: float) -> Roster:
        """Ask for keys, and return the roster of a round; `SecureError` for too few nodes."""
        if len(self._keys) > 2 * len(self._places) + SPARE:
            self._begin_session()  # nodes that make new keys again and again do not fill the list
        known = [] if self._of.sums else [node for node in asked if node in self._places]
        masks = dict[int, list[bytes]]()  # by node its mask key, in mode `sum`

        def take(node: int, keys: bytes, proof: bytes) -> None:
            expect_bytes("a node's keys", keys, KEY * (1 + self._of.sums))
            if len(proof) > LONGEST:
                raise SecureError(f"a certificate of {len(proof)} bytes is too long")
            run_key = keys[:KEY]
            masks[node] = [keys[KEY:]] * self._of.sums
            if node not in self._places or self._keys[self._places[node]] != run_key:
                self._told.pop(node, None)  # a node that lost its key has lost the others' keys
                self._places[node] = len(self._keys)
                self._keys.append(run_key)
                self._proofs.append(proof)

        offers = {node: {"run": self._run} for node in asked if node not in known}
        for node in offers.keys() - self._places.keys():
            offers[node]["certify"] = b"1"
        if offers:
            known += self._ask(number, KEYS, offers, "keys", timeout, take, certificate=b"")
        plain = [node for node in known if not self._proofs[self._places[node]]]
        if 2 * len(plain) < len(known):  # the others would refuse a round with these nodes
            for node in plain:
                self._strategy.failures.leave_out(node, NO_CERTIFICATE, f"round {number}: ")
            known = [node for node in known if node not in plain]
        elif plain and self._grid.virtual_seconds is None and not self._warned:
            self._warned = True
            log.warning("%d of %d nodes have no certificate: %s", len(plain), len(known), HONEST)
        given = {
            self._places[node]: (self._keys[self._places[node]], *masks.get(node, ()))
            for node in asked
            if node in known
        }
        if len(given) < self._options.least:
            raise SecureError(
                f"{len(given)} of {len(asked)} nodes have keys, and "
                f"secure.least={self._options.least} must"
            )
        # Nodes read a roster from a bitmap of the list, so it is in the order of the list.
        roster, refused = roster_of(dict(sorted(given.items())), self._options.masks)
        for node in (node for node in asked if self._places.get(node) in refused):
            self._leave_out(number, node, refused[self._places[node]])
        return roster

    def _train(
        self,
        number: int,
        offers: Mapping[int, Mapping[str, Any]],
        lr: float,
        timeout: float,
        sum_of: Coordinator,
    ) -> list[int]:
        """Let nodes train and add their masked updates; return the nodes in the sum."""
        session = self.session
        messages = self._messages(number, [*offers], len(offers), lr)
        for message, said in zip(messages, offers.values(), strict=True):
            content = values_of(content_of(message))
            message.content = filled(RecordDict, {**content, **values_of(self._sent(said))})

        def taken(node: int, reply: Message) -> None:
            self._heard += count_received([reply])
            header = session.opened(reply, node, number, session.plain_bytes)
            found = payload_of(content_of(reply))
            if found is None:
                raise SecureError("a reply must hold a masked update")
            sum_of.take_masked(self._places[node], found[1])
            session.acks.pend(node, header.sequence or 0)
            session.traffic.uplink_entries += self.layout.size
            session.traffic.uplink_entries_whole += self.layout.size
            session.traffic.count_decoded(StreamSizes(0, len(found[1])))
            self._strategy.failures.succeeded(node)

        return self._taken(number, messages, [*offers], timeout, taken)

    def _ask(
        self,
        number: int,
        kind: str,
        offers: Mapping[int, Mapping[str, Any]],
        answer: str,
        timeout: float,
        take: Callable[..., None],
        **others: bytes,
    ) -> list[int]:
        """Send nodes a message for keys or shares; return the nodes whose answer was taken.

        `answer`: the name of the answer's value; `others`: as in `secure_values`. `take`: gets a
        node (of the key list, except for `KEYS`) and the values, and may raise `SecureError`.
        """
        like, traffic = Message(RecordDict(), 0, f"query.{kind}"), self.session.traffic
        contents = [self._sent(said) for said in offers.values()]
        messages = [
            message_to(node, content, str(number), like)
            for node, content in zip(offers, contents, strict=True)
        ]

        def taken(node: int, reply: Message) -> None:
            if reply.has_error():
                raise SecureError(reason_of(reply))
            size = measured(content_of(reply), HEADER)
            traffic.count_received(size, 0)
            traffic.uplink_secure_bytes += other_than_payloads(size)
            values = secure_values(content_of(reply), answer, **others)
            take(node if kind == KEYS else self._places[node], *values)

        return self._taken(number, messages, [*offers], timeout, taken)

    def _taken(
        self,
        number: int,
        messages: list[Message],
        nodes: list[int],
        timeout: float,
        take: Callable[[int, Message], None],
    ) -> list[int]:
        """Send messages to nodes; return those whose reply `take` took without a PayloadError."""
        replies, taken = self._exchange(messages, len(messages), timeout), list[int]()
        for node in nodes:
            try:
                if (reply := replies.get(node)) is None:
                    raise SecureError("no reply in time")
                take(node, reply)
                taken.append(node)
            except PayloadError as error:
                self._leave_out(number, node, str(error))
        return taken

    def _unknown_keys(self, node: int) -> dict[str, Any]:
        """Return the run keys that a node does not know yet, as a message holds them."""
        start = self._told.get(node, 0)
        keys, proofs = b"".join(self._keys[start:]), self._proofs[start:]
        more = {"certificates": proofs} if any(proofs) else {}
        return {"keys": start.to_bytes(PLACE, "little") + keys, **more}

    def _sent(self, said: Mapping[str, Any]) -> RecordDict:
        """Return a message's values for the sum, and count them as sent."""
        content = filled(RecordDict, {SECURE: secure_record(**said)})
        size, traffic = measured(content, HEADER), self.session.traffic
        traffic.count_sent(size, 0)
        traffic.downlink_secure_bytes += other_than_payloads(size)
        return content

    def _leave_out(self, number: int, node: int, reason: str) -> None:
        """Count a failure; the node may have lost its keys, so it is asked for them again.

        A node whose update is to be in the sum counts as failed only if there will be no sum.
        """
        self._told.pop(node, None)
        self._places.pop(node, None)
        if (said := PLACED.search(reason)) and int(said[1]) < len(self._peers):
            other = called(self._peers[int(said[1])])
            reason = reason.replace(said[0], f"a share of {other}", 1)
        if node in self._summing:
            self._silent[node] = reason
        else:
            self._strategy.failures.leave_out(node, reason, f"round {number}: ")

    @quiet
    def _apply(self, used: list[int], totals: list[NDArray[np.int64]], lr: float) -> None:
        """Take the server's step with the mean of the used nodes' updates."""
        state, nodes, acks = self._state, len(used), self.session.acks
        state.train_metrics = None
        if not used:
            acks.applied(())
            return
        (total, sizes, losses), common, parts = totals, state.common, self._of.parts
        quantizer, seed = self._of.quantizer, (self._strategy.codecs.seed, state.round + 1)
        state.train_metrics = {LOSS: int(losses[0]) / LOSS_UNITS / nodes}
        self._mean.add(None, quantizer.mean_of(total, nodes, common, parts), 1.0)
        self._step(lr if self._strategy.rate is None else self._strategy.rate, nodes)
        draws = np.random.default_rng(seed)
        state.common = quantizer.next_common(total, sizes, nodes, common, parts, draws)
        acks.applied(used)
