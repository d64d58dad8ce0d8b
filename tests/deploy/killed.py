"""`python tests/deploy/killed.py WHERE TRIGGER -- words`: a node that kills itself at one point.

WHERE: a function that a node calls, and "before" or "after". TRIGGER: a file; while it does not
exist, the node runs normally.
"""

import os
import signal
import sys
from pathlib import Path

from edgewire.deploy.device import node_loop
from edgewire.deploy.device.client import FleetClient
from edgewire.deploy.device.node_database import NodeDatabase
from edgewire.deploy.device.node_folder import NodeFolder
from edgewire.deploy.device.node_store import NodeStore
from edgewire.deploy.device.transport import Transport
from edgewire.deploy.node import main

POINTS = {
    "claim": (NodeFolder, "claim"),
    "objects": (Transport, "objects"),
    "answered": (node_loop, "answered"),
    "files": (NodeDatabase, "_write_files"),  # before and after it, no record is changed
    "removal": (NodeDatabase, "_remove_files"),  # before and after it, the record is changed
    "commit": (NodeStore, "commit"),
    "push": (Transport, "push"),
    "call": (FleetClient, "call"),
}


def arm(where, trigger):
    """Replace a function by one that ends this process like `kill -9`."""
    name, _, when = where.partition("-")
    owner, attribute = POINTS[name]
    real = getattr(owner, attribute)

    def counts(given):
        if name == "call":
            return type(given[1]).__name__ == when
        if name == "removal":  # of files of a run, not of the record `claim`
            return given[1].isdecimal()
        return name != "files" or bool(given[1])

    def deadly(*given, **options):
        if when == "before" and counts(given) and trigger.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*given, **options)
        if when != "before" and counts(given) and trigger.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, attribute, deadly)


if __name__ == "__main__":
    arm(sys.argv[1], Path(sys.argv[2]))
    main(sys.argv[4:])
