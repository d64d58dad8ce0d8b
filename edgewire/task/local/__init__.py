"""Local algorithms: what a node does with its mini-batches between two messages."""

from edgewire.task.local.base import LocalAlgorithm, LocalRun

__all__ = ["LocalAlgorithm", "LocalRun"]
