import pytest
from omegaconf import OmegaConf

from tests.conf.hostile import HIDDEN, SECRET

CONTENT = "this stays as it is\n"


@pytest.fixture
def bait(tmp_path, monkeypatch):
    """Yield a file that a hostile command would change, then check it; set a secret variable."""
    monkeypatch.setenv(SECRET, HIDDEN)
    file = tmp_path / "bait"
    file.write_text(CONTENT)
    before = sorted(tmp_path.iterdir())
    yield file
    assert file.read_text() == CONTENT
    assert sorted(tmp_path.iterdir()) == before


@pytest.fixture
def asked():
    """Yield the list of all arguments with which the OmegaConf resolver `spy` was called."""
    found = []
    OmegaConf.register_new_resolver("spy", lambda *given: found.append(given) or "")
    yield found
    OmegaConf.clear_resolver("spy")
