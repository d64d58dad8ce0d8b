"""Whole replies, mutated with structure: nothing comes of it but that node's failure.

Every preset and strategy of `conf` enters by being there; `--replies` says how many mutated ones
each gets. The seeds are fixed: a failure names the case, the seed and the last mutation.
"""

import tracemalloc
from functools import cache
from statistics import median

import pytest

from tests.fuzzed import CASES, EVERY, fuzz

SECONDS, MEMORY = 3, 2  # at most so many times an honest reply's, which may be the whole model
SLACK, ROOM = 0.005, 1 << 16  # seconds and bytes that no reply is measured by
FEW = 6  # of a case in the tests: a seed of its own each, so that all ways are gone
EDGE = 2  # costs at either end of a run that are also those of its start and end
TRIES = 3  # a busy machine: what is slow once is measured again
TIMED, TRACED = (
    20,
    50,
)  # of the replies every so many are; `tracemalloc` makes a run five times slower


@pytest.mark.parametrize("case", CASES)
def test_only_its_node_fails_of_a_mutated_reply(case, pytestconfig):
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
    """Return what honest and mutated replies cost, the least of some tries of the same run."""
    tries = [fuzz(case, replies, CASES.index(case), "seconds")[0].costs for _ in range(TRIES)]
    return parted(
        [(turn[0][0], min(cost for _, cost in turn)) for turn in zip(*tries, strict=True)]
    )


def bytes_of(case, replies):
    """Return the most that is in use while the server has honest and mutated replies."""
    tracemalloc.start()
    try:
        return parted(fuzz(case, replies, CASES.index(case), "bytes")[0].costs)
    finally:
        tracemalloc.stop()


@cache
def bytes_of_whole():
    """Return what a reply with all of the model costs: a node may send that to any strategy."""
    return median(bytes_of("algorithm=sgd", 10)[0])


def parted(costs):
    """Return costs by whether a reply was mutated, without a run's start and end."""
    costs = costs[EDGE:-EDGE]
    return tuple([cost for mutated, cost in costs if mutated == kind] for kind in (False, True))


def test_who_passes_on_what_nobody_can_decode_is_named_and_not_who_gets_it():
    app, ended = fuzz("algorithm=split_backprop", 40, 1)
    assert not ended
    assert app.blamed.keys() <= app.replies.keys()
    assert app.blamed


def test_there_are_as_many_as_promised():
    assert len(CASES) >= 30
    assert EVERY == 2
