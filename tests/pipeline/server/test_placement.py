"""Nodes of a cut model crash, return, reply late, or never return; the run continues."""

import json

import pytest
from safetensors.torch import load_file

import edgewire.client.app
from edgewire.compression.base import PayloadError
from tests.strategy.cut import PIPED, QUICK, SPLIT, run


@pytest.mark.system
def test_crashed_nodes_come_back_and_get_their_segment_again(tmp_path, caplog):
    words = ("network.crash=0.1", "network.rejoin_seconds=3", "timeout=2", "rounds=16")
    result, _, _ = run(tmp_path, *QUICK, *words, "eval_every=8")
    assert result["failures"] > 0
    assert result["round"] == 16
    assert result["client_updates"] == 64
    assert result["accuracy"] > 0.4
    again = run(tmp_path / "again", *QUICK, *words, "eval_every=8", workers=2)
    assert {k: v for k, v in again[0].items() if "seconds" not in k} == {
        k: v for k, v in result.items() if "seconds" not in k
    }


@pytest.mark.few(1)
@pytest.mark.parametrize(("words", "crash"), [(QUICK, 0.08), (SPLIT, 0.08), (PIPED, 0.02)])
def test_a_spare_node_takes_over(tmp_path, caplog, words, crash):
    result, _, _ = run(
        tmp_path,
        *words,
        "nodes=20",
        "strategy.segments=4",
        f"network.crash={crash}",
        "timeout=5",
        "rounds=16",
    )
    assert "takes over" in caplog.text
    assert "16 of 20 nodes hold no segment" in caplog.text
    assert result["round"] == 16


def test_without_another_node_the_run_ends_and_saves_its_model(tmp_path):
    with pytest.raises(PayloadError, match="waits for a node"):
        run(tmp_path, *QUICK, "network.crash=0.2", "timeout=5", "rounds=40")
    result = json.loads((tmp_path / "result.json").read_text())
    assert "waits for a node" in result["stopped"]
    assert load_file(tmp_path / "model.safetensors")


def test_a_late_node_keeps_its_segment(tmp_path):
    """After a lost reply a node loses one or two steps, and not all steps since the last copy."""
    handed = []

    def app(message, context):
        if "copy" in message.content["arrays"]:
            handed.append(context.node_config["partition-id"])
        return edgewire.client.app.app(message, context)

    words = ("network.loss=0.05", "timeout=3", "rounds=30")
    result, _, _ = run(tmp_path, *QUICK, *words, app=app)
    assert result["failures"] > 0
    assert handed == [0, 1, 2, 3]
