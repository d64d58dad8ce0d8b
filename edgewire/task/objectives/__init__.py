"""Objectives: the loss that training minimises, and the metrics of an evaluation.

An objective is one class in a module of this package, or of one's own package (`_target_`).
"""

from edgewire.task.metric import Metric
from edgewire.task.objectives.base import Objective

__all__ = ["Metric", "Objective"]
