"""Data sets of the page `carry_over`, on which `algorithm=edgewire` runs with the same settings.

The preset was made with eight of the page's tasks: part of Fashion-MNIST, `classes`, the data sets
activity and keywords, a quarter of CIFAR-10 with Dirichlet's shares (`photos`), `hastie`, `manual`,
and the data set sensor_table. Four others are kept back while it is made, and run once at its end:
part of MNIST with Dirichlet's shares, `friedman`, and the data sets characters and anomaly.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import make_classification, make_friedman1, make_hastie_10_2

from edgewire.task.datasets.data import Data
from edgewire.task.datasets.folder import imagefolder
from edgewire.task.datasets.mnist import fashion_mnist, mnist
from edgewire.task.datasets.synthetic import divided

PICTURES = {"fashion_mnist": fashion_mnist, "mnist": mnist}


def pictures(source: str, root: str | None = None, samples: int = 12000) -> Data:
    """Return the first `samples` training pictures of a data set, and its test pictures."""
    data = PICTURES[source](root)
    return Data(data.train.taken(torch.arange(samples)), data.test, data.transform, data.classes)


def photos(root: str = "data/CIFAR10", samples: int = 12500) -> Data:
    """Return training pictures of class folders, at equal distances, and all test pictures.

    `root`: it has the folders train and test, as a copy of CIFAR-10 with a file for each picture.
    """
    data = imagefolder(root)
    every = torch.arange(0, len(data.train), max(1, len(data.train) // samples))
    return replace(data, train=data.train.taken(every))


def classes(rows: int = 16000) -> Data:
    """Return 40 columns and one of ten classes: scikit-learn's `make_classification`."""
    columns, labels = make_classification(
        rows, 40, n_informative=20, n_redundant=8, n_classes=10, random_state=0
    )
    return _table(columns, labels)


def hastie(rows: int = 16000) -> Data:
    """Return ten normal columns, and whether the sum of their squares is above 9.34."""
    columns, labels = make_hastie_10_2(rows, random_state=0)
    return _table(columns, labels > 0)


def friedman(rows: int = 16000) -> Data:
    """Return ten columns and a number that half of them determine, with noise, normalised."""
    columns, numbers = make_friedman1(rows, noise=1.0, random_state=0)
    train, test = divided(_tests(rows), columns, (numbers - numbers.mean()) / numbers.std())
    return Data(train, test)


def manual(length: int = 64) -> Data:
    """Return windows of the Python manual (`pydoc_data.topics`), as bytes; each tenth is a test.

    The text depends on the version of Python: that of 3.11 has 464,970 characters.
    """
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
    data = np.frombuffer(text, np.uint8).astype(np.int64)
    size = (len(data) - 1) // length * length
    inputs, targets = (data[at : at + size].reshape(-1, length) for at in (0, 1))
    return Data(*divided(np.arange(len(inputs)) % 10 == 9, inputs, targets))


def _table(columns: NDArray[np.float64], labels: NDArray[np.generic]) -> Data:
    columns = (columns - columns.mean(0)) / columns.std(0)
    return Data(*divided(_tests(len(columns)), columns, labels.astype(np.int64)))


def _tests(rows: int) -> NDArray[np.bool_]:
    return np.arange(rows) >= rows * 3 // 4
