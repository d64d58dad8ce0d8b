"""Public data sets' usual layouts: UCI HAR, Speech Commands, in tiny files made here."""

import re
import wave

import numpy as np
import pytest
import torch

from edgewire.conf.build import data_of, model_of, objective_of
from edgewire.task.datasets.data import usable
from edgewire.task.datasets.speech_commands import speech_commands
from edgewire.task.datasets.uci_har import SIGNALS, uci_har
from edgewire.task.errors import MissingOption, NoData, TaskError
from edgewire.task.steps import expect_fits
from edgewire.task.transforms import LogMel
from tests.local_runs import local_run
from tests.runs import ROOT, configured, result_of


@pytest.fixture
def har(tmp_path):
    """Write the folder "UCI HAR Dataset" with 5 windows to train and 2 to test on."""
    random = np.random.default_rng(0)
    folder, content = tmp_path / "UCI HAR Dataset", {}
    for part, rows in (("train", 5), ("test", 2)):
        (folder / part / "Inertial Signals").mkdir(parents=True)
        content[part] = random.normal(size=(9, rows, 128)).astype(np.float32)
        for signal, values in zip(SIGNALS, content[part], strict=True):
            path = folder / part / "Inertial Signals" / f"{signal}_{part}.txt"
            np.savetxt(path, values, fmt="  %.7e")  # as in the archive
        first = {"train": 1, "test": 5}[part]
        np.savetxt(folder / part / f"y_{part}.txt", np.arange(first, first + rows), fmt="%d")
        np.savetxt(folder / part / f"subject_{part}.txt", [first + 1] * rows, fmt="%d")
    return folder, content


def test_uci_har(har):
    folder, content = har
    data = uci_har(str(folder.parent))
    usable("uci_har", data)
    assert data.train.inputs.shape == (5, 9, 128)
    for part in ("train", "test"):
        windows = getattr(data, part).inputs.numpy()
        np.testing.assert_allclose(windows, content[part].transpose(1, 0, 2), rtol=1e-5)
    assert data.train.targets.tolist() == [0, 1, 2, 3, 4]
    assert data.test.targets.tolist() == [4, 5]
    assert (data.classes, data.class_names[5]) == (6, "laying")
    assert (data.train.groups.tolist(), data.test.groups.tolist()) == ([2] * 5, [6] * 2)
    assert len(uci_har(str(folder), on_device=True).test) == 0


@pytest.mark.parametrize("content", ["", "7\n7\n7\n7\n7\n", "1\n2\n", "a\n", None])
def test_damaged_files_of_uci_har(content, har):
    folder, _ = har
    path = folder / "train" / "y_train.txt"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(TaskError) as caught:
        uci_har(str(folder))
    assert "\n" not in str(caught.value)


