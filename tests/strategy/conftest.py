import pytest

from strategy.collector import Stragglers


@pytest.fixture
def lates(monkeypatch):
    """Every `Stragglers` that is made from here on: what servers keep of replies not in time."""
    made, begin = [], Stragglers.__init__

    def noting(self, *options):
        begin(self, *options)
        made.append(self)

    monkeypatch.setattr(Stragglers, "__init__", noting)
    return made
