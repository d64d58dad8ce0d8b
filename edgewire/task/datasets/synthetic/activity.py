"""Windows of a phone's accelerometer and gyroscope while its user walks, sits or lies."""

import numpy as np
from numpy.typing import NDArray

from edgewire.task.datasets.data import Data
from edgewire.task.datasets.synthetic import divided, expect_at_least

ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "lying")
RATE = 25.0  # samples per second
# Per activity: the step frequency relative to the user's (0: no steps), and the amplitudes in g of
# the first three harmonics of the vertical acceleration.
STEPS = np.array([1.0, 0.85, 1.08, 0.0, 0.0, 0.0])
HARMONICS = np.array(
    [[0.28, 0.16, 0.05], [0.24, 0.20, 0.04], [0.30, 0.17, 0.12], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
)
TILT = np.array([0.1, 0.3, 0.0, 0.7, 0.1, 1.3])  # radians of the phone against the vertical

# Of the six channels, with the default options.
MEAN = np.array([0.75, 0.4, 0.0, 0.0, 0.0, 0.0])[:, None]
STD = np.array([0.5, 0.5, 0.35, 0.35, 0.25, 0.4])[:, None]


def activity(
    samples: int = 24000, users: int = 40, length: int = 64, noise: float = 0.12, seed: int = 0
) -> Data:
    """Return windows of acceleration and rotation, float32 (N, 6, length), of six activities.

    The channels are acceleration in g and rotation in rad/s on three axes, at 25 Hz. A walking user
    shakes the phone with the user's own step frequency, strength and harmonics. Each user carries
    the phone at an own angle, so the direction of gravity tells the postures apart only partly.
    `noise`: the standard deviation of the sensors' noise. The users are the groups. Every fourth
    window is in the test split.
    """
    expect_at_least(2, users=users)
    expect_at_least(max(users, 4), samples=samples)
    expect_at_least(8, length=length)
    random = np.random.RandomState(seed)
    user = np.arange(samples) * users // samples
    label = random.randint(len(ACTIVITIES), size=samples)
    pace = random.uniform(1.6, 2.2, users)[user] * STEPS[label] * random.normal(1, 0.04, samples)
    strength = random.uniform(0.6, 1.4, users)[user] * random.normal(1, 0.15, samples)
    own = random.lognormal(0, 0.25, (users, 1, 3))[user, 0] * random.lognormal(0, 0.2, (samples, 3))
    tilt = TILT[label] + random.normal(0, 0.12, users)[user] + random.normal(0, 0.1, samples)
    turned = random.uniform(-0.6, 0.6, users)[user] + random.normal(0, 0.1, samples)
    time = np.arange(length) / RATE + random.uniform(0, 10, (samples, 1))
    phase = 2 * np.pi * pace[:, None] * time
    shake = _periodic(phase, HARMONICS[label] * own * strength[:, None], random)
    sway = _periodic(phase / 2, HARMONICS[label] * own[:, ::-1] * 0.5, random)
    up = 1 + shake
    signals = np.empty((samples, 6, length))
    signals[:, 0] = np.cos(tilt)[:, None] * up
    signals[:, 1] = (np.sin(tilt) * np.cos(turned))[:, None] * up + sway
    signals[:, 2] = (np.sin(tilt) * np.sin(turned))[:, None] * up - 0.5 * sway
    for channel, source in enumerate((shake, sway, shake - sway), 3):
        signals[:, channel] = 2 * np.gradient(source, axis=1)
    signals += noise * random.randn(*signals.shape)
    signals = (signals - MEAN) / STD
    tests = np.arange(samples) % 4 == 3
    return Data(*divided(tests, signals, label, user), classes=len(ACTIVITIES))


def _periodic(
    phase: NDArray[np.float64], strengths: NDArray[np.float64], random: np.random.RandomState
) -> NDArray[np.float64]:
    """Return the sum of three harmonics of `phase` (N, T), with amplitudes (N, 3)."""
    shifts = random.normal(0, 0.5, strengths.shape)
    return sum(
        strengths[:, k, None] * np.sin((k + 1) * phase + shifts[:, k, None])
        for k in range(strengths.shape[1])
    )  # type: ignore[return-value]
