"""What the log calls a node: by its number in the run, from 1 on, and its name if it has one.

The nodes of Flower have random ids of 19 digits. Of a node without a number the log shows the id.
"""

from collections.abc import Mapping

from flwr.serverapp import Grid

from .traffic import in_one_line

LONGEST = 40  # characters of a node's name
NUMBERS: dict[int, int] = {}  # by a node's id
NAMES: dict[int, str] = {}


def called(node: int) -> str:
    """Return the text for a node's id, such as "node 4 (dev-03)"."""
    return f"node {NUMBERS.get(node, node)}" + (f" ({NAMES[node]})" if node in NAMES else "")


def add_names(names: Mapping[int, str]) -> None:
    """Learn the names of nodes by their ids; "": the node has none. A known name stays."""
    for node, text in names.items():
        if text and node not in NAMES:
            NAMES[node] = in_one_line(text[:LONGEST])


def learn_names(grid: Grid) -> None:
    """Learn the names of all registered nodes, if this release of Flower tells them."""
    known = grid.get_nodes() if hasattr(Grid, "get_nodes") else ()
    add_names({each.node_id: getattr(each, "name", "") for each in known})
