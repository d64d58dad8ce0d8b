"""Points whose labels are swapped at every other node; a network with a body and a head."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES, HIDDEN, HEAD = 16, 64, "head."


class Net(nn.Module):
    """A network for points: its body has two linear layers, and its head has one."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()
        )
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, x):
        return self.head(self.body(x))


def points(count, seed, turned):
    """Return points labelled 1 above a plane and 0 below; `turned` swaps the labels."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=random)
    y = (x[:, :8].sum(1) > 0).long()
    return TensorDataset(x, 1 - y if turned else y)


def load_data(partition, batch_size):
    """Return a loader of a partition's training points, and its test points."""
    train = points(160, 2 * partition, partition % 2)
    test = points(80, 2 * partition + 1, partition % 2)
    return DataLoader(train, batch_size, shuffle=True), test


def train(net, loader, lr):
    """Train for two epochs; return the mean loss of the batches."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    total = 0.0
    for x, y in [*loader, *loader]:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / (2 * len(loader))


def test(net, data):
    """Return the accuracy on `data`."""
    x, y = data.tensors
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()
