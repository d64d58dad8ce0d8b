"""VGG, with and without BatchNorm (Simonyan and Zisserman 2014).

From 64 pixels on, these are torchvision's vgg11_bn, vgg16_bn and vgg16. Below 64 pixels, they are
the features of these models and one linear layer 512 -> classes, as usual for CIFAR. Pooling then
rounds up, so 28 x 28 images are large enough.
"""

from torch import nn

from edgewire.task.models.parts import stem


def small_vgg(
    layers: str, batch_norm: bool, channels: int, size: int, classes: int, width: int = 64
) -> nn.Module:
    """Return VGG for images (channels, size, size) below 64 pixels.

    `layers`: as in torchvision. `width`: the channels of the first layer, 64 in the paper; those of
    all others in proportion.
    """
    from torchvision.models import vgg

    # Building torchvision's whole model would initialise 119 million weights of its classifier.
    wide = [each if each == "M" else int(each) * width // 64 for each in vgg.cfgs[layers]]
    features = vgg.make_layers(wide, batch_norm=batch_norm)
    features[0] = stem(features[0], channels, size)
    for layer in features:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.MaxPool2d):
            layer.ceil_mode = True
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes)]
    return nn.Sequential(features, *head)
