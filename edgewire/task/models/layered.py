"""The models of the synthetic-gradients paper (Chen et al. 2019), to be cut into segments.

The paper gives the kinds of layers, but not their widths. BatchNorm follows each layer except the
last. The `_plain` networks have no BatchNorm.
"""

from functools import partial

from torch import nn

from edgewire.task.models.parts import MODELS, conv, dense, need
from edgewire.task.models.small import ChannelsLast

CHANNELS, WIDTH = 32, 256


def _four(name: str, channels: int, size: int, classes: int) -> nn.Module:
    """1 convolution and 3 dense layers: 471,946 parameters on 1x28x28, plain 470,858."""
    norm = not name.endswith("_plain")
    need(name, size, 4)
    return ChannelsLast(
        *conv(channels, CHANNELS, 5, 2, pool=4, norm=norm),
        nn.Flatten(),
        *dense(CHANNELS * (size // 4) ** 2, WIDTH, WIDTH, classes, norm=norm),
    )


def _eight(name: str, channels: int, size: int, classes: int) -> nn.Module:
    """5 convolutions and 3 dense layers: 181,002 parameters on 1x28x28, plain 179,658."""
    norm = not name.endswith("_plain")
    need(name, size, 8)
    inputs = (channels, *[CHANNELS] * 4)
    features = [conv(n, CHANNELS, 3, 1, 2 - i % 2, norm) for i, n in enumerate(inputs)]
    return ChannelsLast(
        *(layer for part in features for layer in part),
        nn.Flatten(),
        *dense(CHANNELS * (size // 8) ** 2, WIDTH, WIDTH, classes, norm=norm),
    )


for name, make in (("four_layers", _four), ("eight_layers", _eight)):
    MODELS.members |= {each: partial(make, each) for each in (name, f"{name}_plain")}
