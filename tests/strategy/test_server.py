"""What the synchronous and the asynchronous server have in common."""

import logging

import pytest

from tests.strategy.federation import Federation, Trainer


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.mark.parametrize(("way", "unit"), [("run", "ROUND"), ("push", "PUSH")])
def test_the_course_of_a_run_is_shown_where_flowers_own_is(way, unit, monkeypatch):
    shown, logger = Lines(), logging.getLogger("flwr")
    monkeypatch.setattr(logger, "handlers", [shown])
    monkeypatch.setattr(logger, "propagate", False)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        getattr(Federation(Trainer()), way)(3)
    finally:
        logger.setLevel(level)
    first, what, *rest = shown.lines
    assert first.startswith("Starting ")
    assert "gradient" in what
    assert rest == [f"[{unit} {i}/3] {{'models': {i + 1}}}" for i in range(4)]