def write_wave(path, values, rate=16000, channels=1, width=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(np.asarray(values, "<i2").tobytes())


@pytest.fixture
def words(tmp_path):
    """Write sounds of three words and three speakers, as the archive has them."""
    for word, level in (("yes", 1), ("no", 2), ("up", 3)):
        for number, speaker in enumerate(("0a7c2a8d", "b4ea0d9a", "c1d39ce8")):
            length = (16000, 9000, 17000)[number]
            path = tmp_path / word / f"{speaker}_nohash_{number}.wav"
            write_wave(path, np.full(length, 10 * level + number))
    write_wave(tmp_path / "_background_noise_" / "pink_noise.wav", np.zeros(99))
    (tmp_path / "validation_list.txt").write_text("yes/b4ea0d9a_nohash_1.wav\n")
    (tmp_path / "testing_list.txt").write_text(
        "no/c1d39ce8_nohash_2.wav\nup/0a7c2a8d_nohash_0.wav\n"
    )
    (tmp_path / "LICENSE").write_text("CC")
    return tmp_path


def test_speech_commands(words):
    data = speech_commands(str(words))
    usable("speech_commands", data)
    assert data.class_names == ("no", "up", "yes")
    assert (len(data.train), len(data.test)) == (6, 2)
    assert data.test.inputs[:, 0].tolist() == [22, 30]
    assert data.test.targets.tolist() == [0, 1]
    assert data.train.inputs.dtype == torch.int16
    assert data.train.inputs[:, [0, 8999, 9000, 15999]].tolist() == [
        *([20] * 4, [21, 21, 0, 0], [31, 31, 0, 0], [32] * 4, [10] * 4, [12] * 4)
    ]
    assert data.train.groups.tolist() == [0, 1, 1, 2, 0, 2]
    assert data.test.groups.tolist() == [2, 0]
    spectrograms = data.prepared(data.train.inputs)
    assert torch.equal(spectrograms, LogMel()(data.train.inputs))
    assert spectrograms.shape == (6, 40, 101)
    checked = speech_commands(str(words), ["yes", "no"], test_list="validation")
    assert (checked.class_names, len(checked.train), len(checked.test)) == (("no", "yes"), 4, 1)


def test_a_devices_own_words(words):
    with pytest.raises(MissingOption):
        speech_commands(str(words), on_device=True)
    data = speech_commands(str(words), ["yes", "no", "stop"], on_device=True)
    assert (len(data.train), len(data.test), data.classes) == (6, 0, 3)
    for name in ("validation_list.txt", "testing_list.txt"):
        (words / name).unlink()
    assert (len(speech_commands(str(words)).train), len(speech_commands(str(words)).test)) == (6, 3)


@pytest.mark.parametrize(
    "sound", [{"rate": 8000}, {"channels": 2}, {"width": 1}, b"RIFF", b"", None]
)
def test_what_is_no_such_sound_is_one_line(sound, words):
    path = words / "yes" / "x_nohash_0.wav"
    if isinstance(sound, dict):
        write_wave(path, [1, 2], **sound)
    else:
        path.mkdir() if sound is None else path.write_bytes(sound)
    with pytest.raises(TaskError, match="x_nohash_0") as caught:
        speech_commands(str(words))
    assert "\n" not in str(caught.value)


def test_no_words(words, tmp_path):
    with pytest.raises(TaskError, match="choose one of"):
        speech_commands(str(words), test_list="none")
    with pytest.raises(TaskError, match="no folder stop/"):
        speech_commands(str(words), ["yes", "stop"])
    with pytest.raises(NoData):
        speech_commands(str(words / "_background_noise_"))
    (words / "testing_list.txt").write_text("yes/other.wav")
    with pytest.raises(TaskError, match="no sounds"):
        speech_commands(str(words))
    (words / "testing_list.txt").write_bytes(b"\xff")
    with pytest.raises(TaskError, match="copy it again"):
        speech_commands(str(words))


def options_on_the_page():
    """Return the options of each public data set in docs/your-task.md, by its name there."""
    _, page = (ROOT / "docs" / "your-task.md").read_text().split("Presets and models for the")
    rows = re.findall(r"^\* ([^:]+): `([^`]+)`$", page.split("\n\n")[1], re.MULTILINE)
    return {name: options.split() for name, options in rows}


@pytest.fixture
def sets(har, words, tmp_path):
    """Return the folder of each public data set."""
    (tmp_path / "own.txt").write_text("Bytes up to \u00ff. " * 200)
    folders = {"UCI HAR": ".", "Speech Commands": ".", "your own text": "own.txt"}
    return {name: tmp_path / each for name, each in folders.items()}


@pytest.mark.system
def test_the_pages_options_train_a_model(sets, tmp_path):
    options = options_on_the_page()
    assert options.keys() == sets.keys()
    for name, words in options.items():
        nodes = 1 if name == "UCI HAR" else 2  # one person has all windows here
        local_run(
            tmp_path / "run", *words, f"dataset.root='{sets[name]}'", "rounds=1", "eval_every=1",
            f"nodes={nodes}", "batch_size=2", "schedule=constant",
        )  # fmt: skip
        assert result_of(tmp_path / "run")["failures"] == 0
        assert result_of(tmp_path / "run")["client_updates"] == nodes


def test_too_few_tokens_are_named(sets):
    words = [*options_on_the_page()["your own text"], f"dataset.root='{sets['your own text']}'"]
    words[words.index("model.tokens=256")] = "model.tokens=100"
    config = configured(*words, "nodes=2")
    data = data_of(config)
    with pytest.raises(TaskError, match="integers up to 195, so a model of tokens needs 196"):
        expect_fits(model_of(config, data), objective_of(config), data)


@pytest.mark.parametrize(
    ("more", "classes"),
    [([], 3), (["dataset.classes=[0,1,2]"], 3), (["objective=regression"], 0)],
)
def test_whole_numbers_are_classes_if_the_objective_wants_some(more, classes, tmp_path):
    images = np.zeros((8, 12, 12), dtype=np.uint8) + 254
    np.savez(tmp_path / "own.npz", x=images, y=np.arange(8) % 3)
    words = ["dataset=npz", "dataset.images=true", f"dataset.root={tmp_path}", "model=lenet5"]
    config = configured(*words, "nodes=2", *more)
    data = data_of(config)
    assert data.classes == classes
    if classes:
        expect_fits(model_of(config, data), objective_of(config), data)


@pytest.mark.parametrize("targets", [[3, 4] * 4, [-1, 0] * 4, [0, 9] * 4, [0] * 8])
def test_other_whole_numbers_are_no_classes(targets, tmp_path):
    """Below 0, more than there are samples, and one class. Some numbers may be absent."""
    np.savez(tmp_path / "own.npz", x=np.zeros((8, 2), "f4"), y=np.array(targets))
    words = ["dataset=npz", f"dataset.root={tmp_path}", "model=table_mlp", "model.columns=2"]
    assert data_of(configured(*words, "nodes=2")).classes == (5 if targets[0] == 3 else 0)


def test_an_array_that_no_option_names_is_named(tmp_path):
    arrays = {"x": np.zeros((8, 2), "f4"), "y": np.arange(8) % 2, "person": np.arange(8)}
    np.savez(tmp_path / "own.npz", **arrays)
    words = ["dataset=npz", f"dataset.root={tmp_path}", "model=table_mlp", "model.columns=2"]
    config = configured(*words, "nodes=2")
    data = data_of(config)
    line = "by name, x, person, .* give dataset.inputs=x, or for persons dataset.group=person"
    with pytest.raises(TaskError, match=line):
        expect_fits(model_of(config, data), objective_of(config), data)
