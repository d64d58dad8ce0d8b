"""A folder of photos as a data set: classes, sizes, and files that are no photos."""

import numpy as np
import pytest
import torch
from PIL import Image

from edgewire.task.datasets.folder import imagefolder, load_folder
from edgewire.task.errors import NoData, TaskError
from tests.task.data import one_line


def photo(path, colour=(200, 100, 50), size=(40, 30), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path)


def photos(folder, classes=("cat", "dog"), count=10, suffix="png"):
    for number, name in enumerate(classes):
        for index in range(count):
            photo(folder / name / f"{index:02}.{suffix}", (10 * index, 50 * number, 7))


def test_class_folders_become_a_fixed_80_20_split(tmp_path):
    photos(tmp_path)
    data = imagefolder(str(tmp_path))
    assert data.train.inputs.shape == (16, 3, 32, 32)
    assert data.test.inputs.shape == (4, 3, 32, 32)
    assert torch.bincount(data.test.targets).tolist() == [2, 2]
    assert data.class_names == ("cat", "dog")
    assert (data.classes, data.transform.mean, data.transform.std) == (2, (0.5,) * 3, (0.25,) * 3)
    again = imagefolder(str(tmp_path))
    assert torch.equal(data.test.inputs, again.test.inputs)
    # Each photo has its own colour: no photo is in both parts, and no photo is lost.
    colours = torch.cat([data.train.inputs, data.test.inputs])[:, :, 0, 0].tolist()
    assert len({tuple(colour) for colour in colours}) == 20


def test_train_and_test_folders_are_used_unchanged(tmp_path):
    photos(tmp_path / "train", count=3)
    photos(tmp_path / "test", classes=("dog",), count=2)
    data = imagefolder(str(tmp_path), size=8)
    assert data.train.inputs.shape == (6, 3, 8, 8)
    assert data.train.targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test.targets.tolist() == [1, 1]  # dog keeps its id 1, although cat has no photo
    assert data.train.inputs[4, :, 3, 3].tolist() == [10, 50, 7]


def test_the_name_of_a_class_is_no_path(tmp_path):
    """A submitted run cannot ask whether a folder outside of the data folder exists."""
    (tmp_path / "data").mkdir()
    (tmp_path / "other").mkdir()
    for name in ("../other", "../nowhere", str(tmp_path / "other")):
        with pytest.raises(NoData):
            imagefolder(str(tmp_path / "data"), classes=(name, "cat"))
    photos(tmp_path / "data", classes=("cat",))
    for name in ("../other", "../nowhere"):
        with pytest.raises(TaskError, match=r"no image in \.\./\w+/"):
            imagefolder(str(tmp_path / "data"), classes=(name, "cat"))


@pytest.mark.parametrize(
    ("suffix", "mode"),
    [
        ("jpg", "RGB"),
        ("jpg", "L"),
        ("png", "RGBA"),
        ("png", "P"),
        ("png", "1"),
        ("bmp", "RGB"),
        ("webp", "RGB"),
        ("JPEG", "CMYK"),
    ],
)
def test_every_kind_of_photo_is_read(tmp_path, suffix, mode):
    photo(tmp_path / "a" / "deep" / f"x.{suffix}", (255, 255, 255), (300, 200), mode)
    split = load_folder(tmp_path, ["a"], 16)
    assert split.inputs.shape == (1, 3, 16, 16)
    assert split.inputs.dtype == torch.uint8
    assert split.inputs.min() >= 250


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_grey_of_16_bits_keeps_its_shades(tmp_path, suffix):
    (tmp_path / "a").mkdir()
    shades = np.linspace(0, 65535, 16 * 16).astype(np.uint16).reshape(16, 16)
    Image.fromarray(shades).save(tmp_path / "a" / f"x.{suffix}")
    split = load_folder(tmp_path, ["a"], 16)
    assert np.abs(split.inputs[0, 0].numpy().astype(int) - shades // 256).max() <= 1


def test_pixels_of_no_known_range_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.ones((8, 8), np.float32)).save(tmp_path / "a" / "x.tif")
    with pytest.raises(TaskError, match=r"x\.tif .*floating-point"):
        load_folder(tmp_path, ["a"], 8)


def test_a_photo_of_a_turned_camera_is_turned_upright(tmp_path):
    (tmp_path / "a").mkdir()
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:, :16] = 255  # white on the left; after a quarter turn, at the top
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "a" / "x.jpg", exif=turned)
    image = load_folder(tmp_path, ["a"], 32).inputs[0, 0]
    assert image[:14].min() > 240
    assert image[18:].max() < 15


def test_classes_can_be_named(tmp_path):
    photos(tmp_path, classes=("cat", "dog", "owl"))
    with pytest.raises(TaskError, match="owl is no known class"):
        imagefolder(str(tmp_path), classes=["dog", "cat"])
    with pytest.raises(TaskError, match="no image in yak/"):
        imagefolder(str(tmp_path), classes=["dog", "cat", "owl", "yak"])
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)  # of a download that failed
    data = imagefolder(str(tmp_path), classes=["owl", "dog", "cat"])
    assert data.class_names == ("cat", "dog", "owl")


