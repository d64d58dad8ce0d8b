"""A mutated reply makes only the node that sent it fail.

Every preset and strategy of `conf` is a case; `--replies` sets the number of mutated replies for
each. The seeds are fixed: a failure names the case, the seed and the last mutation.
"""

import pytest

from tests.fuzzed import CASES, EVERY, fuzz

FEW = 6  # mutated replies of each case in the tests; all seeds differ, so that all mutations occur


@pytest.mark.few(7)
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


def test_the_sender_of_an_undecodable_payload_is_named_not_its_receiver():
    app, ended = fuzz("algorithm=split_backprop", 40, 1)
    assert not ended
    assert app.blamed.keys() <= app.replies.keys()
    assert app.blamed


def test_as_many_replies_are_mutated_as_requested():
    assert len(CASES) >= 30
    assert EVERY == 2
