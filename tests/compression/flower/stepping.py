"""A server whose model takes random steps."""

import numpy as np

from edgewire.compression.flower.replica import Replica
from edgewire.compression.flower.server.step_log_sync import StepLogSync
from edgewire.compression.make import make_codec

CODEC = make_codec(coder="raw")


class SteppingServer:
    """A server that stores its random steps in a `StepLogSync`, as `payloads`, by version."""

    def __init__(self, rule, layout, trained, follow=True):
        self.rule, self.layout = rule, layout
        model = np.linspace(-1, 1, layout.size, dtype=np.float32)
        self.replica = Replica.start(rule, trained, model)
        self.steps = StepLogSync(self.replica, layout, follow=follow)
        self.payloads = [b""]

    def go(self, count=1, entries=3):
        """Let the server's model take `count` steps, each of `entries` entries."""
        for _ in range(count):
            number, size = self.replica.version + 1, self.layout.size
            draw = np.random.default_rng(number)
            indices = np.sort(draw.choice(size, entries, replace=False)).astype(np.uint32)
            values = draw.normal(size=entries).astype(np.float32)
            self.replica.apply(indices, values, rate(number))
            self.payloads.append(CODEC.encode_sparse(indices, values, self.layout))
            self.steps.add(self.payloads[-1], rate(number))
        return self


def rate(number):
    return 0.5 / number
