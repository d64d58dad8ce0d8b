"""A node reads every header that the server writes, and refuses other values."""

import math

import pytest
from flwr.app import ConfigRecord, RecordDict

from edgewire.compression.base import PayloadError
from edgewire.compression.flower.headers import (
    HEADER,
    DownlinkHeader,
    TrainConfig,
    UplinkHeader,
    read,
    written,
)

FIELDS = [(kind, name) for kind in (DownlinkHeader, UplinkHeader) for name in kind._fields]
VALUES = {"int": 1, "float": 1, "bytes": b"12345678", "list[float]": [1, 0.5], "list[int]": [1],
          "list[str]": ["a"]}  # fmt: skip


def kind_of(kind, name):
    said = kind.__annotations__[name]
    return str(getattr(said, "__forward_arg__", said)).removesuffix(" | None")


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_what_is_written_is_read(kind, name):
    header = kind(**{name: VALUES[kind_of(kind, name)]})
    assert read(RecordDict({HEADER: written(header)}), kind) == header


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0, 1, True, "1", [1.0]])
def test_a_density_factor_that_is_none_is_refused(value):
    record = ConfigRecord({"density_factor": value})
    with pytest.raises(PayloadError, match="density_factor"):
        read(RecordDict({HEADER: record}), DownlinkHeader)


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", 1 << 62])
def test_most_steps_that_are_no_count_are_refused(value):
    with pytest.raises(PayloadError, match="most-steps"):
        TrainConfig.of({"lr": 0.1, "number": 1, "most-steps": value})
