import pytest

import task.datasets.mnist as mnist_module


@pytest.fixture(scope="session")
def published():
    """Return torchvision's data sets; the import is here, because it takes seconds."""
    from torchvision import datasets

    return datasets


@pytest.fixture
def empty_place(tmp_path, monkeypatch):
    """A folder without data sets, and none from Debian."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mnist_module, "DEBIAN", tmp_path / "debian")
