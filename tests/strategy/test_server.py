"""What the synchronous and the asynchronous server have in common."""

import logging

import pytest

from tests.strategy.federation import Federation, Trainer


@pytest.mark.parametrize(("way", "unit"), [("run", "ROUND"), ("push", "PUSH")])
def test_the_course_of_a_run_is_shown_where_flowers_own_is(way, unit, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # other tests turn it off
    caplog.set_level(logging.INFO, "flwr")
    getattr(Federation(Trainer()), way)(3)
    first, what, *rest = (record.getMessage() for record in caplog.records)
    assert first.startswith("Starting ")
    assert "gradient" in what
    assert rest == [f"[{unit} {i}/3] {{'models': {i + 1}}}" for i in range(4)]
