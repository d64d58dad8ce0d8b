"""Which metrics and weights in a reply the server uses, up to the limits themselves."""

import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewire.compression.base import PayloadError
from edgewire.compression.decoder import decode_update
from edgewire.compression.flower.headers import ACCURACY, LOSS
from edgewire.compression.flower.server.reply_checks import (
    BOUNDS,
    ReplyRules,
    SentMessage,
    answered,
    expect_weight,
    expected,
    inconsistent,
    rebuilt,
    weight_of,
)
from edgewire.compression.flower.tensor_split import Model, form_of_updates
from edgewire.compression.layout import Layout
from tests.compression.flower.federation import PLAIN

EVALUATED = SentMessage(1, 1, "evaluate", "arrays", False, None, None, 0)
TRAINED = EVALUATED._replace(kind="train", train=True)
ASKED = EVALUATED._replace(form=form_of_updates(Layout((), (), ())))


def content_of(metrics, **models):
    made = {name: ArrayRecord({"w": Array(np.ones(value))}) for name, value in models.items()}
    return RecordDict({**made, "metrics": MetricRecord(metrics)})


def rules(names=(), bounds=BOUNDS):
    return ReplyRules(metrics={"evaluate": list(names), "train": list(names)}, bounds=bounds)


LARGEST = math.nextafter(2.0**63, 0)


@pytest.mark.parametrize("weight", [1, 1e-300, (1 << 63) - 1, LARGEST])
def test_a_weight_within_the_limits_is_used(weight):
    content = content_of({"n": weight})
    expect_weight(content, "n")
    assert weight_of(content, "n") == float(weight)


@pytest.mark.parametrize("weight", [0, 0.0, -1e-300, 2.0**63, math.inf, math.nan, [1.0]])
def test_a_weight_beyond_the_limits_is_refused(weight):
    content = content_of({"n": weight})
    for check in (expect_weight, weight_of):
        with pytest.raises(PayloadError, match="n must be a number above 0, below 2"):
            check(content, "n")


def test_a_weight_is_required_only_where_the_mean_needs_it():
    expect_weight(content_of({"m": 1}), "n")
    with pytest.raises(PayloadError, match="n must be a number"):
        weight_of(content_of({"m": 1}), "n")
    for content in (RecordDict(), RecordDict({"a": MetricRecord(), "b": MetricRecord()})):
        with pytest.raises(PayloadError, match="one MetricRecord"):
            weight_of(content, "n")


@pytest.mark.parametrize(
    "metrics", [{}, {LOSS: 0.0}, {LOSS: 9e9}, {ACCURACY: 0}, {ACCURACY: 1}, {"x": -1.5}]
)
def test_metrics_within_their_limits_are_all_that_remains(metrics):
    found = rebuilt(content_of({"more": 1.0, **metrics}), EVALUATED, rules(metrics))
    assert list(found) == ["metrics"]
    assert dict(found["metrics"]) == metrics


@pytest.mark.parametrize(
    "metrics", [{LOSS: -1e-300}, {ACCURACY: -1e-300}, {ACCURACY: math.nextafter(1, 2)}]
)
def test_metrics_beyond_their_limits_are_refused(metrics):
    with pytest.raises(PayloadError, match=f"its {next(iter(metrics))} must be"):
        rebuilt(content_of(metrics), EVALUATED, rules(metrics))
    assert rebuilt(content_of(metrics), EVALUATED, rules(metrics, {}))["metrics"] == metrics


@pytest.mark.parametrize(
    "others",
    [
        {"": [1.0]}, {"x": 1.0}, {"m": [1.0]}, {"m": [1.0, 2.0, 3.0]}, {"m": 1.0},
        {"m": [1.0, 2.0], "x": 1.0},
    ],
)  # fmt: skip
@pytest.mark.parametrize("most", [{}, {"m": [1.0, 2.0]}])
def test_a_reply_whose_records_differ_from_most_others_is_found(most, others):
    replies = [(content_of(metrics), ASKED) for metrics in (most, others, most)]
    assert inconsistent(replies, "n") == [1]
    assert inconsistent(replies[::2], "n") == []


def layout_of(tensors, entries):
    return Layout(tuple(map(str, range(tensors))), ((entries,),) * tensors, ("float32",) * tensors)


@pytest.mark.parametrize(
    ("tensors", "entries", "most_tensors", "most_entries"),
    [(1, 4, 256, 1 << 16), (100, 2, 400, 1 << 16), (1, 1 << 16, 256, 1 << 18)],
)
def test_a_reply_may_have_four_times_the_tensors_and_the_bytes(
    tensors, entries, most_tensors, most_entries
):
    sent = form_of_updates(layout_of(tensors, entries))

    def split(layout):
        payload = PLAIN.encode(np.ones(layout.size, np.float32), layout, names=True)
        return expected(payload, sent, whole=False, named=True)

    for allowed in (layout_of(most_tensors, 1), layout_of(1, most_entries)):
        assert split(allowed).whole == allowed
    for refused in (layout_of(most_tensors + 1, 1), layout_of(1, most_entries + 1)):
        with pytest.raises(PayloadError):
            split(refused)


@pytest.mark.parametrize("models", [{}, {"a": 1, "b": 2}])
def test_a_reply_to_training_holds_one_model(models):
    with pytest.raises(PayloadError, match=f"must hold one ArrayRecord, not {len(models)}"):
        rebuilt(content_of({}, **models), TRAINED, rules())
    found = rebuilt(content_of({"x": 1}, theirs=3), TRAINED, rules(["x"]))
    assert list(found) == ["arrays", "metrics"]
    assert found["arrays"]["w"].shape == (3,)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(-70_000, 70_000, width=32))
def test_a_value_beyond_a_float16_tensor_is_refused(value):
    layout = Layout(("w", "b"), ((1,), (2,)), ("float16", "float32"))
    form, start = form_of_updates(layout), Model(np.zeros(3, np.float32))
    update = decode_update(PLAIN.encode(np.array([value, 1e5, 0], np.float32), layout), layout)
    if abs(value) < 65_520:  # larger values round to infinity
        assert answered(update, form, form, start, whole=False).vector[0] == np.float32(value)
    else:
        with pytest.raises(PayloadError, match="beyond float16 in w"):
            answered(update, form, form, start, whole=False)


def test_an_empty_record_is_unlike_one_with_an_empty_key():
    replies = [(RecordDict({"m": MetricRecord(values)}), ASKED) for values in ({}, {}, {"": 1.0})]
    assert inconsistent(replies, "n") == [2]
