"""Whole replies, mutated with structure: nothing comes of it but that node's failure.

Every preset and strategy of `conf` enters by being there; `--replies` says how many mutated ones
each gets. The seeds are fixed: a failure names the case, the seed and the last mutation.
"""

import tracemalloc

import pytest

from tests.fuzzed import CASES, EVERY, fuzz, ratio

SECONDS, MEMORY = 3.0, 2.0  # at most so many times an honest reply's
SLACK, ROOM = 0.02, 1 << 19  # seconds and bytes that no reply is measured by
FEW = 6  # of a case in the tests: a seed of its own each, so that all ways are gone
TRIES = 3  # a busy machine: what is slow once is measured again


@pytest.mark.parametrize("case", CASES)
def test_only_its_node_fails_of_a_mutated_reply(case, pytestconfig):
    replies = pytestconfig.getoption("--replies") or FEW
    seed = CASES.index(case)
    app, ended = fuzz(case, replies, seed)
    last = f"{case}, seed {seed}, mutation {app.mutated}: {app.done[-1:]}"
    assert not ended, f"{last} ended the run: {ended}"
    honest = {node: why for node, why in app.blamed.items() if node not in app.bad}
    assert not honest, f"{last}: honest nodes were left out: {honest}"
    assert app.mutated >= replies * 3 // 4, "hardly a reply was mutated: the test tests nothing"


@pytest.mark.parametrize("case", CASES)
def test_a_mutated_reply_costs_little_more_than_an_honest_one(case, pytestconfig):
    replies = pytestconfig.getoption("--replies")
    if not replies:
        pytest.skip("make fuzz measures them: that takes a while")
    seed = CASES.index(case)
    runs = [fuzz(case, replies, seed)[0].seconds for _ in range(TRIES)]
    least = [(turn[0][0], min(cost for _, cost in turn)) for turn in zip(*runs, strict=False)]
    assert ratio([(m, cost + SLACK) for m, cost in least]) <= SECONDS, f"{case}, seed {seed}"
    tracemalloc.start()
    try:
        app, _ = fuzz(case, replies // 10, seed, traced=True)
    finally:
        tracemalloc.stop()
    assert ratio([(m, cost + ROOM) for m, cost in app.memory]) <= MEMORY, f"{case}, seed {seed}"


def test_who_passes_on_what_nobody_can_decode_is_named_and_not_who_gets_it():
    app, ended = fuzz("algorithm=split_backprop", 40, 1)
    assert not ended
    assert app.blamed.keys() == app.bad


def test_there_are_as_many_as_promised():
    assert len(CASES) >= 30
    assert EVERY == 2
