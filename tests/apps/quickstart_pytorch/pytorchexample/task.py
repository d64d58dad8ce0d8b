"""The model, the images of each node, and functions to train and test."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZE, CLASSES = 12, 4


class Net(nn.Module):
    """Two convolutions and two linear layers, for images of 12 x 12."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * 3 * 3, 32)
        self.fc2 = nn.Linear(32, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def images(count, seed):
    """Return noisy images with a bright bar; the class is its direction and half of the image."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=random)
    x = torch.randn(count, 1, SIZE, SIZE, generator=random)
    places = torch.randint(SIZE // 2, (count,), generator=random) + SIZE // 2 * (labels % 2)
    bars = F.one_hot(places, SIZE)[:, :, None].expand(-1, -1, SIZE)
    upright = (labels < 2)[:, None, None]
    x[:, 0] += 1.5 * torch.where(upright, bars.transpose(1, 2), bars)
    return TensorDataset(x, labels)


def load_data(partition, batch_size):
    """Return a partition's images: a training set and a test set."""
    train, test = images(320, 2 * partition), images(80, 2 * partition + 1)
    return DataLoader(train, batch_size, shuffle=True), DataLoader(test, 80)


def train(net, loader, epochs, lr):
    """Train for `epochs` epochs; return the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    total = 0.0
    for _ in range(epochs):
        for x, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net, loader):
    """Return the loss and the accuracy."""
    loss, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for x, labels in loader:
            out = net(x)
            loss += F.cross_entropy(out, labels, reduction="sum").item()
            correct += (out.argmax(1) == labels).sum().item()
            count += len(labels)
    return loss / count, correct / count
