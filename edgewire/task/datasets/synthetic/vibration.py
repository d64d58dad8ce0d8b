"""Spectra of the vibration of machines; some of the test machines have a fault."""

import numpy as np
from numpy.typing import NDArray

from edgewire.task.datasets.data import Data
from edgewire.task.datasets.synthetic import divided, expect_at_least

Vector = NDArray[np.float64]
FAULTS = ("imbalance", "bearing", "loose", "rub")


def vibration(
    samples: int = 12000, machines: int = 20, bins: int = 64, noise: float = 0.35, seed: int = 0
) -> Data:
    """Return log spectra, float32 (N, bins); the target of a sample is 1 for a fault, else 0.

    A sound machine shows harmonics of its shaft's speed, which varies, the tone of its gear, and a
    resonance of its own. A fault is an imbalance (a stronger first harmonic), a bearing's fault (a
    tone between the harmonics, with sidebands at the shaft's speed), a loose part (half harmonics)
    or a rub (more broad noise). `noise`: the standard deviation of a log bin. The training split
    has no faults. Half of the test split, a third of all samples, has faults. The groups are the
    machines.
    """
    expect_at_least(6, samples=samples)
    expect_at_least(1, machines=machines)
    expect_at_least(8, bins=bins)
    random = np.random.RandomState(seed)
    machine = random.randint(machines, size=samples)
    cut = samples * 2 // 3
    fault = np.zeros(samples, np.int64)
    fault[cut:] = random.permutation(np.arange(samples - cut) % 2)
    kind = np.where(fault == 1, random.randint(len(FAULTS), size=samples), -1)
    speed = random.uniform(4, 7, machines)[machine] * random.normal(1, 0.06, samples)  # in bins
    load = random.uniform(0.5, 1.5, samples)
    severity = random.uniform(0.8, 2.0, samples)
    own = random.lognormal(0, 0.3, (machines, 5))[machine] / np.arange(1, 6)
    own[:, 0] *= 1 + 3 * severity * (kind == 0)
    centres = np.arange(bins)[None, :]

    def line(position: Vector, width: float = 0.8) -> Vector:
        shape: Vector = np.exp(-(((centres - position[:, None]) / width) ** 2) / 2)
        return shape

    power = np.full((samples, bins), 0.02)
    for k in range(5):
        power += (load * own[:, k] ** 2)[:, None] * line((k + 1) * speed)
    power += (0.4 * load)[:, None] * line(7.3 * speed)  # the gear
    resonance = random.uniform(0.3, 0.9, machines)[machine] * bins
    power += (0.15 * load)[:, None] * line(resonance, 4.0)
    inner = severity[:, None] * (kind == 1)[:, None]
    power += 0.3 * inner * (line(5.43 * speed) + 0.5 * (line(4.43 * speed) + line(6.43 * speed)))
    for k in range(4):
        power += 0.1 * severity[:, None] * (kind == 2)[:, None] * line((k + 0.5) * speed)
    power += 0.05 * severity[:, None] * (kind == 3)[:, None]
    spectra = np.log(power) + noise * random.randn(samples, bins)
    spectra = (spectra - spectra[:cut].mean(0)) / spectra[:cut].std(0)
    return Data(*divided(np.arange(samples) >= cut, spectra, fault, machine))
