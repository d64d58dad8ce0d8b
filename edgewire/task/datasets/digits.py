"""UCI digits: 1,797 images of 8 x 8 pixels that come with scikit-learn."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgewire.task import DEFAULT_ROOT
from edgewire.task.datasets.data import Data, Split, holdout, reads_as, shown
from edgewire.task.errors import TaskError
from edgewire.task.transforms import ImageTransform

FILE = "datasets/data/digits.csv.gz"  # path inside the package scikit-learn
SHAPE = (1797, 65)


def digits(root: str | None = None) -> Data:
    """Return 1,438 training and 359 test images of 1x8x8; values 0..16 are scaled to 0..255."""
    rows = torch.from_numpy(_rows(Path(root or DEFAULT_ROOT)))
    images = rows[:, :64].mul(255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    train, test = holdout(Split(images, rows[:, 64].long()), 0.2)
    return Data(train, test, ImageTransform((0.3058,), (0.3764,)), 10)


def _rows(folder: Path) -> NDArray[Any]:
    """Return each image's 64 values and its class, float64 (1797, 65).

    This function looks for the file in the data folder first, then in scikit-learn's package. It
    does not import scikit-learn, which would take a second in every process, and which a device
    need not have.
    """
    own = folder / Path(FILE).name
    files = [own]
    package = find_spec("sklearn")  # this does not import it
    if package is not None and package.origin is not None:
        files.append(Path(package.origin).parent / FILE)
    for file in files:
        if file.exists():
            with reads_as(file, "the digits"):
                return np.loadtxt(file, delimiter=",").reshape(SHAPE)
    raise TaskError(
        f"digits not found: install scikit-learn, which has them, or copy {FILE} of a machine with "
        f"scikit-learn to {shown(own)}"
    )
