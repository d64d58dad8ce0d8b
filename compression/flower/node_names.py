"""What the log calls a node: by its number in the run, from 1 on, and its name if it has one.

The nodes of Flower have random ids of 19 digits. Of a node without a number the log shows the id.
"""

NUMBERS: dict[int, int] = {}  # by a node's id
NAMES: dict[int, str] = {}


def called(node: int) -> str:
    """Return the text for a node's id, such as "node 4 (dev-03)"."""
    return f"node {NUMBERS.get(node, node)}" + (f" ({NAMES[node]})" if node in NAMES else "")
