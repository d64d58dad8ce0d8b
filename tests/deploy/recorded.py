"""`python tests/deploy/recorded.py FILE COUNT -- words`: a node that writes its secrets to a file.

FILE gets the seeds, keys and shares of secure sums in hexadecimal, one a line. COUNT: after so many
replies the node kills itself; 0: it does not.
"""

import os
import signal
import sys
from importlib import import_module
from types import SimpleNamespace

from edgewire.deploy.device.apps import Apps
from edgewire.deploy.device.transport import Transport
from edgewire.deploy.node import main


def record(file):
    """Let the app write the secrets that it makes and derives."""
    load, seen = Apps.load, []

    def note(secret):
        file.write(secret.hex().encode() + b"\n")
        return secret

    def loaded(self, digest):
        app = load(self, digest)
        if not seen:
            masks, shamir = (
                import_module(f"edgewire.compression.secure.{name}") for name in ("masks", "shamir")
            )
            seen.append((masks.HKDF, shamir.split))

            def derive(*options):
                real = masks_hkdf(*options)
                return SimpleNamespace(derive=lambda material: note(real.derive(note(material))))

            def split(*arguments):
                return [note(share) for share in real_split(*arguments)]

            ((masks_hkdf, real_split),) = seen
            masks.HKDF, shamir.split = derive, split
        return app

    Apps.load = loaded


def kill_after(count):
    """End this process like `kill -9` after so many replies."""
    push, sent = Transport.push, []

    def pushed(self, bundle):
        push(self, bundle)
        sent.append(1)
        if len(sent) == count:
            os.kill(os.getpid(), signal.SIGKILL)

    Transport.push = pushed


if __name__ == "__main__":
    record(open(sys.argv[1], "ab", buffering=0))  # noqa: SIM115  # until the process ends
    kill_after(int(sys.argv[2]))
    main(sys.argv[4:])
