"""A mutated reply makes only the node that sent it fail.

Every preset and strategy of `conf` is a case; `--replies` sets the number of mutated replies for
each. The seeds are fixed: a failure names the case, the seed and the last mutation.
"""

import tracemalloc
from functools import cache
from statistics import median

import pytest

from tests.fuzzed import CASES, EVERY, fuzz

# The most that a mutated reply may cost, as a multiple of the cost of an honest reply.
SECONDS, MEMORY = 3, 2
SLACK, ROOM = 0.005, 1 << 16  # seconds and bytes that a reply may cost in addition
FEW = 6  # mutated replies of each case in the tests; all seeds differ, so that all mutations occur
EDGE = 2  # the first two and last two costs are left out: they include the run's start and end
TRIES = 3  # on a busy machine a slow result is measured again
TIMED, TRACED = (
    20,
    50,
)  # a measured run has 1/20 or 1/50 of the replies; `tracemalloc` makes a run five times slower


@pytest.mark.few(22)
@pytest.mark.parametrize("case", CASES)
def test_a_mutated_reply_fails_only_its_node(case, pytestconfig):
    replies = pytestconfig.getoption("--replies") or FEW
    seed = CASES.index(case)
    app, ended = fuzz(case, replies, seed)
    last = f"{case}, seed {seed}, mutation {app.mutated}: {app.done[-2:]}"
    assert not ended, f"{last} ended the run: {ended}"
    honest = {node: why for node, why in app.blamed.items() if node not in app.replies}
    assert not honest, f"{last}: honest nodes were left out: {honest}"
    assert app.mutated >= replies * 3 // 4, "hardly a reply was mutated: the test tests nothing"


@pytest.mark.parametrize("case", CASES)
def test_a_mutated_reply_costs_little_more_than_an_honest_one(case, pytestconfig):
    replies = pytestconfig.getoption("--replies")
    if not replies:
        pytest.skip("make fuzz measures them: that takes a while")
    honest, mutated = seconds_of(case, max(replies // TIMED, 10))
    assert max(mutated) <= SECONDS * median(honest) + SLACK
    honest, mutated = bytes_of(case, max(replies // TRACED, 10))
    assert max(mutated) <= MEMORY * max(median(honest), bytes_of_whole()) + ROOM


def seconds_of(case, replies):
    """Return the seconds of honest and of mutated replies, each the least of `TRIES` equal runs."""
    tries = [fuzz(case, replies, CASES.index(case), "seconds")[0].costs for _ in range(TRIES)]
    return parted(
        [(turn[0][0], min(cost for _, cost in turn)) for turn in zip(*tries, strict=True)]
    )


def bytes_of(case, replies):
    """Return the peak memory of the server for honest and for mutated replies."""
    tracemalloc.start()
    try:
        return parted(fuzz(case, replies, CASES.index(case), "bytes")[0].costs)
    finally:
        tracemalloc.stop()


@cache
def bytes_of_whole():
    """Return the cost of a reply with the whole model, which a node may send to any strategy."""
    return median(bytes_of("algorithm=sgd", 10)[0])


def parted(costs):
    """Return the costs of honest and of mutated replies, without the run's start and end."""
    costs = costs[EDGE:-EDGE]
    return tuple([cost for mutated, cost in costs if mutated == kind] for kind in (False, True))


def test_the_sender_of_an_undecodable_payload_is_named_not_its_receiver():
    app, ended = fuzz("algorithm=split_backprop", 40, 1)
    assert not ended
    assert app.blamed.keys() <= app.replies.keys()
    assert app.blamed


def test_as_many_replies_are_mutated_as_requested():
    assert len(CASES) >= 30
    assert EVERY == 2
