"""The models of the synthetic-gradients paper (Chen et al. 2019), to be cut into segments.

The paper gives the kinds of layers, but not their widths. BatchNorm follows each layer except the
last. The `_plain` networks have no BatchNorm.
"""

from functools import partial

from torch import nn

from edgewire.task.models.parts import MODELS, need
from edgewire.task.models.small import ChannelsLast

CHANNELS, WIDTH = 32, 256


def _four(name: str, channels: int, size: int, classes: int) -> nn.Module:
    """1 convolution and 3 dense layers: 471,946 parameters on 1x28x28, plain 470,858."""
    norm = not name.endswith("_plain")
    need(name, size, 4)
    return ChannelsLast(
        *_conv(channels, norm, kernel=5, pool=4),
        *_dense(CHANNELS * (size // 4) ** 2, classes, norm),
    )


def _eight(name: str, channels: int, size: int, classes: int) -> nn.Module:
    """5 convolutions and 3 dense layers: 181,002 parameters on 1x28x28, plain 179,658."""
    norm = not name.endswith("_plain")
    need(name, size, 8)
    inputs = (channels, *[CHANNELS] * 4)
    features = [_conv(each, norm, kernel=3, pool=2 - i % 2) for i, each in enumerate(inputs)]
    return ChannelsLast(
        *(layer for part in features for layer in part),
        *_dense(CHANNELS * (size // 8) ** 2, classes, norm),
    )


def _conv(channels: int, norm: bool, kernel: int, pool: int) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Conv2d(channels, CHANNELS, kernel, padding=kernel // 2)]
    layers += [nn.MaxPool2d(pool)] if pool > 1 else []
    layers += [nn.BatchNorm2d(CHANNELS)] if norm else []
    return [*layers, nn.ReLU()]


def _dense(inputs: int, classes: int, norm: bool) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Flatten()]
    for each in (inputs, WIDTH):
        layers += [nn.Linear(each, WIDTH)]
        layers += [nn.BatchNorm1d(WIDTH)] if norm else []
        layers += [nn.ReLU()]
    return [*layers, nn.Linear(WIDTH, classes)]


for name, make in (("four_layers", _four), ("eight_layers", _eight)):
    MODELS.members |= {each: partial(make, each) for each in (name, f"{name}_plain")}
