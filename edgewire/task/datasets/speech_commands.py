"""Speech Commands (Warden 2018): spoken words of one second, in a folder for each word."""

import re
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edgewire.task import DEFAULT_ROOT
from edgewire.task.datasets.data import Data, Split, reads_as, shown
from edgewire.task.datasets.files import class_names, data_of, group_ids, read_each
from edgewire.task.errors import NoData, TaskError
from edgewire.task.transforms import LogMel

RATE = 16000  # samples per second
SAMPLES = 16000  # of a waveform
LISTS = {"validation": "validation_list.txt", "testing": "testing_list.txt"}
SPEAKER = re.compile(r"(.+)_nohash_\d+\.wav", re.IGNORECASE)


def speech_commands(
    root: str | None = None,
    classes: Sequence[str] | None = None,
    test_list: str = "testing",
    test_share: float = 0.2,
    on_device: bool = False,
) -> Data:
    """Return waveforms, int16 (N, 16000), and the words; the model gets log-mel spectrograms.

    A spectrogram is float32 (N, 40, 101), see `edgewire.task.transforms.LogMel`. Shorter sounds are
    followed by silence, longer ones are cut. Groups are the speakers: the part of a file's name
    before _nohash_.

    Args:
        root: the folder with a folder for each word, validation_list.txt and testing_list.txt;
            folders whose names begin with "_" or "." are not used. None: the default folder.
        classes: the words to use; None: all.
        test_list: the list of the test split, testing or validation; the sounds of the other list
            are not used.
        test_share: the share of each word that is the test split if there is no such list.
        on_device: whether the sounds are a device's own. All are for training then.

    Raises:
        TaskError: no folder or sound, an unknown word, or a file that is no sound of 16 kHz, 16
            bits and one channel.
    """
    if test_list not in LISTS:
        raise TaskError(f"dataset.test_list={test_list}: choose one of {', '.join(LISTS)}")
    path = Path(root or DEFAULT_ROOT).expanduser()
    words = sorted(
        each.name for each in path.glob("*") if each.is_dir() and each.name[0] not in "._"
    )
    found = [word for word in words if classes is None or word in classes]
    files = [file for word in found for file in sorted((path / word).glob("*.wav"))]
    if not files:
        raise NoData(f"{shown(path)} has no files WORD/*.wav: give dataset.root=FOLDER with words")
    if classes is not None and not on_device and (absent := sorted({*classes} - {*words})):
        raise TaskError(f"{shown(path)} has no folder {absent[0]}/ of that word: correct the name")
    names = class_names({file.parent.name for file in files}, classes, on_device)
    listed = {name: _listed(path / file) for name, file in LISTS.items()}
    test_names = set() if on_device else listed.pop(test_list)
    others = set() if on_device else set().union(*listed.values())
    place = {file: f"{file.parent.name}/{file.name}" for file in files}
    train = [file for file in files if place[file] not in test_names | others]
    test = [file for file in files if place[file] in test_names]
    if not train or (test_names and not test):
        raise TaskError(f"{shown(path)}: {LISTS[test_list]} leaves no sounds to train or test on")
    parts = [train, *([test] if test else [])]
    speakers, people = group_ids(*(np.array([_speaker(file) for file in part]) for part in parts))
    waves = [
        read_each(_read, part, torch.zeros((len(part), SAMPLES), dtype=torch.int16))
        for part in parts
    ]
    labels = [torch.tensor([names.index(file.parent.name) for file in part]) for part in parts]
    splits = [Split(*each) for each in zip(waves, labels, speakers, strict=True)]
    return data_of(
        splits, test_share, on_device, root,
        transform=LogMel(RATE), class_names=names, group_names=people,
    )  # fmt: skip


def _listed(file: Path) -> set[str]:
    """Return the names WORD/FILE in a list; none if the list does not exist."""
    with reads_as(file, "a list"):
        return set(file.read_text().split()) if file.exists() else set()


def _speaker(file: Path) -> str:
    """Return the speaker of a sound; a sound without one in its name is a group of its own."""
    match = SPEAKER.fullmatch(file.name)
    return match[1] if match else f"{file.parent.name}/{file.name}"


def _read(file: Path) -> NDArray[np.int16]:
    """Return the first second of a sound, int16 (T,)."""
    cure = f"convert it to {RATE} Hz, 16 bits and 1 channel, or delete it"
    with reads_as(file, "a sound", cure), wave.open(str(file), "rb") as sound:
        rate, bits, channels = sound.getframerate(), 8 * sound.getsampwidth(), sound.getnchannels()
        if (rate, bits, channels) != (RATE, 16, 1):
            raise ValueError(f"{rate} Hz, {bits} bits, {channels} channels")
        content = sound.readframes(SAMPLES)
    return np.frombuffer(content[: len(content) // 2 * 2], "<i2").astype(np.int16)
