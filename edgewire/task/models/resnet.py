"""torchvision's ResNets; below 64 pixels: first layer 3 x 3, stride 1, no max pooling after it."""

from collections.abc import Callable
from typing import Any

from torch import nn

from edgewire.task.models.parts import MODELS, SMALL, stem


@MODELS.register("resnet18")
def resnet18(channels: int, size: int, classes: int) -> nn.Module:
    """ResNet-18 (He et al. 2015): 11,173,962 parameters on 3x32x32."""
    return _resnet("resnet18", channels, size, classes)


@MODELS.register("resnet18_gn")
def resnet18_gn(channels: int, size: int, classes: int) -> nn.Module:
    """`resnet18` with GroupNorm in place of BatchNorm: 11,173,962 parameters, no statistics.

    There are 8 groups of channels (Wu & He 2018, "Group normalization").
    """
    return _resnet("resnet18", channels, size, classes, lambda width: nn.GroupNorm(8, width))


@MODELS.register("resnet50")
def resnet50(channels: int, size: int, classes: int) -> nn.Module:
    """ResNet-50 (He et al. 2015): 23,520,842 parameters on 3x32x32."""
    return _resnet("resnet50", channels, size, classes)


@MODELS.register("wideresnet")
def wideresnet(channels: int, size: int, classes: int) -> nn.Module:
    """WRN-50-2 (Zagoruyko and Komodakis 2016): 66,847,050 parameters on 3x32x32."""
    return _resnet("wide_resnet50_2", channels, size, classes)


def _resnet(
    torchvision_name: str,
    channels: int,
    size: int,
    classes: int,
    norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
) -> nn.Module:
    from torchvision import models

    model: Any = models.get_model(
        torchvision_name, weights=None, num_classes=classes, norm_layer=norm
    )
    model.conv1 = stem(model.conv1, channels, size)
    if size < SMALL:
        model.maxpool = nn.Identity()
    return model  # type: ignore[no-any-return]  # torchvision has no types
