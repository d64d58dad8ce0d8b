import pytest
from omegaconf import OmegaConf

from tests.conf.hostile import HIDDEN, SECRET

CONTENT = "this stays as it is\n"


@pytest.fixture
def bait(tmp_path, monkeypatch):
    """A file that a hostile command would change, and a secret variable; both are checked."""
    monkeypatch.setenv(SECRET, HIDDEN)
    file = tmp_path / "bait"
    file.write_text(CONTENT)
    before = sorted(tmp_path.iterdir())
    yield file
    assert file.read_text() == CONTENT
    assert sorted(tmp_path.iterdir()) == before


@pytest.fixture
def asked():
    """The list of arguments that a resolver named `spy` was called with."""
    found = []
    OmegaConf.register_new_resolver("spy", lambda *given: found.append(given) or "")
    yield found
    OmegaConf.clear_resolver("spy")
