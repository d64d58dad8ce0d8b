import pytest

import edgewire.task.datasets.mnist as mnist_module


@pytest.fixture(scope="session")
def published():
    """Return the module `torchvision.datasets`; it is imported here, because this takes seconds."""
    from torchvision import datasets

    return datasets


@pytest.fixture
def empty_place(tmp_path, monkeypatch):
    """Work in a folder without data sets, and hide the data sets of Debian packages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mnist_module, "DEBIAN", tmp_path / "debian")
