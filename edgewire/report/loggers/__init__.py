"""Loggers: they pass a run's rows to TensorBoard, MLflow, Weights & Biases, or a table."""

from edgewire.report.loggers.base import Ended as Ended
from edgewire.report.loggers.base import LoggedRun as LoggedRun
from edgewire.report.loggers.base import Logger as Logger
from edgewire.report.loggers.base import LoggerError as LoggerError
