"""The code in `papers/benchmarks/peers.py` does the work for which it is timed."""

import pytest
import torch

from papers.benchmarks import peers

SMALL = peers.Work(nodes=20, cohort=10, samples=30, lr=0.1)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_bare_round_is_the_mean_of_the_nodes(shuffle: bool) -> None:
    work = peers.Work(nodes=3, cohort=3, samples=20, shuffle=shuffle, batch=20)
    images, labels, _ = peers.make_data(work)
    torch.manual_seed(0)
    model = peers.LeNet5()
    start = [p.detach().clone() for p in model.parameters()]
    # If each node trains on one full batch, the mean of the nodes' steps is one step over all data.
    loss = torch.nn.functional.cross_entropy(model(images.flatten(0, 1)), labels.flatten())
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    next(peers.bare_rounds(model, images, labels, work))
    for p, s, g in zip(model.parameters(), start, gradients, strict=True):
        torch.testing.assert_close(p.detach(), s - work.lr * g, atol=1e-6, rtol=1e-5)


@pytest.mark.system
def test_bare_child_learns() -> None:
    with peers.bare(SMALL) as child:
        assert len(child(2)) == 2
        assert len(child(25)) == 25
    assert child.losses[27] < 0.8 * child.losses[2]
