"""The table of nodes; a user's mistake gives one line."""

import pytest

from edgewire.deploy import fleet
from edgewire.deploy.monitoring.node_states import NodeState
from tests.deploy.processes import free_port


def test_each_value_has_its_unit_and_a_column_that_nobody_fills_is_left_out():
    kitchen = NodeState(
        1 << 60, "kitchen", "online", last_seen=1e9 - 61, clock_offset=-0.04, failures=3, streak=2,
        uplink_bytes=1_250_000, free_disk=5.4e9, temperature=51.25, undervoltage=True,
    )  # fmt: skip
    nodes = [vars(kitchen), vars(NodeState(1 << 61, status="registered"))]
    head, first, second = (line.split() for line in fleet.table(nodes, 1e9).splitlines())
    assert {"node", "reply", "python", "error"}.isdisjoint(head)
    assert (
        " ".join(first) == "kitchen online 0:01:01 ago -0.0 s 3 2 1.2 MB 0.0 MB 5.4 GB 51.2 C True"
    )
    assert " ".join(second) == f"{1 << 61} registered - - 0 0 0.0 MB 0.0 MB - - -"
    assert fleet.table([], 1e9) == "no node is registered"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--insecure"], "is no `python -m edgewire.deploy.server` of this machine"),
        ([], "ca.crt: No such file"),
    ],
)
def test_a_mistake_gives_one_line(words, says, tmp_path, capsys):
    words = [*words, "--keys", str(tmp_path), "--superlink", f"127.0.0.1:{free_port()}"]
    assert fleet.main(words) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert says in error
