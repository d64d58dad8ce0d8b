"""A run on Flower's own SuperLink with two nodes: Flower's SuperNode and a node of the project."""

import json
import re

import pytest

from tests.deploy.processes import eventually
from tests.deploy.servers import Field


def totals(said):
    """Return the replies of each node, in order."""
    found = {}
    for node, number, total in said:
        found.setdefault(node, []).append((number, total))
    return sorted(found.values())


@pytest.mark.system
def test_a_stock_node_and_a_project_node_in_the_same_run(tmp_path):
    with Field(tmp_path) as f:
        f.superlink()
        f.stock_node("theirs")
        ours = f.node("ours")
        f.online(2)
        assert "plain Fleet calls" in eventually(lambda: f.said("ours.log"))
        theirs, mine = totals(f.counted(nodes=2, rounds=2))
        assert theirs == mine
        assert [number for number, _ in mine] == [1, 2]
        online = json.loads((tmp_path / "ours" / "node.json").read_text())["node"]
        ours.terminate()
        assert ours.wait(5) == 0
        assert re.search(rf"DeactivateNode\] Deactivated node_id={online}", f.said("server.log"))
