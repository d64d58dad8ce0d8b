"""Photos in class folders: the user's own data, on one machine or on each device."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from logging import getLogger
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewire.task import DEFAULT_ROOT
from edgewire.task.datasets.data import Data, Split, reads_as, shown
from edgewire.task.datasets.files import data_of, read_each
from edgewire.task.errors import MissingOption, NoData, TaskError, listed
from edgewire.task.tensors import only
from edgewire.task.transforms import ImageTransform

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
DEFAULT_SIZE = 32
log = getLogger("edgewire")
PHOTOS = ImageTransform((0.5,) * 3, (0.25,) * 3)  # for any photos, on every device


def imagefolder(
    root: str | None = None,
    size: int | None = None,
    classes: Sequence[str] | None = None,
    on_device: bool = False,
) -> Data:
    """Return the user's photos, 3 x size x size; classes are sorted by name.

    The images are in root/train/CLASS/* and root/test/CLASS/*, or in root/CLASS/*. In the second
    case a fixed 20 % of each class become the test set. The mean is 0.5 and the deviation 0.25 for
    any photos, so every device normalises in the same way.

    Args:
        root: the folder. None: the default folder.
        size: the side in pixels. None: 32.
        classes: the names of the class folders; needed if there are other folders too, or if some
            of these may be absent.
        on_device: whether root/CLASS/* are a device's own photos, which are all for training.

    Raises:
        MissingOption: no `classes` on a device: two devices would number their classes differently.
        TaskError: no folder, no image, an unknown class, or an image that cannot be read.
    """
    path, size = Path(root or DEFAULT_ROOT), size or DEFAULT_SIZE
    given = {*(classes or ())}  # of any text, such as ../x: none is looked up
    if on_device and not given:
        raise MissingOption(
            "a device's own folder needs the names of all the run's classes, as in "
            "dataset.classes=[cat,dog]"
        )
    there = {each.name for each in path.glob("*") if each.is_dir()}
    parts = [path / name for name in ("train", "test") if name in there and not on_device]
    if len(parts) == 1:
        raise TaskError(f"{shown(path)} has only one of the folders train and test: add the other")
    if given and not on_device and not there & {"train", *given}:
        raise NoData(f"{shown(path)} is not a folder with these classes: give dataset.root=FOLDER")
    parts = parts or [path]
    names = tuple(sorted(given) or class_folders(parts[0]))
    splits = [load_folder(each, names, size) for each in parts]
    data = data_of(splits, 0.2, on_device, root, transform=PHOTOS, class_names=names)
    if on_device:
        return data
    if len(names) < 2:
        raise TaskError(f"{shown(parts[0])} has one class only, {names[0]}: add images of another")
    for split in (data.train, data.test):
        found = torch.bincount(only(split.targets), minlength=len(names)).tolist()
        bare = [name for name, count in zip(names, found, strict=True) if not count]
        if bare and split is data.train:
            raise TaskError(
                f"{shown(parts[0])} has no image in {bare[0]}/: put some into it, or leave the "
                f"class out"
            )
        if bare:
            log.warning(
                "%s: no image of %s is left to test on: add more", shown(path), listed(bare)
            )
    return data


def without_photos(classes: Sequence[str], size: int | None) -> Data:
    """Return a data set of `imagefolder`'s shape, with splits of 0 images."""
    side = size or DEFAULT_SIZE
    empty = Split(torch.empty((0, 3, side, side), dtype=torch.uint8), torch.empty(0).long())
    names = tuple(sorted(set(classes)))
    return Data(empty, empty, PHOTOS, len(names), names)


def class_folders(path: Path) -> list[str]:
    """Return the names of the class folders in `path`, sorted, without hidden ones."""
    if not path.is_dir():
        raise TaskError(
            f"{shown(path)} is not a folder: give dataset.root=FOLDER with class folders"
        )
    names = sorted(f.name for f in path.iterdir() if f.is_dir() and not f.name.startswith("."))
    if not names:
        siblings = [*path.parent.glob("[!.]*/")]
        deep = len(siblings) > 1 and all(any(map(is_image, each.iterdir())) for each in siblings)
        up = f"did you mean dataset.root={path.parent}?" if deep and path.name else ""
        cure = up or f"put the images into {path}/CLASS/"
        raise TaskError(f"{shown(path)} has no class folders: {cure}")
    return names


