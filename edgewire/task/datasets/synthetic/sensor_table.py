"""A table of gas sensors at several stations, and the carbon monoxide that a reference measures."""

import numpy as np

from edgewire.task.datasets.data import Data
from edgewire.task.datasets.synthetic import divided, expect_at_least

GASES = 2  # carbon monoxide, nitrogen dioxide
# The response of four metal-oxide sensors to each gas; every sensor responds to both gases.
SENSITIVITY = np.array([[1.0, 0.1], [0.7, 0.6], [0.3, 1.0], [0.5, -0.6]])
TEMPERATURE = np.array([-0.02, -0.03, -0.015, -0.025])  # change of the log response per degree C
HUMIDITY = np.array([0.004, 0.006, 0.002, 0.005])  # change of the log response per percent


def sensor_table(
    samples: int = 12000,
    stations: int = 20,
    spread: float = 0.06,
    noise: float = 0.1,
    seed: int = 0,
) -> Data:
    """Return 8 columns of a station's hour, and its mean concentration of carbon monoxide, mg/m^3.

    The columns, float32 and standardised: the logarithms of the responses of four metal-oxide
    sensors, temperature, humidity, and sine and cosine of the hour of the day. Each sensor also
    responds to nitrogen dioxide, and saturates. `spread`: the standard deviation of the gains and
    offsets of the stations' sensors, which no column tells. `noise`: the standard deviation of the
    noise of a log response. The groups are the stations. The last quarter of the samples is the
    test split.
    """
    expect_at_least(4, samples=samples)
    expect_at_least(1, stations=stations)
    random = np.random.RandomState(seed)
    station = random.randint(stations, size=samples)
    hour = random.uniform(0, 24, samples)
    traffic = np.exp(-(((hour - 8) / 2) ** 2)) + np.exp(-(((hour - 18) / 2.5) ** 2))
    wind = random.lognormal(0, 0.25, samples)  # dilutes both gases
    own = random.lognormal(0, 0.3, (samples, GASES))
    gases = own * (0.5 + np.array([1.8, 1.0]) * traffic[:, None]) / wind[:, None]
    temperature = 15 + 8 * np.sin(2 * np.pi * (hour - 9) / 24) + 5 * random.randn(samples)
    humidity = 55 - 1.5 * (temperature - 15) + 10 * random.randn(samples)
    gain = 1 + spread * random.randn(stations, len(SENSITIVITY))
    offset = spread * random.randn(stations, len(SENSITIVITY))
    exposed = np.log1p(np.maximum(gases @ SENSITIVITY.T, -0.9))
    responses = gain[station] * exposed + offset[station] + noise * random.randn(*exposed.shape)
    responses += TEMPERATURE * (temperature[:, None] - 15) + HUMIDITY * (humidity[:, None] - 55)
    day = 2 * np.pi * hour / 24
    columns = np.column_stack([responses, temperature, humidity, np.sin(day), np.cos(day)])
    cut = samples * 3 // 4
    columns = (columns - columns[:cut].mean(0)) / columns[:cut].std(0)
    return Data(*divided(np.arange(samples) >= cut, columns, gases[:, 0], station))
