"""Evaluates models at nodes, and adds up the sums of their replies (`Objective.sums`)."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from flwr.app import Message, MetricRecord
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from edgewire.compression.flower.headers import EXAMPLES, DownlinkHeader
from edgewire.compression.flower.records import records
from edgewire.compression.flower.server.model_replies import ModelReplies
from edgewire.compression.flower.server.reply_checks import (
    ROUNDING,
    ReplyRules,
    SentMessage,
    most_in_group,
)
from edgewire.compression.flower.tensor_split import Model, form_of_updates
from edgewire.compression.flower.uncompressed_warning import Uncompressed
from edgewire.strategy.base import ParameterServer
from edgewire.strategy.collector import RoundCollector, RoundCollectorState
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.server import Server
from edgewire.task.objectives import Objective
from edgewire.task.objectives.base import KEYS

EVALUATE = "evaluate"  # the type of messages that ask for an evaluation
EXACT = 1e-9  # a sum that was a mean is a whole number if it is nearer to one than this share of it


def take_keys(replies: Sequence[Message]) -> tuple[dict[str, Any], float]:
    """Remove the lists of keys from checked replies; return the joined lists, and the samples.

    A strategy of Flower's cannot average lists of several lengths. The samples are the sum of the
    nodes' weights. Of a node that has a smaller weight than samples, as many keys are used.
    """
    joined: dict[str, list[int]] = {}
    samples = 0.0
    for reply in replies:
        for _, metrics in records(reply.content, MetricRecord) if reply.has_content() else ():
            weight = cast(float, metrics.get(EXAMPLES, 0))
            samples += weight
            for name in [name for name in metrics if name.endswith(KEYS)]:
                keys = cast(list[int], metrics.pop(name))
                share = min(weight / most_in_group(np.array(keys)), 1.0)
                joined.setdefault(name, []).extend(keys[: round(len(keys) * share)])
    return joined, samples


def evaluated(
    means: Mapping[str, Any], samples: float, keys: Mapping[str, Any], objective: Objective
) -> tuple[dict[str, Any], MetricRecord]:
    """Return sums over all nodes' samples, and the metrics that they define.

    `means`: over the samples; the sums that are counts are whole numbers again. `keys`: joined
    lists. A metric beyond a bound by `ROUNDING` gets the bound, and others beyond are left out.
    """
    sums, every, within = dict[str, Any](), (-math.inf, math.inf), dict[str, Any]()
    for name, value in means.items():
        total = np.array(value, np.float64) * samples
        near = np.rint(total)
        exact = np.abs(total - near) <= EXACT * np.maximum(np.abs(total), 1.0)
        sums[name] = np.where(exact, near, total).tolist()
    sums |= keys
    for name, value in objective.defined(sums, samples=samples).items():
        low, high = objective.bounds.get(name, every)
        if low - ROUNDING <= value <= high + ROUNDING:
            within[name] = min(max(value, low), high)
    return sums, MetricRecord(within)


class NodeEvaluation:
    """Lets nodes evaluate a server's newest model on samples of their own, and adds up their sums.

    `server`, `strategy`: those that train the model. `state`: of the exchange over `grid`, which is
    apart from that of the training. Raises `ValueError` without the run's objective.
    """

    def __init__(
        self,
        server: Server,
        strategy: ParameterServer,
        grid: OrderedGrid,
        state: RoundCollectorState,
    ) -> None:
        if (objective := strategy.objective) is None:
            raise ValueError("fraction_evaluate needs the objective: set strategy.objective")
        self._server, self._failures, self._objective = server, strategy.failures, objective
        self._exchange = RoundCollector(grid, state)
        self.resting = self._exchange.resting  # the nodes that are not to be asked now
        sums = {EVALUATE: partial(objective.defined, samples=1)}
        rules = ReplyRules(bounds=objective.bounds, sums=sums)
        session, screens = server.session, server.inbox.screens
        quiet = Uncompressed(session.traffic, enabled=False, downlink=False)
        self._replies = ModelReplies(session, self._failures, screens, rules, (), quiet)

    def __call__(
        self, nodes: Sequence[int], number: int, needed: int, timeout: float
    ) -> tuple[dict[str, Any], MetricRecord] | None:
        """Return the sums over the samples of all nodes, and the metrics; None without a reply.

        `number`: the round. `needed`: after how many replies the evaluation ends. `timeout`:
        seconds.
        """
        server, session = self._server, self._server.session
        server.offer(number)
        header, natives = DownlinkHeader(number), server.reported.natives
        messages = [each for each, _ in session.messages(nodes, EVALUATE, {}, header, natives)]
        form, model = form_of_updates(server.layout), Model(server.model)
        about = number, EVALUATE, "arrays", False, form, model, session.plain_bytes
        found = self._exchange(messages, needed, timeout)
        in_flight = self._replies.in_flight
        in_flight.add(messages, [SentMessage(node, *about) for node in nodes])
        # In the order of the nodes, so that the float sums are reproducible.
        here = [found[node] for node in nodes if node in found]
        replies, _ = self._replies.take(here, number, together=True)
        in_flight.sent.clear()
        for node in nodes if self._exchange.time_was_up else ():
            if node not in found:
                self._failures.leave_out(node, "no reply in time", f"round {number}: ")
        keys, samples = take_keys(replies)
        used = [reply.content for reply in replies if not reply.has_error()]
        if not used:
            return None
        return evaluated(aggregate_metricrecords(used, EXAMPLES), samples, keys, self._objective)
