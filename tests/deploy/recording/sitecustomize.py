"""Python imports this module at its start: it writes what `os.urandom` draws to a file, as hex.

The tests put this folder on the `PYTHONPATH` of nodes, and the file's path into `DRAWN`.
"""

import os

draw = os.urandom


def urandom(size):
    found = draw(size)
    if size >= 16:
        with open(os.environ["DRAWN"], "ab", buffering=0) as file:
            file.write(found.hex().encode() + b"\n")
    return found


os.urandom = urandom
