"""pyarrow, imported at its first use: its import takes a second, and devices may lack it."""

from importlib import import_module
from typing import Any

from edgewire.task.errors import TaskError

Table = Any  # a pyarrow.Table; pyarrow has no types


class _Late:
    """A module. Raises `TaskError` at its first use if there is no pyarrow."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(import_module(self._name), name)
        except ImportError as error:
            raise TaskError(
                "tables need the package pyarrow: pip install pyarrow, or use dataset=npz"
            ) from error


pyarrow, compute, types = map(_Late, ("pyarrow", "pyarrow.compute", "pyarrow.types"))
csv, parquet = map(_Late, ("pyarrow.csv", "pyarrow.parquet"))
