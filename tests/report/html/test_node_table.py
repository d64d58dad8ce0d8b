"""Slow and silent nodes are told apart from the others, whatever their number."""

import pytest

from edgewire.report.html.node_table import is_slow, not_answering, usual_lag


@pytest.mark.parametrize(
    ("lags", "slow"),
    [
        ((1.04, 0.048, 1.04, 1.04, 0.137), [0, 2, 3]),  # most nodes are slow
        ((1.0, 1.1, 0.9, 1.2, 1.9), []),
        ((1.0, 1.0, 1.0, 4.0), [3]),
        ((1.0, 50.0), [1]),
        ((50.0,), []),
        ((0.0, 0.0, 0.0, 1.0), [3]),
        ((), []),
    ],
)
def test_slow_nodes_may_be_the_majority(lags, slow):
    usual = usual_lag(lags)
    assert [at for at, lag in enumerate(lags) if is_slow(lag, usual)] == slow


def node(sent, heard, waiting=True, lag=1.0):
    return {"sent": sent, "heard": heard, "waiting": waiting, "mean_lag": lag}


def test_an_open_message_counts_when_it_is_overdue():
    nodes = [
        node(9.0, 9.0),  # an asynchronous server sends the next message at once
        node(2.0, 2.0),
        node(1.0, None, lag=None),
        node(9.5, 9.8, waiting=False),
        node(1.0, 5.0),  # an earlier message was lost
        {},
    ]
    assert not_answering(nodes, 10.0) == [False, True, True, False, False, False]
    assert not_answering(nodes, 10.0, gave_up=True) == [True, True, True, False, False, False]
    assert not_answering(nodes, None) == [False] * 6


def test_a_message_of_a_round_that_has_ended_is_lost():
    nodes = [node(9.0, 9.5, waiting=False), node(9.0, 8.5, waiting=False), node(9.0, None, False)]
    assert not_answering(nodes, 10.0) == [False, True, True]
