"""Spoken keywords, as sine-wave speech: three sines that follow the formants of a voice."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewire.task.datasets.data import Data
from edgewire.task.datasets.synthetic import divided, expect_at_least
from edgewire.task.transforms import LogMel

RATE = 8000  # samples per second
# The first three formants of vowels in Hz (Peterson & Barney 1952, men, rounded).
VOWELS = {
    "i": (270, 2290, 3010),
    "e": (530, 1840, 2480),
    "a": (730, 1090, 2440),
    "o": (570, 840, 2410),
    "u": (300, 870, 2240),
}
Vector = NDArray[np.float64]
Samples = NDArray[np.float32]
CHUNK = 250  # recordings to make at once: they fit into the CPU's caches
WORDS = ("ia", "ai", "eo", "oe", "ua", "au", "ei", "ou", "iu", "ae")


def keywords(
    samples: int = 6000, speakers: int = 60, seconds: float = 0.5, snr: float = 3.0, seed: int = 0
) -> Data:
    """Return recordings of ten keywords, int16 (N, seconds x 8000), which become log-mel images.

    A keyword glides from one vowel to another. The sound is sine-wave speech (Remez et al. 1981):
    the sum of a sine for each of the first three formants. Length of the vocal tract, loudness of
    the formants and speed differ between speakers; begin and glide differ between recordings. The
    background is pink noise, at `snr` dB below the speech on average (negative: above). The groups
    are the speakers. The recordings of the last third of the speakers are the test split.
    """
    expect_at_least(2, speakers=speakers)
    expect_at_least(speakers, samples=samples)
    expect_at_least(0.1, seconds=seconds)
    random = np.random.RandomState(seed)
    length = int(seconds * RATE)
    speaker = np.arange(samples) * speakers // samples
    label = random.randint(len(WORDS), size=samples)
    tract = random.normal(1, 0.09, speakers)[speaker] * random.normal(1, 0.03, samples)
    glides = np.array([[VOWELS[word[0]], VOWELS[word[1]]] for word in WORDS])
    formants = glides[label] * tract[:, None, None]  # (N, 2 vowels, 3 formants)
    formants = formants * random.normal(1, 0.05, formants.shape)
    duration = seconds * np.clip(random.normal(0.6, 0.06, samples), 0.4, 0.8)
    voice = Voices(
        formants,
        np.array([1.0, 0.5, 0.25]) * random.lognormal(0, 0.4, (speakers, 3))[speaker],
        random.uniform(0, 1, samples) * (seconds - duration),
        duration,
        random.uniform(0.35, 0.65, samples),
        random.uniform(6, 14, samples),
    )
    background = _pink(60 * RATE, random)
    at = random.randint(len(background) - length, size=samples)
    level = 10 ** (-(snr + random.normal(0, 3, samples)) / 20)
    volume = 3000 * random.lognormal(0, 0.5, samples)
    sounds = np.empty((samples, length), np.int16)
    excerpts = np.lib.stride_tricks.sliding_window_view(background, length)
    for begin in range(0, samples, CHUNK):
        part = slice(begin, begin + CHUNK)
        sound = _speech(Voices(*(each[part] for each in voice)), length)
        sound += level[part, None].astype(np.float32) * excerpts[at[part]]
        sound *= volume[part, None].astype(np.float32)
        sounds[part] = sound.clip(-32768, 32767)
    splits = divided(speaker >= speakers * 2 // 3, sounds, label, speaker)
    return Data(*splits, LogMel(RATE, window=256, hop=125, mels=32, mean=0.0, std=1.8), len(WORDS))


class Voices(NamedTuple):
    """How N recordings sound; the times are in seconds."""

    formants: Vector  # (N, 2, 3): Hz, of the first and the last vowel
    loudness: Vector  # (N, 3): the amplitudes of the formants
    start: Vector  # (N,)
    duration: Vector  # (N,)
    middle: Vector  # (N,): the time of the glide, as a share of the duration
    speed: Vector  # (N,): of the glide


def _speech(voices: Voices, length: int) -> Samples:
    """Return sine-wave speech with the mean square 1, float32 (N, length)."""
    formants, loudness, *rest = (each.astype(np.float32) for each in voices)
    start, duration, middle, speed = (each[:, None] for each in rest)
    time = np.arange(length, dtype=np.float32) / RATE
    inside = (time - start) / duration  # from 0 to 1 in the word
    glide = 1 / (1 + np.exp(-speed * (inside - middle)))
    speech = np.zeros_like(inside)
    for k in range(formants.shape[2]):
        first, last = formants[:, 0, k, None], formants[:, 1, k, None]
        phase = np.cumsum((first + (last - first) * glide) / RATE, axis=1)
        speech += loudness[:, k, None] * np.sin(2 * np.pi * (phase % 1))
    speech *= np.sqrt(np.maximum(np.sin(np.pi * inside.clip(0, 1)), 0))
    scaled: Samples = speech / np.sqrt(np.square(speech).mean(1, keepdims=True))
    return scaled


def _pink(length: int, random: np.random.RandomState) -> Samples:
    """Return noise with equal power in each octave and the mean square 1, float32 (length,)."""
    spectrum = random.randn(length // 2 + 1, 2) @ np.array([1, 1j])
    spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), length * 20 / RATE))  # from 20 Hz on
    noise: Samples = np.fft.irfft(spectrum, length).astype(np.float32)
    noise /= np.sqrt(np.square(noise).mean())
    return noise
