"""Rounds of `SparseAveraging` of which the server sees only the sum of the nodes' updates."""

import os
from collections.abc import Mapping, Sequence
from logging import getLogger

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from numpy.typing import NDArray

from edgewire.compression.base import PayloadError, TensorSlices, quiet
from edgewire.compression.flower.headers import HEADER, LOSS, DownlinkHeader, TrainConfig
from edgewire.compression.flower.message_size import measured, other_than_payloads
from edgewire.compression.flower.records import (
    content_of,
    filled,
    message_to,
    metadata_of,
    payload_of,
    values_of,
)
from edgewire.compression.flower.secure_messages import (
    KEYS,
    LOSS_UNITS,
    SECURE,
    SHARES,
    UNMASK,
    model_hash,
    orders_hash,
    secure_record,
    secure_values,
    sections_of,
)
from edgewire.compression.flower.server.inbox import count_received
from edgewire.compression.flower.traffic import reason_of
from edgewire.compression.quantizers.grid import Grid, mean_sizes
from edgewire.compression.secure import Coordinator, Roster, SecureError, Terms, threshold_of
from edgewire.compression.secure.coordinator import join_keys
from edgewire.compression.secure.terms import KEY, to_bitmap
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.synchronous import Rounds, SparseAveraging
from edgewire.task.errors import TaskError

log = getLogger("edgewire")


class SecureRounds(Rounds):
    """Runs the rounds of `SparseAveraging` with a secure sum (`edgewire.compression.secure`).

    In mode `sum` a round has four exchanges: keys, shares, masked updates, and the secrets of the
    masks that do not cancel. In mode `bare` a round has one, and the keys are asked for once. A
    round that has no sum leaves the model as it is. Its updates return to the nodes' residuals,
    because the next message says that they were not applied. The first round brings only the sizes
    of the updates, from which the common scale of the next one follows, so it is not applied
    either.

    A run has keys of its own in each session of the server, so a resumed run has new ones. Raises
    `TaskError` for a model with tensors that cannot be summed.
    """

    def __init__(self, strategy: SparseAveraging, grid: OrderedGrid, arrays: ArrayRecord) -> None:
        super().__init__(strategy, grid, arrays)
        self._options, mode = strategy.secure, strategy.secure.mode
        initial = strategy.initial
        others = [] if initial is None else sorted(initial.arrays.keys() - {*initial.frozen})
        if self.reported.size or others:
            what = "BatchNorm's statistics" if self.reported.size else others[0]
            raise TaskError(
                f"secure={mode} sums the changes of parameters, and {what} would be sent as "
                "values: give personal=batchnorm, or a model without such tensors"
            )
        uplink = strategy.codecs.uplink
        assert uplink is not None and isinstance(uplink.quantizer, Grid)  # conf/rules.py
        self._grid_of_levels = uplink.quantizer
        self._parts = TensorSlices(self.layout.offsets, self.layout.shapes)
        self._sums = mode == "sum"
        self._likes = {k: Message(RecordDict(), 0, f"query.{k}") for k in (KEYS, SHARES, UNMASK)}
        self._begin_session()

    def _begin_session(self) -> None:
        """Let the nodes make new run keys; until then the list of run keys is empty."""
        self._run = os.urandom(16)
        self._keys: list[bytes] = []  # the run keys, in the order in which all nodes know them
        self._places: dict[int, int] = {}  # by node, the place of its run key in the list
        self._told: dict[int, int] = {}  # by node, how many keys of the list it knows

    def advance(self, lr: float, timeout: float) -> bool:
        """Run one round at the learning rate `lr`; return False if no node is available."""
        number, failures = self._state.round + 1, self._strategy.failures
        asked, _ = self._drawn(number)
        if not asked:
            return False
        failures.begin_round(asked=len(asked))
        self._heard, used = 0, list[int]()
        totals = list[NDArray[np.int64]]()
        try:
            used, totals = self._summed(number, asked, lr, timeout)
        except PayloadError as error:
            log.warning("round %d has no sum, and its updates stay at the nodes: %s", number, error)
        failures.end_round(number, len(used), self._heard)
        self._apply(used, totals, lr)
        self._state.round = number
        return True

    def _summed(
        self, number: int, asked: list[int], lr: float, timeout: float
    ) -> tuple[list[int], list[NDArray[np.int64]]]:
        """Return the nodes in the sum, and the sums of the sections; PayloadError without a sum."""
        roster = self._roster(number, asked, timeout)
        nodes = {node: place for node, place in self._places.items() if place in roster.places}
        common, layout = self._state.common or None, self.layout
        terms = Terms(
            self._run,
            number,
            threshold_of(len(roster)) if self._sums else 0,
            sections_of(
                layout.size, self._grid_of_levels.levels, len(layout), scaled=common is not None
            ),
            0.0,
            model_hash(self.model, self.reported.natives),
            orders_hash(TrainConfig(lr, number), DownlinkHeader(number, common=common)),
        )
        sum_of = Coordinator(terms, roster, self._options.masks)
        bitmap = to_bitmap((peer.node for peer in roster.peers), len(self._keys))
        said = {"terms": terms.to_bytes(), "roster": bitmap}
        if self._sums:
            masks = b"".join(peer.mask_key for peer in roster.peers)
            offers = {n: {**said, **self._new_keys(n), "masks": masks} for n in asked if n in nodes}
            for node, sealed in self._ask(number, SHARES, offers, "sealed", timeout).items():
                self._told[node] = len(self._keys)
                self._use(number, node, lambda: sum_of.take_shares(nodes[node], sealed))
            ...
