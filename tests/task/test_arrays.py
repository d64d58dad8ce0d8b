"""NumPy files as data sets: arrays by name, mapped from the file."""

import sys
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgewire.task.datasets.arrays import npz
from edgewire.task.datasets.data import usable
from edgewire.task.errors import MissingOption, NoData, TaskError
from edgewire.task.transforms import ImageTransform

X = np.arange(60, dtype=np.float32).reshape(20, 3)
Y = np.arange(20) % 3


def is_mapped(tensor, file):
    """Return whether a tensor's memory is that of a file, by the process's own memory map."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= tensor.data_ptr() < end:
                return line.rstrip().endswith(str(file))
    return False


@pytest.mark.parametrize("kind", ["npz", "folder", "Keras's", "two files", "two folders"])
def test_arrays_have_names_and_are_mapped(kind, tmp_path):
    files = {"npz": "t.npz", "Keras's": "t.npz", "two files": "train.npz"}
    file = tmp_path / files.get(kind, "x.npy")
    if kind == "npz":
        np.savez(file, x=X, y=Y)
    elif kind == "folder":
        np.save(tmp_path / "x.npy", X)
        np.save(tmp_path / "y.npy", Y)
    elif kind == "Keras's":
        np.savez(file, x_train=X, y_train=Y, x_test=X[:4] + 1, y_test=Y[:4])
    elif kind == "two files":
        np.savez(file, x=X, y=Y)
        np.savez(tmp_path / "test.npz", x=X[:4] + 1, y=Y[:4])
    else:
        for part, x, y in (("train", X, Y), ("test", X[:4] + 1, Y[:4])):
            (tmp_path / part).mkdir()
            np.save(tmp_path / part / "x.npy", x)
            np.save(tmp_path / part / "y.npy", y)
        file = tmp_path / "train" / "x.npy"
    root = str(file if kind == "Keras's" else tmp_path)
    tested = kind not in ("npz", "folder")
    data = npz(root, test_share=0.0)
    assert torch.equal(data.train.inputs, torch.from_numpy(X))
    assert data.train.targets.tolist() == Y.tolist()
    assert torch.equal(data.test.inputs, torch.from_numpy(X[:4] + 1 if tested else X[:0]))
    usable("mine", data)
    if sys.platform == "linux" and file.suffix == ".npy":
        assert is_mapped(data.train.inputs, file)
        assert is_mapped(npz(root, on_device=True).train.inputs, file)
    assert len(npz(root).test) == 4  # a share of the training rows, or the test split
    before = file.read_bytes()
    data.train.inputs.zero_()  # memory of this process, not the file
    assert file.read_bytes() == before


KINDS = ["<f2", "<f4", "<f8", ">f8", ">f4", "|b1", "|i1", "|u1", "<i2", ">i2", "<u2", "<u4", "<i8"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(data=st.data(), compressed=st.booleans(), order=st.sampled_from("CF"))
def test_any_array_of_numbers_is_read(data, compressed, order, tmp_path):
    kind = data.draw(st.sampled_from(KINDS))
    shape = data.draw(arrays.array_shapes(min_dims=1, max_dims=4, max_side=4))
    numbers = None if np.dtype(kind).kind != "f" else {"allow_nan": False, "allow_infinity": False}
    array = data.draw(arrays.arrays(kind, shape, elements=numbers))
    (np.savez_compressed if compressed else np.savez)(
        tmp_path / "t.npz", x=np.asarray(array, order=order), y=array
    )
    found = npz(str(tmp_path / "t.npz"), test_share=0.0)
    is_float = np.dtype(kind).kind == "f"
    prepared = found.prepared(found.train.inputs)
    for tensor in (prepared, found.train.targets):
        assert tensor.dtype == (torch.float32 if is_float else torch.int64)
        flat = array.reshape(array.shape[:1]) if tensor.shape != array.shape else array
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(tensor.numpy(), flat.astype(tensor.numpy().dtype))


def test_several_inputs_are_a_dictionary(tmp_path):
    np.savez(tmp_path / "t.npz", left=X, right=X[:, 0], y=Y, who=np.array(["b", "a"] * 10))
    root = str(tmp_path / "t.npz")
    data = npz(root, group="who", test_share=0.0)
    assert set(data.train.inputs) == {"left", "right"}
    assert data.train.groups.tolist() == [1, 0] * 10
    np.savez(tmp_path / "alone.npz", left=X, y=Y)
    alone = npz(str(tmp_path / "alone.npz"), group="who", on_device=True, classes=["0", "1", "2"])
    assert (len(alone.train), alone.train.groups) == (20, None)
    assert isinstance(npz(root, inputs="left").train.inputs, torch.Tensor)
    assert isinstance(npz(root, inputs=["right"]).train.inputs, torch.Tensor)
    with pytest.raises(TaskError, match="one tensor"):
        npz(root, group="who", mean=[1], std=[1]).prepared(data.train.inputs)


def test_a_mean_and_a_deviation_for_each_channel(tmp_path):
    windows = np.arange(48, dtype=np.int16).reshape(4, 3, 4)
    np.savez(tmp_path / "t.npz", x=windows, y=Y[:4])
    data = npz(str(tmp_path / "t.npz"), mean=[1, 2, 3], std=[1, 2, 4], test_share=0.0)
    expected = (windows - np.array([1, 2, 3])[:, None]) / np.array([1, 2, 4])[:, None]
    np.testing.assert_allclose(data.prepared(data.train.inputs), expected)
    with pytest.raises(TaskError, match="2 means for 3"):
        npz(str(tmp_path / "t.npz"), mean=[1, 2], std=[1, 2]).prepared(data.train.inputs)


@pytest.mark.parametrize("shape", [(20, 8, 8), (20, 3, 8, 8), (20, 8, 8, 3)])
def test_images(shape, tmp_path):
    images = np.arange(np.prod(shape), dtype=np.uint32).reshape(shape).astype(np.uint8)
    np.savez(tmp_path / "t.npz", x=images, y=Y)
    data = npz(str(tmp_path / "t.npz"), images=True, classes=["0", "1", "2"])
    usable("mine", data)
    assert isinstance(data.transform, ImageTransform)
    assert data.image_shape == (1 if len(shape) == 3 else 3, 8, 8)
    if shape[-1] == 3:
        both = torch.cat([data.train.inputs, data.test.inputs]).permute(0, 2, 3, 1)
        assert {tuple(i.flatten().tolist()) for i in both} == {tuple(i.flat) for i in images}


def test_names_of_classes(tmp_path):
    np.savez(tmp_path / "t.npz", x=X, y=np.array([[b"owl"], [b"cat"]] * 10), n=Y + 8)
    root = str(tmp_path / "t.npz")
    data = npz(root, inputs="x", test_share=0.0)
    assert (data.class_names, data.train.targets[:2].tolist()) == (("cat", "owl"), [1, 0])
    named = npz(root, inputs="x", target="n", classes=["10", "8", "9"], test_share=0.0)
    assert named.train.targets[:3].tolist() == [0, 1, 2]
    with pytest.raises(MissingOption):
        npz(root, inputs="x", on_device=True)


WRONG = {
    "an absent array": ({"target": "z"}, {}, "no array z for dataset.target=: there are x, y"),
    "the target as input": ({"inputs": "y"}, {}, "not the target"),
    "another number of rows": ({}, {"y": Y[:4]}, "each of the 20 samples"),
    "no samples": ({}, {"x": X[:0], "y": Y[:0]}, "no samples"),
    "one number": ({}, {"y": np.float32(3)}, "no samples"),
    "complex numbers": ({}, {"x": X * 1j}, "integers or floats"),
    "objects": ({}, {"x": np.array([{}] * 20)}, "without Python objects"),
    "text as inputs": ({}, {"x": np.array(["a"] * 20)}, "integers or floats"),
    "classes of floats": ({"target": "x", "inputs": "y", "classes": ["1"]}, {}, "no classes"),
    "classes of nothing": ({"target": None, "classes": ["1"]}, {}, "dataset.target="),
    "images of floats": ({"images": True}, {"x": np.zeros((20, 8, 8))}, "uint8"),
    "images of rows": ({"images": True}, {}, r"shape \(15, 3\)|shape \(20, 3\)"),
    "a mean alone": ({"mean": [1]}, {}, "of one length"),
    "one sample": ({}, {"x": X[:1], "y": Y[:1]}, "too few samples"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_one_line(case, tmp_path):
    options, changed, line = WRONG[case]
    np.savez(tmp_path / "t.npz", **{"x": X, "y": Y, **changed})
    with pytest.raises(TaskError, match=line) as caught:
        usable("mine", npz(str(tmp_path / "t.npz"), **options))
    assert "\n" not in str(caught.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(data, tmp_path):
    np.savez(tmp_path / "good.npz", x=X, y=Y)
    content = bytearray((tmp_path / "good.npz").read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    (tmp_path / "t.npz").write_bytes(content)
    try:
        npz(str(tmp_path / "t.npz"))
        told = ""
    except TaskError as error:
        told = str(error)
    assert "\n" not in told


def test_what_is_there_must_be_clear(tmp_path):
    with pytest.raises(NoData):
        npz(str(tmp_path))
    for name in ("a.npz", "b.npz"):
        np.savez(tmp_path / name, x=X, y=Y)
    with pytest.raises(TaskError, match="several"):
        npz(str(tmp_path))
    (tmp_path / "text.npz").write_text("x")
    with pytest.raises(TaskError, match=r"text\.npz is no \.npz file"):
        npz(str(tmp_path / "text.npz"))
    (tmp_path / "c.txt").write_text("x")
    with pytest.raises(TaskError, match=r"\.npz or \.npy files"):
        npz(str(tmp_path / "c.txt"))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("readme.txt", "x")
    with pytest.raises(TaskError):
        npz(str(tmp_path / "a.npz"))
