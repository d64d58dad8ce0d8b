"""Grey images of discs, squares and triangles, and the class of each pixel."""

import numpy as np

from edgewire.task.datasets.data import Data
from edgewire.task.datasets.synthetic import divided, expect_at_least
from edgewire.task.transforms import ImageTransform

CLASSES = ("background", "disc", "square", "triangle")
LIGHT = np.array([0.6, 0.75, 0.85])  # the mean brightness of discs, squares, triangles; white is 1


def shapes(
    samples: int = 12000, side: int = 20, objects: int = 2, noise: float = 0.06, seed: int = 0
) -> Data:
    """Return images, uint8 (N, 1, side, side), and masks, int64 (N, side, side), of four classes.

    An image has `objects` discs, squares and triangles of random position and size; later ones
    cover earlier ones. The brightness of an object tells its class only partly. The light changes
    across the image. `noise`: the standard deviation of the pixels' noise; white is 1. The last
    quarter of the samples is the test split.
    """
    expect_at_least(2, samples=samples)
    expect_at_least(4, side=side)
    expect_at_least(1, objects=objects)
    random = np.random.RandomState(seed)
    y, x = (axis[None].astype(np.float32) for axis in np.mgrid[:side, :side])
    image = np.full((samples, side, side), 0.3, np.float32)
    mask = np.zeros((samples, side, side), np.int64)
    for _ in range(objects):
        kind = random.randint(3, size=(samples, 1, 1))
        radius = random.uniform(0.15, 0.3, (samples, 1, 1)) * side
        u, v = (
            (axis - random.uniform(0.1, 0.9, (samples, 1, 1)) * side) / radius for axis in (x, y)
        )
        disc = u * u + v * v < 1
        square = np.maximum(np.abs(u), np.abs(v)) < 0.87
        triangle = np.maximum(v, 1.73 * np.abs(u) / 2 - v / 2) < 0.62
        inside = np.choose(kind, [disc, square, triangle])
        light = LIGHT[kind] + random.uniform(-0.15, 0.15, (samples, 1, 1))
        image = np.where(inside, light, image)
        mask = np.where(inside, kind + 1, mask)
    slope = random.uniform(-0.2, 0.2, (2, samples, 1, 1))
    image = image + slope[0] * (x / side - 0.5) + slope[1] * (y / side - 0.5)
    image = image + noise * random.randn(*image.shape)
    pixels = (image.clip(0, 1) * 255).round().astype(np.uint8)
    splits = divided(np.arange(samples) >= samples * 3 // 4, pixels[:, None], mask)
    return Data(*splits, ImageTransform((0.45,), (0.23,)))
