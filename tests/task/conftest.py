import pytest

import task.datasets.mnist as mnist_module


@pytest.fixture(scope="session")
def published():
    """Torchvision's own readers; imported here, as that takes seconds and two workers collect."""
    from torchvision import datasets

    return datasets


@pytest.fixture
def empty_place(tmp_path, monkeypatch):
    """No data in the current folder, and none from Debian."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mnist_module, "DEBIAN", tmp_path / "debian")
