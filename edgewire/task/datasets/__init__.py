"""Data sets: samples as tensors, in memory or mapped from files.

A data set is one function `(Request) -> Data` registered by name in a module of this package.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edgewire.task.datasets.data import DATASETS, Data, Request, Split, expect_usable, resize
from edgewire.task.datasets.folder import load_folder
from edgewire.task.errors import TaskError
from edgewire.task.transforms import ImageTransform

__all__ = ["Data", "Split", "load_data", "load_folder"]


def load_data(
    name: str,
    *,
    root: str | None = None,
    download: bool = False,
    size: int | None = None,
    classes: Sequence[str] | None = None,
) -> Data:
    """Read a data set into memory.

    Args:
        name: a name in `DATASETS`.
        root: folder, as torchvision's `root`; `~` stands for the home folder. None looks in the
            data set's usual folders.
        download: download the files if they are absent.
        size: side of the images in pixels; None keeps their own.
        classes: the names of `imagefolder`'s class folders; needed if it has other folders too, or
            may lack some of these.

    Raises:
        TaskError: unknown name, files missing or broken, download failed, or data that do not
            satisfy `Data`.
    """
    if size is not None and size < 1:
        raise TaskError(f"dataset.size={size}: give a number of pixels, 1 or more")
    if classes is not None and name != "imagefolder":
        raise TaskError(f"dataset.classes names the folders of imagefolder; leave it for {name}")
    root = str(Path(root).expanduser()) if root is not None else None
    request = Request(root, download, size, tuple(classes) if classes is not None else None)
    data = DATASETS.get(name)(request)
    expect_usable(name, data, size)
    if size is None or not isinstance(data.transform, ImageTransform):
        return data
    return replace(data, train=resize(data.train, size), test=resize(data.test, size))
