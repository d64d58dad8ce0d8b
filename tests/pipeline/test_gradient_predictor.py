"""Synthetic-gradient modules: predictions are derivatives, and each learns what it is told to."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity

from edgewire.pipeline.gradient_predictor import FORMS, GradientOfLoss, ModuleForm

SHAPES = [(3,), (4, 3, 3), (1,), (2, 5)]


def drawn(shape, classes, seed=0, samples=6):
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(samples, *shape, generator=generator)
    labels = torch.randint(classes, (samples,), generator=generator) if classes else None
    return h, labels, torch.randn(samples, *shape, generator=generator)


@given(
    st.sampled_from(SHAPES),
    st.sampled_from([0, 1, 7]),
    st.sampled_from([0, 1, 5]),
    st.integers(0, 999),
)
def test_a_gradient_of_loss_is_the_derivative_of_the_local_loss(shape, classes, hidden, seed):
    torch.manual_seed(seed)
    module = GradientOfLoss(shape, classes, hidden).double()
    h, labels, way = drawn(shape, classes, seed)
    h, way = h.double(), way.double()
    with torch.no_grad():
        predicted = module(h, labels)
        ahead, back = (module.local_loss(h + each * way, labels) for each in (1e-5, -1e-5))
    slope = ((ahead - back) / 2e-5).item()
    # BatchNorm over two samples and more has kinks (ReLU), so the step is small.
    assert (predicted * way).sum().item() == pytest.approx(slope, rel=1e-3, abs=1e-4)
    assert not predicted.requires_grad


@pytest.mark.few(3)
@pytest.mark.parametrize("classes", [0, 10])
@pytest.mark.parametrize("shape", [(8,), (2, 3, 3)])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_module_learns_a_gradient(form, shape, classes):
    torch.manual_seed(0)
    module = ModuleForm(form, 32, classes=classes).build(shape)
    h, labels, target = drawn(shape, classes, samples=32)
    if classes:
        target = target[:classes][labels]  # it depends on the label
    if form == "gradient_of_loss":
        target = 3 * ModuleForm(form, 8, classes=classes).build(shape)(h, labels).detach()
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        learned = module.learned(h, labels, target)
        losses.append(learned.loss.item())
        learned.loss.backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
    predicted = module(h, labels).detach()
    cosine = cosine_similarity(predicted.flatten(), target.flatten(), dim=0).item()
    if form == "gradient_of_loss":
        assert learned.error == pytest.approx(1 - max(cosine, 0) ** 2, abs=0.02)


def test_the_controls_ignore_the_target():
    h, labels, target = drawn((4, 3, 3), 10)
    kept = GradientOfLoss((4, 3, 3), 10, 8, "nothing")
    assert kept.learned(h, labels, target).loss is None
    greedy = GradientOfLoss((4, 3, 3), 10, 8, "loss")
    first, other, twice = (greedy.learned(h, labels, s * target) for s in (1, -2, 2))
    assert torch.equal(first.loss, other.loss)
    assert torch.equal(first.loss, greedy.local_loss(h, labels))
    assert first.error == pytest.approx(twice.error)  # it is still measured
    assert max(first.error, other.error) == 1 > min(first.error, other.error)  # one cosine is < 0


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_target_of_zeros_has_no_relative_error(form):
    h, labels, target = drawn((4,), 10)
    learned = ModuleForm(form, 8, classes=10).build((4,)).learned(h, labels, 0 * target)
    assert learned.error is None
    assert learned.loss is None or torch.isfinite(learned.loss)


def test_a_prediction_of_zeros_can_still_learn():
    module = GradientOfLoss((4,), 0, 0)
    torch.nn.init.zeros_(module.classifier[-1].weight)
    h, labels, target = drawn((4,), 0)
    learned = module.learned(h, labels, target)
    learned.loss.backward()
    assert learned.error == 1
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in module.parameters())


@pytest.mark.parametrize("exponent", [-30, -23, -15, -6, 0, 6, 12])
@pytest.mark.parametrize("of", ["target", "module"])
def test_the_learned_loss_has_the_gradient_of_the_cosine(exponent, of):
    torch.manual_seed(exponent)
    module = ModuleForm("gradient_of_loss", 8, classes=10).build((4,))
    h, labels, target = drawn((4,), 10)
    scale = 10.0**exponent
    if of == "target":
        target = target * scale
    else:
        module.classifier[-1].weight.data *= scale
    learned = module.learned(h, labels, target)
    if exponent < -20 and of == "target":  # the square of its norm is 0 in float32
        assert learned == (None, None)
        return
    learned.loss.backward()
    found = [p.grad for p in module.parameters() if p.grad is not None]
    assert 0 <= learned.error <= 1
    assert all(gradient.isfinite().all() for gradient in found)
    if exponent > -10:
        module.zero_grad()
        predicted = module(h, labels).flatten()
        loss = (1 - cosine_similarity(predicted, target.flatten(), dim=0, eps=0)) * len(h)
        loss.backward()
        assert learned.loss.item() == pytest.approx(loss.item(), rel=1e-4)
        wanted = [p.grad for p in module.parameters() if p.grad is not None]
        largest = max(gradient.abs().max().item() for gradient in wanted)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * largest)


def test_widths_of_modules():
    def widths(form, modules=3):
        return [
            next(p.shape[0] for p in form.build((4,), i, modules).parameters())
            for i in range(modules)
        ]

    assert widths(ModuleForm(hidden=[3, 4, 5])) == [3, 4, 5]
    assert widths(ModuleForm(hidden=6)) == [6, 6, 6]
    ours = "gradient_of_loss"
    assert widths(ModuleForm(ours, 6, classes=10)) == [6, 6, 10]  # the last one is linear
    assert widths(ModuleForm(ours, [6, 0, 5], classes=10)) == [6, 10, 5]
    assert widths(ModuleForm(ours, 6)) == [6, 6, 6]  # without labels a linear one sees nothing


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"module": "x"}, "module must be one of"),
        ({"trained_by": "x"}, "trained_by must be one of"),
        ({"trained_by": "loss"}, "goes with module=gradient_of_loss"),
        *[({"hidden": h}, "hidden must be") for h in (0, -1, 1.5, "8", True, None, [8, 0], [[8]])],
        ({"module": "gradient_of_loss", "hidden": -1}, "of at least 0"),
    ],
)
def test_other_options_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        ModuleForm(**given)
