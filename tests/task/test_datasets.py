"""Every data set is read as published; tests cover missing, damaged and downloaded files."""

import gzip
import hashlib
import inspect
import pickle
import urllib.error
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import edgewire.task.datasets.digits as digits_module
from edgewire.task.errors import TaskError
from tests.task.data import CONF, load_data, one_line, write_mnist

pytestmark = pytest.mark.usefixtures("empty_place")


def write_cifar(root, reader, monkeypatch):
    """Write tiny CIFAR files in the published format; give their MD5 sums to torchvision."""
    folder = root / reader.base_folder
    folder.mkdir(parents=True)
    key = "labels" if reader.__name__ == "CIFAR10" else "fine_labels"
    random = np.random.default_rng(1)

    def store(name, value):
        content = pickle.dumps(value)
        (folder / name).write_bytes(content)
        return hashlib.md5(content).hexdigest()

    batches = {}
    for attribute in ("train_list", "test_list"):
        listed = []
        for name, _ in getattr(reader, attribute):
            pixels = random.integers(0, 256, (4, 3072), dtype=np.uint8)
            batches[name] = (pixels, [0, 3, 9, 1])
            listed.append([name, store(name, {"data": pixels, key: batches[name][1]})])
        monkeypatch.setattr(reader, attribute, listed)
    meta = dict(reader.meta)
    meta["md5"] = store(meta["filename"], {meta["key"]: [str(i) for i in range(10)]})
    monkeypatch.setattr(reader, "meta", meta)
    return batches


def test_choices_of_other_sources_show_the_defaults_of_their_functions():
    found = 0
    for path in CONF.glob("*.yaml"):
        content = OmegaConf.to_container(OmegaConf.load(path))
        for base in content.pop("defaults", []):
            content = OmegaConf.to_container(OmegaConf.load(CONF / f"{base}.yaml")) | content
        if (name := content.pop("_target_", "")).startswith("edgewire.task.datasets."):
            module, _, function = name.rpartition(".")
            parameters = inspect.signature(getattr(import_module(module), function)).parameters
            defaults = {key: each.default for key, each in parameters.items()}
            if "on_device" not in defaults:  # data made here, not the user's own
                continue
            del defaults["on_device"]
            if defaults.get("classes", 0) is None:
                del defaults["classes"]
            assert content == defaults, path
            found += 1
    assert found >= 6


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    data, bunch = load_data("digits"), load_digits()
    found = [
        (image.tolist(), label.item())
        for split in (data.train, data.test)
        for image, label in zip(split.inputs, split.targets, strict=True)
    ]
    images = (bunch.images * (255 / 16)).round().tolist()
    assert sorted(found) == sorted(([i], t) for i, t in zip(images, bunch.target, strict=True))
    pixels = data.train.inputs.float() / 255
    assert data.transform.mean[0] == pytest.approx(pixels.mean().item(), abs=1e-4)
    assert data.transform.std[0] == pytest.approx(pixels.std().item(), abs=1e-4)


def test_digits_on_a_device_without_scikit_learn(monkeypatch, tmp_path):
    from sklearn import datasets

    whole = load_data("digits")
    monkeypatch.setattr(digits_module, "find_spec", lambda name: None)
    with pytest.raises(TaskError, match="copy datasets/data/digits") as error:
        load_data("digits", root=str(tmp_path))
    assert str(tmp_path / "digits.csv.gz") in str(error.value)
    file = Path(datasets.__file__).parent / "data" / "digits.csv.gz"
    (tmp_path / "digits.csv.gz").write_bytes(file.read_bytes())
    found = load_data("digits", root=str(tmp_path))
    assert torch.equal(found.train.inputs, whole.train.inputs)
    assert torch.equal(found.test.targets, whole.test.targets)


@pytest.mark.parametrize(
    "content",
    [b"", b"not a gzip", gzip.compress(b"1,2\n", mtime=0), None],
    ids=["empty", "no gzip", "too few", "a folder"],
)
def test_an_invalid_file_of_digits(content, tmp_path):
    own = tmp_path / "digits.csv.gz"
    own.write_bytes(content) if content is not None else own.mkdir()
    with pytest.raises(TaskError, match="copy it again"):
        load_data("digits", root=str(tmp_path))


