"""Files of MNIST and Fashion-MNIST are read as by torchvision; errors name broken files."""

import gzip

import numpy as np
import pytest
import torch

from edgewire.task.errors import TaskError
from tests.task.data import idx, load_data, one_line, write_mnist

pytestmark = pytest.mark.usefixtures("empty_place")
IMAGES = "t10k-images-idx3-ubyte"


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")]
)
@pytest.mark.parametrize("given", [False, True])
def test_mnist_files(tmp_path, name, folder, zipped, given):
    root = tmp_path / ("elsewhere" if given else "data")
    written = write_mnist(root / folder / "raw", zipped)
    data = load_data(name, root=str(root) if given else None)
    for split, prefix in ((data.train, "train"), (data.test, "t10k")):
        assert split.inputs.dtype == torch.uint8
        assert split.targets.dtype == torch.int64
        assert np.array_equal(split.inputs[:, 0].numpy(), written[prefix][0])
        assert np.array_equal(split.targets.numpy(), written[prefix][1])
    assert (data.classes, len(data.transform.mean), len(data.transform.std)) == (10, 1, 1)


def test_plain_files_are_read_as_torchvision_reads_them(tmp_path, published):
    write_mnist(tmp_path / "MNIST" / "raw")
    expected = published.MNIST(tmp_path, train=True)
    data = load_data("mnist", root=str(tmp_path))
    assert torch.equal(data.train.inputs[:, 0], expected.data)
    assert torch.equal(data.train.targets, expected.targets)


def test_fashion_mnist_from_debian(tmp_path):
    written = write_mnist(tmp_path / "debian", zipped=True)
    data = load_data("fashion_mnist")
    assert np.array_equal(data.test.inputs[:, 0].numpy(), written["t10k"][0])
    with pytest.raises(TaskError, match="not found"):
        load_data("fashion_mnist", root=str(tmp_path))


def test_one_missing_file_of_four_is_missing_data(tmp_path):
    write_mnist(tmp_path / "MNIST" / "raw")
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(TaskError, match="mnist not found"):
        load_data("mnist", root=str(tmp_path))


BROKEN = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[:-1],
    "too long": lambda content: content + b"x",
    "header": lambda content: b"\1" + content[1:],
    "dimensions": lambda content: content[:3] + b"\2" + content[4:],
    "huge": lambda content: content[:4] + b"\xff" * 12 + content[16:],
    "a class too many": lambda content: idx(np.full(5, 10, np.uint8)),
    "a label too few": lambda content: idx(np.zeros(4, np.uint8)),
}
NO_GZIP = {"no gzip": b"no gzip at all", "cut short": gzip.compress(b"x" * 1000)[:-9]}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("damage", [*BROKEN, *NO_GZIP])
def test_a_broken_file_is_named(tmp_path, damage, zipped):
    folder = tmp_path / "MNIST" / "raw"
    write_mnist(folder, zipped)
    name = "t10k-labels-idx1-ubyte" if "label" in damage or "class" in damage else IMAGES
    path = folder / (name + ".gz" * zipped)
    content = gzip.decompress(path.read_bytes()) if zipped else path.read_bytes()
    content = BROKEN[damage](content) if damage in BROKEN else NO_GZIP[damage]
    path.write_bytes(gzip.compress(content) if zipped and damage in BROKEN else content)
    with pytest.raises(TaskError) as error:
        load_data("mnist", root=str(tmp_path))
    assert one_line(error).startswith(f"{path} cannot be read as ")
