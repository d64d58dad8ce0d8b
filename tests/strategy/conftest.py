import pytest

from edgewire.compression.codec import Codec
from edgewire.strategy.collector import Stragglers


@pytest.fixture
def lates(monkeypatch):
    """Return a list of this test's `Stragglers` objects (a server's records of late replies)."""
    made, begin = [], Stragglers.__init__

    def noting(self, *options):
        begin(self, *options)
        made.append(self)

    monkeypatch.setattr(Stragglers, "__init__", noting)
    return made


@pytest.fixture
def encoded(monkeypatch):
    """Return a list of the nodes' replies: the number and the payload's size of each."""
    found, encode = [], Codec.encode

    def watched(self, update, layout, **given):
        payload = encode(self, update, layout, **given)
        if "workers" in given:  # a node's reply
            found.append((given["number"], len(payload)))
        return payload

    monkeypatch.setattr(Codec, "encode", watched)
    return found
