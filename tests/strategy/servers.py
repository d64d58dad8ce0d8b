"""Servers that stop at a chosen moment and continue from a saved state."""

from contextlib import suppress

from flwr.app import ArrayRecord, ConfigRecord

from edgewire.compression.flower import to_vector
from edgewire.conf.build import data_of, model_of
from edgewire.strategy.factory import made
from edgewire.task.flat_model import FlatModel
from tests.runs import configured


class Stopped(Exception):
    """Raised to stop the server."""


class Server:
    """The server of a run; `records` holds a row of each recorded model.

    A row is the number of rounds done, the model as bytes, and the traffic. A server counts rounds;
    an asynchronous server counts updates, and a server of a cut model mini-batches.
    """

    def __init__(self, words):
        self.config, self.records = configured(*words), []
        self.data = data_of(self.config)
        self.scheme = made(self.config, self.data)

    def serve(self, grid, on_state_complete):
        """Train; `on_state_complete` is called when the state can be saved, and may stop it."""
        model = FlatModel(model_of(self.config, self.data), "cpu")
        self.scheme.on_state_complete = on_state_complete
        with suppress(Stopped):
            self.scheme.start(
                grid,
                ArrayRecord(model.state_dict()),
                self.config.rounds,
                self.config.timeout,
                ConfigRecord({"lr": self.config.lr}),
                evaluate_fn=self._record,
            )

    def _record(self, number, model):
        traffic = self.scheme.traffic.as_dict()
        self.records.append((number, to_vector(model).tobytes(), traffic))
