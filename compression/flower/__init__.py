"""Compresses models and updates between a Flower server and its nodes, at both ends.

The server calls `strategy.start(grid=CompressedGrid(grid), ...)`. The nodes run
`ClientApp(mods=[CompressionMod("int8")])`. The strategy and the ClientApp get and return
uncompressed arrays. docs/architecture.md describes the path of an update through these files.
"""

from ..screening import Screening
from .node.mod import CompressionMod
from .records import (
    FlatArray,
    filled,
    flat_record,
    layout_of,
    payload_of,
    payload_record,
    to_arrays,
    to_vector,
    update_record,
)
from .server.compressed_grid import CompressedGrid
from .server.failure_policy import FailureLimits
from .server.reply_checks import ReplyRules
from .server.statistics_averaging import StatisticsAveraging
from .traffic import Traffic, reason_of

__all__ = [
    "CompressedGrid",
    "CompressionMod",
    "FailureLimits",
    "FlatArray",
    "ReplyRules",
    "Screening",
    "StatisticsAveraging",
    "Traffic",
    "filled",
    "flat_record",
    "layout_of",
    "payload_of",
    "payload_record",
    "reason_of",
    "to_arrays",
    "to_vector",
    "update_record",
]
