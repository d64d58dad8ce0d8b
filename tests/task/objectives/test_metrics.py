"""The metrics are scikit-learn's, and seven nodes' are those of all samples, bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import nn

from edgewire.compression.flower.headers import KEYS as SENT_KEYS
from edgewire.task.errors import TaskError
from edgewire.task.objectives.base import KEYS
from edgewire.task.objectives.classification import Classification
from edgewire.task.objectives.metrics import MOST_CLASSES, OF_CLASSES, OF_SCORES, default_metrics
from edgewire.task.objectives.regression import Regression
from edgewire.task.steps import evaluate, summed
from tests.task.test_objectives import aggregated

pytestmark = [
    pytest.mark.usefixtures("identity"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of classes that no sample has
]
ALL = ["accuracy", *(each.name for each in (*OF_CLASSES, *OF_SCORES))]


@st.composite
def samples(draw, classes=(2, 6)):
    """Return logits, float32 (N, K), with ties if there are few levels; and classes, int64 (N,)."""
    k, random = (
        draw(st.integers(*classes)),
        torch.Generator().manual_seed(draw(st.integers(0, 9999))),
    )
    count, level = draw(st.integers(1, 60)), draw(st.sampled_from([2, 5, 1000]))
    logits = torch.randint(level, (count, k), generator=random) * (8 / level)
    truth = torch.randint(draw(st.integers(1, k)), (count,), generator=random)
    return logits, truth


def reference(logits, truth):
    """Return scikit-learn's values; a metric that needs an absent class is left out."""
    k, found = logits.shape[1], logits.argmax(1).numpy()
    # float32, in which equal probabilities are equal whatever the order of their classes
    chance, true = logits.double().log_softmax(1).float().numpy(), truth.numpy()
    shares = np.bincount(true, minlength=k)
    kinds = {"average": "macro", "zero_division": 0}
    expected = {
        "accuracy": sk.accuracy_score(true, found),
        "balanced_accuracy": sk.balanced_accuracy_score(true, found),
        "mcc": sk.matthews_corrcoef(true, found),
    }
    if k == 2:
        if not shares.all():
            return expected
        rare = int(shares[1] <= shares[0])
        kinds = {"average": "binary", "zero_division": 0, "pos_label": rare}
        margin = (logits[:, 1] - logits[:, 0]).numpy() * (1 if rare else -1)
        columns = [((true == rare).astype(int), margin)]
    else:
        columns = [((true == each).astype(int), chance[:, each]) for each in range(k)]
    for name in ("f1", "precision", "recall"):
        expected[name] = getattr(sk, f"{name}_score")(true, found, **kinds)
    both = [each for each in columns if 0 < each[0].sum() < len(true)]
    if both:
        expected["auroc"] = np.mean([sk.roc_auc_score(*each) for each in both])
    there = [each for each in columns if each[0].sum()]
    expected["average_precision"] = np.mean([sk.average_precision_score(*e) for e in there])
    return expected


@given(samples())
@example((torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64)))
@example((torch.tensor([[0.0, 1.0], [0.0, 1 + 1e-6]]), torch.tensor([1, 0])))
def test_classes_and_scores_are_measured_as_by_scikit_learn(case):
    logits, truth = case
    found = evaluate(nn.Identity(), Classification(ALL), logits, truth, batch_size=7)
    expected = reference(logits, truth)
    del found["loss"]
    assert found == pytest.approx(expected, abs=1e-6)


@settings(max_examples=10)
@given(samples((MOST_CLASSES + 1, MOST_CLASSES + 1)))
def test_many_classes_need_no_matrix_of_them(case):
    objective = Classification([name for name in ALL if name not in ("auroc", "average_precision")])
    sums = summed(nn.Identity(), objective, *case)
    assert len(sums["per_class"]) == 3 * (MOST_CLASSES + 1)
    found = evaluate(nn.Identity(), objective, *case)
    expected = reference(*case)
    assert {n: found[n] for n in objective.names[1:]} == pytest.approx(
        {n: expected[n] for n in objective.names[1:]}, abs=1e-9
    )


@given(samples(), st.lists(st.integers(0, 59), min_size=6, max_size=6))
def test_seven_nodes_measure_what_all_samples_do_bit_for_bit(case, cuts):
    (logits, truth), objective = case, Classification(ALL)
    ends = sorted(min(cut, len(truth)) for cut in cuts)
    parts = zip([0, *ends], [*ends, len(truth)], strict=True)
    replies = [
        {
            **summed(nn.Identity(), objective, logits[a:b], truth[a:b]),
            "num-examples": b - a,
        }
        for a, b in parts
        if b > a
    ]
    found, whole = aggregated(objective, replies), evaluate(nn.Identity(), objective, *case)
    assert found.pop("loss") == pytest.approx(whole.pop("loss"))
    assert found == whole