def test_digits_are_split_the_same_way_for_ever():
    # A changed split would make results of different devices and versions incomparable.
    labels = load_data("digits").test.targets.numpy().tobytes()
    assert hashlib.sha256(labels).hexdigest()[:16] == "7d108ee8fe30bb90"


def test_an_error_for_missing_data_names_the_place_and_the_remedy(tmp_path):
    with pytest.raises(TaskError) as error:
        load_data("fashion_mnist")
    assert one_line(error) == (
        f"fashion_mnist not found: looked in ./data/FashionMNIST/raw and {tmp_path}/debian; "
        "give dataset.root=FOLDER, or dataset.download=true, "
        "or install the Debian package dataset-fashion-mnist"
    )
    for name, place in (
        ("mnist", "MNIST/raw"),
        ("cifar10", "cifar-10-batches-py"),
        ("cifar100", "cifar-100-python"),
    ):
        with pytest.raises(TaskError) as error:
            load_data(name, root="/nowhere")
        assert one_line(error) == (
            f"{name} not found: looked in /nowhere/{place}; "
            "give dataset.root=FOLDER, or dataset.download=true"
        )


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_files(tmp_path, monkeypatch, published, name):
    reader = getattr(published, name.upper())
    batches = write_cifar(tmp_path, reader, monkeypatch)
    data = load_data(name, root=str(tmp_path))
    for split, listed in ((data.train, reader.train_list), (data.test, reader.test_list)):
        pixels = np.concatenate([batches[file][0] for file, _ in listed]).reshape(-1, 3, 32, 32)
        assert np.array_equal(split.inputs.numpy(), pixels)
        assert split.inputs.is_contiguous()
        assert split.inputs.dtype == torch.uint8
        assert split.targets.tolist() == [0, 3, 9, 1] * len(listed)
    assert data.classes == (10 if name == "cifar10" else 100)
    assert len(data.transform.mean) == len(data.transform.std) == 3


def test_damaged_cifar_is_named(tmp_path, monkeypatch, published):
    write_cifar(tmp_path, published.CIFAR10, monkeypatch)
    with open(tmp_path / "cifar-10-batches-py" / "data_batch_2", "ab") as file:
        file.write(b"x")
    with pytest.raises(TaskError, match="cifar-10-batches-py is incomplete or damaged") as error:
        load_data("cifar10", root=str(tmp_path))
    one_line(error)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
@pytest.mark.parametrize(
    "failure",
    [
        urllib.error.URLError("no such host"),
        ConnectionResetError("no such host"),
        RuntimeError("x\nno such host\n"),
    ],
)
def test_a_failed_download_gives_one_line(tmp_path, monkeypatch, published, name, failure):
    def fail(*_, **__):
        raise failure

    for module in (published.mnist, published.cifar):
        monkeypatch.setattr(module, "download_and_extract_archive", fail)
    with pytest.raises(
        TaskError, match=f"{name} could not be downloaded to .*no such host"
    ) as error:
        load_data(name, root=str(tmp_path), download=True)
    one_line(error)


def test_a_download_is_read_and_not_repeated(tmp_path, monkeypatch, published):
    def fetch(reader):
        write_mnist(Path(reader.raw_folder))

    monkeypatch.setattr(published.FashionMNIST, "download", fetch)
    first = load_data("fashion_mnist", download=True)
    again = load_data(
        "fashion_mnist", download=True
    )  # a second download would fail, because the folder exists
    assert (tmp_path / "data/FashionMNIST/raw").is_dir()
    assert torch.equal(first.train.inputs, again.train.inputs)


def test_size_resizes_every_image(tmp_path):
    write_mnist(tmp_path / "MNIST" / "raw")
    plain = load_data("mnist", root=str(tmp_path))
    data = load_data("mnist", root=str(tmp_path), size=14)
    assert data.train.inputs.shape == (12, 1, 14, 14)
    assert data.test.inputs.shape == (5, 1, 14, 14)
    assert data.train.inputs.dtype == torch.uint8
    expected = torch.nn.functional.interpolate(
        plain.test.inputs.float(), size=(14, 14), mode="bilinear", antialias=True
    )
    assert (data.test.inputs.float() - expected).abs().max() <= 1
    assert torch.equal(data.test.targets, plain.test.targets)
