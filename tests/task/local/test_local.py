"""Local algorithms, each against an independent computation of what it says it does."""

import copy

import pytest
import torch
from torch import nn

from edgewire.task.flat_model import FlatModel
from edgewire.task.local import LocalAlgorithm, LocalRun
from edgewire.task.local.fedprox import FedProx
from edgewire.task.local.kept_optimizer import KeptOptimizer
from edgewire.task.local.scaffold import Scaffold
from edgewire.task.objectives.regression import Regression

LR, NODES, STEPS = 0.05, 3, 4


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))


def batches(node, number, count=STEPS, size=4):
    random = torch.Generator().manual_seed(100 * node + number)
    made = []
    for _ in range(count):
        x = torch.randn(size, 5, generator=random) + node
        made.append((x, (node + 1) * x.sum(1)))
    return made


def run_of(flat, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD([flat.parameters], lr=LR)
    return LocalRun(flat, Regression(), optimizer, type(optimizer).step, LR, **options)


def reference_gradient(module, batch):
    module.zero_grad()
    Regression().loss(module, *batch).backward()
    return torch.cat([p.grad.flatten() for p in module.parameters()])


def vector_of(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()]).clone()


def put(module, vector):
    torch.nn.utils.vector_to_parameters(vector, module.parameters())


@pytest.mark.parametrize("share", [1.0, 2 / 3])
def test_scaffold_takes_the_steps_of_algorithm_1(share):
    """Compared with lines 5 to 17 and option II, on the nodes 0 and 1 or on all nodes."""
    module, flat = net(), FlatModel(net())
    algorithm, nodes = Scaffold(), range(round(NODES * share))
    x, c = vector_of(module), torch.zeros(flat.num_parameters)
    own = [torch.zeros_like(c) for _ in range(NODES)]
    server, control = x.clone(), c.clone()
    states = [{} for _ in range(NODES)]
    for number in range(3):
        moved, changed, models, reports = [], [], [], []
        for node in nodes:
            y = x.clone()
            for batch in batches(node, number):
                put(module, y)
                y = y - LR * (reference_gradient(module, batch) - own[node] + c)
            new = own[node] - c + (x - y) / (STEPS * LR)
            changed.append(new - own[node])
            moved.append(y - x)
            own[node] = new

            flat.load(server.numpy())
            run = run_of(flat, share=share, state=states[node], vectors={"control": control})
            algorithm.train(run, iter(batches(node, number)))
            states[node] = run.state
            models.append(flat.state.clone())
            reports.append(run.vectors["control"])
        x = x + sum(moved) / len(nodes)
        c = c + share * sum(changed) / len(nodes)
        server, control = sum(models) / len(nodes), sum(reports) / len(nodes)
        torch.testing.assert_close(server, x, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(control, c, rtol=1e-3, atol=1e-4)
    assert c.norm() > 0.1


@pytest.mark.parametrize("sent", [True, False])
def test_fedprox_adds_the_gradient_of_the_proximal_term(sent):
    module, flat = net(), FlatModel(net())
    start = vector_of(module)
    algorithm = FedProx() if sent else FedProx(mu=0.3)
    algorithm.train(run_of(flat, proximal_mu=0.3 if sent else 0.0), iter(batches(1, 0)))
    x = start.clone()
    for batch in batches(1, 0):
        put(module, x)
        x = x - LR * (reference_gradient(module, batch) + 0.3 * (x - start))
    torch.testing.assert_close(flat.state, x, rtol=1e-4, atol=1e-6)


def test_accumulated_batches_are_one_larger_batch():
    one, four = FlatModel(net()), FlatModel(net())
    small = batches(0, 0, count=7)
    joined = [
        tuple(torch.cat(each) for each in zip(*small[a : a + 3], strict=True)) for a in (0, 3, 6)
    ]
    first, second = run_of(one), run_of(four)
    LocalAlgorithm().train(first, iter(joined))
    LocalAlgorithm(accumulate=3).train(second, iter(small))
    assert (first.steps, second.steps) == (3, 3)
    torch.testing.assert_close(one.state, four.state)


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "RMSprop"])
def test_a_kept_optimizer_goes_on_where_it_ended(kind):
    def make(flat):
        momentum = {} if kind == "AdamW" else {"momentum": 0.9}
        return getattr(torch.optim, kind)([flat.parameters], lr=1e-3, **momentum)

    whole, cut = FlatModel(net()), FlatModel(net())
    LocalAlgorithm().train(run_of(whole, make(whole)), iter(batches(0, 0, 6)))
    state = {}
    for part in (slice(0, 2), slice(2, 6)):
        run = run_of(cut, make(cut), state=copy.deepcopy(state))
        KeptOptimizer().train(run, iter(batches(0, 0, 6)[part]))
        state = run.state
    assert torch.equal(whole.state, cut.state)


@pytest.mark.parametrize("autocast", ["bfloat16", "float16"])
def test_mixed_precision_follows_float32(autocast):
    plain, mixed = FlatModel(net()), FlatModel(net())
    state = {}
    if autocast == "float16":  # the first message lowers the scale of the loss
        run = run_of(FlatModel(net()), state=state)
        LocalAlgorithm(autocast=autocast).train(run, iter(batches(0, 0, 20)))
        assert run.state["loss_scale"][0] < 65536
        state = run.state
    expected = LocalAlgorithm().train(run_of(plain), iter(batches(0, 0, 20)))
    run = run_of(mixed, state=state)
    assert LocalAlgorithm(autocast=autocast).train(run, iter(batches(0, 0, 20))) == pytest.approx(
        expected, rel=0.05
    )
    assert not torch.equal(plain.state, mixed.state)
    torch.testing.assert_close(plain.state, mixed.state, rtol=0.05, atol=0.05)


def test_scaled_gradients_do_not_vanish_in_float16():
    """The model's gradients are below float16's smallest number, 6e-8."""

    class Tiny(Regression):
        def loss(self, model, inputs, targets):
            return super().loss(model, inputs, targets) * 1e-8

    flat = FlatModel(net())
    before = flat.state.clone()
    run = run_of(flat, torch.optim.SGD([flat.parameters], lr=1e6))
    run.objective = Tiny()
    LocalAlgorithm(autocast="float16").train(run, iter(batches(0, 0)))
    assert (flat.state - before).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LocalAlgorithm(accumulate=0), "accumulate must be at least 1"),
        (lambda: LocalAlgorithm(autocast="float64"), "autocast must be null"),
        (lambda: LocalAlgorithm(quantizer="int8"), "this algorithm sends none"),
        (lambda: FedProx(mu=-1.0), "mu must be a number of at least 0"),
        (lambda: FedProx().check_strategy({}), "needs local.mu=0.01"),
        (lambda: FedProx(mu=0.1).check_strategy({"proximal_mu": 0.1}), "not both"),
        (lambda: LocalAlgorithm().check_strategy({"proximal_mu": 0.1}), "needs local=fedprox"),
        (lambda: Scaffold().check_strategy({}), "strategies that have fraction_train="),
        (
            lambda: Scaffold().check_strategy({"update": "gradient"}),
            "none: drop it, or give strategy",
        ),
    ],
)
def test_wrong_options_are_one_line(make, said):
    with pytest.raises(ValueError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)