@given(samples((2, 4)))
def test_a_result_holds_the_matrix_and_what_the_most_frequent_class_would_have(case):
    logits, truth = case
    objective, k = Classification(ALL), logits.shape[1]
    sums = summed(nn.Identity(), objective, *case)
    facts = objective.facts(sums, (), ["no"])  # as from nodes, with a name for one class
    assert facts["class_names"] == ["no", *map(str, range(1, k))]
    found = logits.argmax(1).numpy()
    table = sk.confusion_matrix(truth.numpy(), found, labels=range(k))
    assert facts["confusion"] == table.tolist()
    most = int(truth.bincount().argmax())
    always = torch.zeros_like(logits)
    always[:, most] = 1
    expected = evaluate(nn.Identity(), objective, always, truth)
    del expected["loss"]
    assert facts["constant"] == {"class": facts["class_names"][most], **expected}


@given(st.integers(2, 50), st.sampled_from([(), (3,)]), st.integers(0, 999))
def test_values_are_measured_as_by_scikit_learn_in_the_targets_unit(count, shape, seed):
    random = torch.Generator().manual_seed(seed)
    values, truth = (torch.randn(count, *shape, generator=random) * 50 + 300 for _ in range(2))
    objective = Regression(["r2", "mae", "rmse"], mean=300.0, scale=50.0)
    learnt = (values - 300) / 50
    found = evaluate(nn.Identity(), objective, learnt, truth, batch_size=7)
    pair = truth.double().numpy(), values.double().numpy()
    expected = {
        "r2": sk.r2_score(*pair),
        "mae": sk.mean_absolute_error(*pair),
        "rmse": sk.mean_squared_error(*pair) ** 0.5,
        "loss": sk.mean_squared_error(*pair) / 2500,
    }
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert torch.allclose(objective.answer(learnt), values)
    constant = objective.facts({}, truth, ())["constant"]
    whole = np.broadcast_to(np.median(pair[0], 0), pair[0].shape)
    assert constant["mae"] == pytest.approx(sk.mean_absolute_error(pair[0], whole))
    assert constant["rmse"] == pytest.approx(pair[0].var(0).mean() ** 0.5)
    assert constant["r2"] == pytest.approx(0, abs=1e-9)


def test_equal_targets_leave_r2_undefined():
    equal = torch.full((5,), 0.1)
    assert "r2" not in evaluate(nn.Identity(), Regression(["r2"]), equal, equal)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Classification(["foo"]), "foo is none of the metrics, or named twice; Classi"),
        (lambda: Classification(["f1", "f1"]), "f1 is none of the metrics, or named twice"),
        (lambda: Regression(["f1"]), "Regression has mae, rmse, r2"),
        (lambda: Regression(scale=0.0), "a scale above 0"),
        (lambda: Regression(mean=float("nan")), "a finite mean"),
        (lambda: Classification(class_weights="balanced"), "computes before a new run"),
        (lambda: Classification(class_weights=[1.0, 0.0]), "numbers above 0"),
        (lambda: Classification(class_weights=[]), "numbers above 0"),
    ],
)
def test_options_that_no_objective_has_are_refused(made, said):
    with pytest.raises(TaskError, match=said):
        made()


def test_class_weights_are_torchs_in_training_alone():
    logits, truth = torch.randn(9, 3), torch.arange(9) % 3
    objective, weights = Classification(class_weights=[1, 2.5, 4]), torch.tensor([1, 2.5, 4])
    expected = nn.functional.cross_entropy(logits, truth, weight=weights)
    assert torch.equal(objective.loss(nn.Identity(), logits, truth), expected)
    plain = evaluate(nn.Identity(), Classification(), logits, truth)
    assert evaluate(nn.Identity(), objective, logits, truth) == plain


@pytest.mark.parametrize(
    ("classes", "options", "names"),
    [
        (2, {"majority": 0.61}, ["balanced_accuracy", "accuracy", "f1", "auroc"]),
        (2, {"majority": 0.6}, ["accuracy", "f1", "auroc"]),
        (2, {"scores": False}, ["accuracy", "f1"]),
        (3, {"majority": 0.7}, ["balanced_accuracy", "accuracy"]),
        (10, {}, ["accuracy"]),
        (11, {"scores": False}, ["accuracy", "top5"]),
    ],
)
def test_the_metrics_of_a_new_run_depend_on_its_classes_and_on_what_nodes_send(
    classes, options, names
):
    assert default_metrics(classes, **{"scores": True, **options}) == names


def test_both_packages_name_keys_alike():
    assert KEYS == SENT_KEYS
