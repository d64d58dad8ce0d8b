"""For each row of the history, the server asks each segment of a cut model for one copy.

All copies for one row are of the same mini-batch.
"""

import pytest

import edgewire.client.app
from tests.strategy.cut import AHEAD, QUICK, SPLIT, run


@pytest.mark.system
def test_with_messages_ahead_a_copy_is_of_the_requested_mini_batch(tmp_path):
    often = run(tmp_path / "1", *AHEAD, "eval_every=1")[1]
    seldom = run(tmp_path / "4", *AHEAD, "eval_every=4")[1]
    losses = {row["round"]: row["loss"] for row in often}
    assert [losses[row["round"]] for row in seldom] == [row["loss"] for row in seldom]


@pytest.mark.few(1)
@pytest.mark.parametrize("words", [QUICK, SPLIT, (*QUICK, "strategy.schedule=async")])
def test_a_copy_is_asked_for_once(tmp_path, words):
    came = []

    def app(message, context):
        reply = edgewire.client.app.app(message, context)
        came.extend(["copy"] * ("copy" in reply.content["arrays"]))
        return reply

    more = ("strategy.queue=4",) if "async" in words[-1] else ()
    result, rows, _ = run(tmp_path, *words, *more, "rounds=20", "strategy.segment_every=0", app=app)
    assert len(came) == 4 * (len(rows) - 1) == 20
    assert result["failures"] == 0