def load_folder(path: str | Path, classes: Sequence[str], size: int) -> Split:
    """Read the images in `path`/CLASS/*, scaled to 3 x `size` x `size` whatever their aspect ratio.

    Args:
        path: folder of class folders, which are searched at any depth.
        classes: the names that all nodes use, which give the class ids in sorted order. A node may
            lack some of these folders.
        size: side in pixels.

    Raises:
        TaskError: no folder, no image, an unknown class, or an image that cannot be read.
    """
    samples = labelled(Path(path), sorted(set(classes)))
    images = load_photos([file for file, _ in samples], size)
    return Split(images, torch.tensor([label for _, label in samples]))


def labelled(path: Path, names: Sequence[str]) -> list[tuple[Path, int]]:
    """Return the images in `path`/CLASS/*, each with the place of its class in `names`.

    Raises `TaskError` like `load_folder`.
    """
    samples = []
    unread = list[Path]()
    for name in class_folders(path):
        files, others = photos_of(path / name)
        unread += others
        if name not in names and not files:  # a folder of another data set, or of a download
            continue
        if name not in names:
            raise TaskError(
                f"{path / name} is no known class: rename it to one of {', '.join(names)}, "
                f"or remove it"
            )
        samples += [(file, names.index(name)) for file in files]
    warn_of(unread, path)
    if not samples:
        raise TaskError(
            f"{shown(path)} has class folders but no image in them: "
            f"add files that end in {' '.join(EXTENSIONS)}"
        )
    return samples


def photos_of(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the images below a folder, and its other files, both sorted, without hidden ones."""
    every = (each for each in path.rglob("*") if each.is_file())
    found = sorted(f for f in every if not any(n[0] == "." for n in f.relative_to(path).parts))
    return [f for f in found if is_image(f)], [f for f in found if not is_image(f)]


def warn_of(unread: Sequence[Path], path: Path) -> None:
    """Log one line about the files below `path` that are no images, if there are any."""
    if unread:
        kinds = Counter(f.suffix.lower() or f.name for f in unread)
        counts = listed([f"{count} {ending}" for ending, count in sorted(kinds.items())], 5)
        line = "%s: %s left out, such as %s: convert photos to .jpg or .png"
        log.warning(line, shown(path), counts, unread[0].relative_to(path))


def load_photos(files: Sequence[Path], size: int) -> Tensor:
    """Return image files scaled to `size` x `size`, uint8 (N, 3, size, size).

    Raises `TaskError` for a file that cannot be read as an image.
    """
    images = torch.empty((len(files), 3, size, size), dtype=torch.uint8)
    return read_each(partial(_read, size=size), files, images)


def is_image(file: Path) -> bool:
    """Return whether a path is an image file to read; hidden files (macOS's ._x.jpg) are not."""
    return file.suffix.lower() in EXTENSIONS and not file.name.startswith(".") and file.is_file()


def _read(file: Path, size: int) -> NDArray[np.uint8]:
    """Return one image as uint8 (3, size, size)."""
    from PIL import Image, ImageOps

    with reads_as(file, "a photo", "replace it by a .jpg or .png"), Image.open(file) as image:
        image.draft("RGB", (size, size))  # JPEG: decode a large photo at a fraction of its size
        upright = ImageOps.exif_transpose(image)  # cameras store the orientation in EXIF
        if upright.mode.startswith("I"):  # 16-bit grey, which `convert` would clip at 255
            upright = Image.fromarray((np.asarray(upright) >> 8).clip(0, 255).astype(np.uint8))
        if upright.mode == "F":
            raise ValueError("floating-point pixels have no known range")
        small = upright.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    return np.array(small).transpose(2, 0, 1)
