"""UCI digits: 1,797 images of 8 x 8 pixels that come with scikit-learn."""

import torch

from task.datasets.data import DATASETS, Data, Request, Split, holdout


@DATASETS.register("digits")
def digits(request: Request) -> Data:
    """1x8x8, 10 classes, the values 0..16 scaled to 0..255; 1,438 to train, 359 to test."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
    train, test = holdout(Split(images, torch.from_numpy(bunch.target).long()), 0.2, seed=0)
    return Data(train, test, 10, mean=(0.3058,), std=(0.3764,))
