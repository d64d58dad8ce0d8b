"""Makes short sine waves; trains a small network with BatchNorm to classify their frequencies."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LENGTH, KINDS = 32, 4


class Net(nn.Module):
    """Two convolutions, each with BatchNorm, and two linear layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 16, 5, padding=2)
        self.norm1 = nn.BatchNorm1d(16)
        self.conv2 = nn.Conv1d(16, 32, 5, padding=2)
        self.norm2 = nn.BatchNorm1d(32)
        self.fc1 = nn.Linear(32 * LENGTH // 4, 32)
        self.fc2 = nn.Linear(32, KINDS)

    def forward(self, x):
        x = F.max_pool1d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool1d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def waves(count, seed):
    """Return noisy sine waves of random phase; the class is one of four frequencies."""
    random = torch.Generator().manual_seed(seed)
    kinds = torch.randint(KINDS, (count,), generator=random)
    phases = 6.28 * torch.rand(count, 1, generator=random)
    x = torch.sin(phases + 0.2 * (2 + kinds)[:, None] * torch.arange(LENGTH))
    return TensorDataset((x + 0.7 * torch.randn(x.shape, generator=random))[:, None], kinds)


def load_data(partition, batch_size):
    """Return a loader of the waves that the node of this partition trains on."""
    return DataLoader(waves(128, 1 + partition), batch_size, shuffle=True, drop_last=True)


def train(net, loader, lr, momenta):
    """Train for an epoch with the given momenta; return the mean loss and the new momenta."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.8)
    for parameter, momentum in zip(net.parameters(), momenta, strict=False):
        optimizer.state[parameter]["momentum_buffer"] = momentum
    net.train()
    total = 0.0
    for x, kinds in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), kinds)
        loss.backward()
        optimizer.step()
        total += loss.item()
    momenta = [optimizer.state[p]["momentum_buffer"] for p in net.parameters()]
    return total / len(loader), momenta


def test(net, data):
    """Return the loss and the accuracy on `data`."""
    net.eval()
    x, kinds = data.tensors
    with torch.no_grad():
        out = net(x)
    return F.cross_entropy(out, kinds).item(), (out.argmax(1) == kinds).float().mean().item()
