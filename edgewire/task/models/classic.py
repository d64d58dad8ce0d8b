"""AlexNet, GoogLeNet and MobileNet of torchvision, with first layers fitted to small images."""

from collections.abc import Callable
from typing import Any

from torch import nn

from edgewire.task.models.parts import MODELS, SMALL, need, stem


@MODELS.register("alexnet")
def alexnet(channels: int, size: int, classes: int) -> nn.Module:
    """AlexNet (Krizhevsky 2014): 57,023,306 parameters on 3x32x32 (61 million with 1,000 classes).

    Below 64 pixels the first layer is 3 x 3 with stride 1.
    """
    from torchvision import models

    need("alexnet", size, 15)
    model: Any = models.alexnet(weights=None, num_classes=classes)
    model.features[0] = stem(model.features[0], channels, size)
    return model  # type: ignore[no-any-return]  # torchvision has no types


@MODELS.register("googlenet")
def googlenet(channels: int, size: int, classes: int) -> nn.Module:
    """GoogLeNet (Szegedy et al. 2014), BatchNorm, no auxiliary heads: 5,602,474 on 3x32x32.

    Below 64 pixels the first layer is 3 x 3 with stride 1, without the first two max poolings.
    """
    from torchvision import models

    need("googlenet", size, 2)
    model: Any = models.googlenet(
        weights=None, num_classes=classes, aux_logits=False, init_weights=False
    )
    model.conv1.conv = stem(model.conv1.conv, channels, size)
    if size < SMALL:
        model.maxpool1 = model.maxpool2 = nn.Identity()
    return model  # type: ignore[no-any-return]


@MODELS.register("mobilenet")
def mobilenet(channels: int, size: int, classes: int) -> nn.Module:
    """MobileNetV2 (Sandler et al. 2018): 2,236,682 parameters on 3x32x32.

    Below 64 pixels the first layer and the second stage have stride 1.
    """
    return _mobilenet(channels, size, classes, nn.BatchNorm2d)


@MODELS.register("mobilenet_gn")
def mobilenet_gn(channels: int, size: int, classes: int) -> nn.Module:
    """`mobilenet` with GroupNorm in place of BatchNorm: 2,236,682 parameters, no statistics.

    There are 8 groups of channels (Wu & He 2018, "Group normalization").
    """
    return _mobilenet(channels, size, classes, lambda width: nn.GroupNorm(8, width))


def _mobilenet(
    channels: int, size: int, classes: int, norm: Callable[[int], nn.Module]
) -> nn.Module:
    from torchvision import models

    model: Any = models.mobilenet_v2(weights=None, num_classes=classes, norm_layer=norm)
    model.features[0][0] = stem(model.features[0][0], channels, size)
    if size < SMALL:
        model.features[2].conv[1][0].stride = (1, 1)  # the depthwise layer of the second stage
    return model  # type: ignore[no-any-return]
