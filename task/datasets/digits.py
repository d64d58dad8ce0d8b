"""UCI digits: 1,797 images of 8 x 8 pixels that come with scikit-learn."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from task.datasets.data import DATASETS, Data, Request, Split, holdout

FILE = "datasets/data/digits.csv.gz"  # where releases of scikit-learn have it


@DATASETS.register("digits")
def digits(request: Request) -> Data:
    """1x8x8, 10 classes, the values 0..16 scaled to 0..255; 1,438 to train, 359 to test."""
    rows = torch.from_numpy(_rows())
    images = rows[:, :64].mul(255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    train, test = holdout(Split(images, rows[:, 64].long()), 0.2, seed=0)
    return Data(train, test, 10, mean=(0.3058,), std=(0.3764,))


def _rows() -> NDArray[Any]:
    """An image's 64 values and its class, float64 (1797, 65).

    Read from the file where it is found: importing scikit-learn takes a second in every process.
    """
    package = find_spec("sklearn")  # this does not import it
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / FILE
        if file.exists():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])
