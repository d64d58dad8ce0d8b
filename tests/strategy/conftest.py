import pytest

from edgewire.compression.codec import Codec


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
