"""Helpers for tests of data sets: their functions, small MNIST files, the text of an error."""

import gzip
import struct
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
from omegaconf import OmegaConf

from edgewire.task.datasets.data import usable

CONF = Path(__file__).parents[2] / "conf" / "dataset"


def load_data(name, size=None, **options):
    """Return the data set `dataset=NAME`, as a run reads it."""
    target = OmegaConf.load(CONF / f"{name}.yaml")._target_
    return usable(name, resolve_name(target)(**options), size)


def idx(array):
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder, zipped=False, train=12, test=5):
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    written = {}
    for prefix, count in (("train", train), ("t10k", test)):
        images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for stem, array in (
            (f"{prefix}-images-idx3-ubyte", images),
            (f"{prefix}-labels-idx1-ubyte", labels),
        ):
            name, content = stem, idx(array)
            if zipped:
                name, content = f"{stem}.gz", gzip.compress(content)
            (folder / name).write_bytes(content)
        written[prefix] = (images, labels)
    return written


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)
