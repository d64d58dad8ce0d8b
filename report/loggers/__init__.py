"""Loggers: they pass a run's rows to TensorBoard, MLflow, Weights & Biases, or a table."""

from report.loggers.base import Ended as Ended
from report.loggers.base import LoggedRun as LoggedRun
from report.loggers.base import Logger as Logger
from report.loggers.base import LoggerError as LoggerError
