"""VGG, with and without BatchNorm (Simonyan and Zisserman 2014).

From 64 pixels on, these are torchvision's vgg11_bn, vgg16_bn and vgg16. Below 64 pixels, they are
the features of these models and one linear layer 512 -> classes, as usual for CIFAR. Pooling then
rounds up, so 28 x 28 images are large enough.
"""

from typing import Any

from torch import nn

from task.models.parts import MODELS, SMALL, stem


@MODELS.register("vgg11")
def vgg11(channels: int, size: int, classes: int) -> nn.Module:
    """VGG-11 with BatchNorm: 9,231,114 parameters on 3x32x32."""
    return _vgg("vgg11_bn", "A", channels, size, classes)


@MODELS.register("vgg16")
def vgg16(channels: int, size: int, classes: int) -> nn.Module:
    """VGG-16 with BatchNorm: 14,728,266 parameters on 3x32x32."""
    return _vgg("vgg16_bn", "D", channels, size, classes)


@MODELS.register("vgg16_plain")
def vgg16_plain(channels: int, size: int, classes: int) -> nn.Module:
    """`vgg16` without BatchNorm: 14,719,818 parameters on 3x32x32."""
    return _vgg("vgg16", "D", channels, size, classes)


def _vgg(torchvision_name: str, layers: str, channels: int, size: int, classes: int) -> nn.Module:
    from torchvision import models

    if size >= SMALL:
        model: Any = models.get_model(torchvision_name, weights=None, num_classes=classes)
        model.features[0] = stem(model.features[0], channels, size)
        return model  # type: ignore[no-any-return]  # torchvision has no types
    # Building torchvision's whole model would initialise 119 million weights of its classifier.
    features = models.vgg.make_layers(
        models.vgg.cfgs[layers], batch_norm=torchvision_name.endswith("_bn")
    )
    features[0] = stem(features[0], channels, size)
    for layer in features:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.MaxPool2d):
            layer.ceil_mode = True
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)]
    return nn.Sequential(features, *head)
