"""Helpers for tests of data sets: small MNIST files, and the text of an error."""

import gzip
import struct

import numpy as np


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