def test_large_photos_are_averaged_not_sampled(tmp_path):
    (tmp_path / "a").mkdir()
    board = (np.indices((256, 256)).sum(0) % 2 * 255).astype(np.uint8)
    Image.fromarray(board).save(tmp_path / "a" / "board.png")
    split = load_folder(tmp_path, ["a"], 8)
    assert (split.inputs.float() - 127.5).abs().max() <= 2


def test_nodes_that_lack_a_class_agree_on_the_ids(tmp_path):
    photos(tmp_path / "node", classes=("dog",), count=2)
    (tmp_path / "node" / "cat").mkdir()
    split = load_folder(tmp_path / "node", ["owl", "dog", "cat"], 8)
    assert split.targets.tolist() == [1, 1]
    assert load_folder(tmp_path / "node", ["cat", "dog"], 8).targets.tolist() == [1, 1]
    with pytest.raises(TaskError, match=r"dog is no known class: .*cat, owl") as error:
        load_folder(tmp_path / "node", ["owl", "cat"], 8)
    one_line(error)


@pytest.mark.parametrize("content", [b"", b"no image", "truncated", "flipped"])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_broken_image_is_named(tmp_path, content, suffix):
    photos(tmp_path, suffix=suffix)
    path = tmp_path / "dog" / f"03.{suffix}"
    whole = path.read_bytes()
    if content == "truncated":
        content = whole[: len(whole) // 2]
    elif content == "flipped":
        content = whole[:8] + bytes(255 - b for b in whole[8:40]) + whole[40:]
    path.write_bytes(content)
    with pytest.raises(TaskError) as error:
        imagefolder(str(tmp_path))
    assert one_line(error).startswith(f"{path} cannot be read as a photo (")


def test_all_broken_images_are_named(tmp_path):
    photos(tmp_path, count=8)
    for number in range(7):
        (tmp_path / "dog" / f"0{number}.png").write_bytes(b"x")
    with pytest.raises(TaskError) as error:
        imagefolder(str(tmp_path))
    end = "by a .jpg or .png; the same for 01.png, 02.png, 03.png, 04.png and 2 more"
    assert one_line(error).endswith(end)


def cases(tmp_path):
    photos(tmp_path / "one", classes=("cat",))
    photos(tmp_path / "hollow")
    (tmp_path / "hollow" / "owl").mkdir()
    photos(tmp_path / "half" / "train")
    photos(tmp_path / "single", count=1)
    photos(tmp_path / "strange" / "train")
    photos(tmp_path / "strange" / "test", classes=("owl",))
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare" / "cat").mkdir(parents=True)
    (tmp_path / "file").write_text("x")


@pytest.mark.parametrize(
    ("root", "says"),
    [
        ("absent", "is not a folder"),
        ("file", "is not a folder"),
        ("empty", "has no class folders: put the images into"),
        ("one/cat", "has no class folders: put the images into"),
        ("single/cat", "has no class folders: did you mean dataset.root=.*/single\\?"),
        ("bare", "no image in them"),
        ("one", "one class only"),
        ("hollow", "no image in owl/: put some into it"),
        ("half", "only one of the folders train and test"),
        ("single", "has too few samples to test on a share of them: add more"),
        ("strange", "owl is no known class"),
    ],
)
def test_unusable_folders_are_refused(tmp_path, root, says):
    cases(tmp_path)
    with pytest.raises(TaskError, match=says) as error:
        imagefolder(str(tmp_path / root))
    assert str(tmp_path / root) in one_line(error)


def test_a_class_without_a_test_image_is_named(tmp_path, caplog):
    photos(tmp_path, count=4)
    photos(tmp_path, count=1, classes=("owl",))
    imagefolder(str(tmp_path), size=8)
    assert [each.getMessage() for each in caplog.records] == [
        f"{tmp_path}: no image of owl is left to test on: add more"
    ]


def test_images_that_are_left_out_are_counted_by_ending_in_one_line(tmp_path, caplog):
    """Hidden files, such as a Mac's ._x.jpg, and folders named as photos are left out too."""
    photos(tmp_path, count=3)
    odd = ("a.heic", "b.HEIC", "c.gif", "d.avif", "e.jfif", ".f.gif", "notes.txt", "._x.jpg")
    for name in odd:
        (tmp_path / "cat" / name).touch()
    (tmp_path / "cat" / "album.jpg").mkdir()
    (tmp_path / ".thumbnails").mkdir()
    with caplog.at_level("WARNING", "edgewire"):
        assert len(load_folder(tmp_path, ["cat", "dog"], 8)) == 6
    said = "1 .avif, 1 .gif, 2 .heic, 1 .jfif, 1 .txt left out, such as cat/a.heic: convert photos"
    said += " to .jpg or .png"
    assert [record.getMessage() for record in caplog.records] == [f"{tmp_path}: {said}"]
