"""Which record of a message is the model, and which tensors are sent in their own type."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from edgewire.compression.flower import flat_record
from edgewire.compression.flower.server.sent_model import SentModels, SentModelsState
from edgewire.compression.layout import Layout
from tests.compression.flower.apps import record_of

FLAT = Layout(("w", "b"), ((2, 2), (2,)), ("float32",) * 2)


def named(**values):
    return record_of(values)


def content(**records):
    return RecordDict(records)


@pytest.fixture
def models():
    return SentModels(None, [], 0, SentModelsState())


def test_the_first_arrays_are_the_model(models):
    one, two = named(w=np.ones(3, np.float32)), named(w=np.zeros(5, np.float32))
    found = models.of(content(config=ConfigRecord(), one=one, two=two), first=True)
    np.testing.assert_array_equal(found.model.vector, np.ones(3, np.float32))
    assert found.plain_bytes == len(one["w"].data)


def test_patterns_must_name_something_once():
    models = SentModels(None, ["nothing*"], 0, SentModelsState())
    message = content(a=named(w=np.ones(3, np.float32)))
    assert models.of(message, first=False) is not None
    with pytest.raises(ValueError, match="nothing"):
        models.of(message, first=True)


def test_a_flat_model_needs_no_look_at_its_names():
    models = SentModels(FLAT, ["b"], 123, SentModelsState())
    found = models.of(content(a=flat_record(np.arange(6, dtype=np.float32))), first=True)
    assert (found.form.patterns, found.plain_bytes) == (("b",), 123)
    np.testing.assert_array_equal(found.model.vector, np.arange(6, dtype=np.float32))
