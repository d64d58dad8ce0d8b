"""Data sets: samples as tensors, in memory or mapped from files.

A data set is a function that returns `Data`. A file of `conf/dataset/` names it as `_target_`.
"""

from edgewire.task.datasets.data import Data, Split

__all__ = ["Data", "Split"]
