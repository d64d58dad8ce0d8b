"""Data of Python objects: they become a file in the folder of a run, where `resume=` finds it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser

from edgewire.command.run_lock import new_folder
from edgewire.command.saved_config import CONTINUE, RESUME, START
from edgewire.conf.schema import ConfigError
from edgewire.report.runs import HYDRA
from edgewire.strategy.run.checkpoint_file import FILE as CHECKPOINT
from edgewire.task.errors import TaskError, errors_as
from edgewire.task.override_text import quoted, text_of

TABLE, ARRAYS = "data.parquet", "data.npz"
FOLDERS = {"hydra.run.dir": "outputs", "hydra.sweep.dir": "multirun"}


@contextmanager
def data_in(
    key: str, words: Sequence[str], data: Any, target: str | Sequence[str] | None
) -> Iterator[list[str]]:
    """Write data into a new run's folder; yield the words with those of the data and the folder.

    An error in this context removes the file again, unless the run has written a checkpoint.

    Args:
        key: the override with the folder, one of `FOLDERS`.
        words: the overrides of the run.
        data: a table (a DataFrame, or a pyarrow.Table); or inputs and targets, (x, y), as arrays of
            one row a sample each; or several arrays by name. None: there are none.
        target: the table's column or the array to predict; None for (x, y). Several columns are
            several numbers.

    Raises:
        ConfigError: for other data, in one line.
        TaskError: for a table or an array that cannot be written, in one line.
    """
    if data is None:
        if target is not None:
            raise ConfigError("target= names a column of data=, which is missing: give both")
        yield [*words]
        return
    if any(word.startswith((f"{RESUME}=", f"{CONTINUE}=")) for word in words):
        raise ConfigError("a resumed run finds its data in its folder: leave out data=")
    given = [word for word in words if word.startswith(f"{key}=")]
    own = OverridesParser.create().parse_override(given[-1]).value() if given else None
    folder = Path(str(own) if own else new_folder(FOLDERS[key])).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {word.partition("=")[0].partition(".")[0] for word in words}
    # (x, y) with numbers in rows, (N, F), is a table without names
    matrix = isinstance(data, tuple | list) and len(data) == 2 and np.ndim(data[0]) == 2
    is_table = hasattr(data, "columns") or ("model" not in kinds and matrix)
    file = folder / (TABLE if is_table else ARRAYS)
    try:
        starts = any(word.startswith(f"{START}=") for word in words)  # with a run's configuration
        if hasattr(data, "columns") and target is None and not starts:
            raise ConfigError("data= needs target=, the column to predict, as in target='churn'")
        found = (_table if is_table else _arrays)(data, target, file)
        found = [] if starts else found
        found = [
            word for word in found if word != "objective=regression" or "objective" not in kinds
        ]
        yield [*found, f"dataset.root={quoted(str(file))}", f"{key}={quoted(str(folder))}", *words]
    except Exception:
        if not (folder / CHECKPOINT).exists():
            file.unlink(missing_ok=True)
            if {each.name for each in folder.iterdir()} <= {HYDRA.name}:  # refused at once
                shutil.rmtree(folder, ignore_errors=True)
        raise


def _table(data: Any, target: str | Sequence[str] | None, file: Path) -> list[str]:
    """Write a table into a Parquet file; return the overrides of its task."""
    from pyarrow import parquet

    from edgewire.task.tables.columns import Reading
    from edgewire.task.tables.files import read  # it imports torch
    from edgewire.task.tables.read import expect_there

    if not hasattr(data, "columns"):
        import pandas as pd

        x, y = map(_array, data)
        data, target = pd.DataFrame({f"x{k + 1}": each for k, each in enumerate(x.T)}), "y"
        if len(x) != len(y):
            raise TaskError(f"data=(x, y): x has {len(x):,} rows, and y has {len(y):,}")
        data["y"] = [*y] if y.ndim > 1 else y
    rows = read(data, Reading())
    with errors_as("data= cannot be written"):
        parquet.write_table(rows.table, file)
    if target is not None:  # columns may be numbers
        target = [*map(str, target)] if isinstance(target, list | tuple) else str(target)
        expect_there("data", rows.names, [target] if isinstance(target, str) else target)
    return ["task=table", f"dataset.target={text_of(target)}"]


def _arrays(data: Any, target: str | Sequence[str] | None, file: Path) -> list[str]:
    """Write arrays into an .npz file; return the overrides of its task."""
    if isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
        data, target = {**(x if isinstance(x, Mapping) else {"x": x}), "y": y}, "y"
    if not isinstance(data, Mapping) or not isinstance(target, str) or target not in data:
        raise ConfigError(
            "data= takes a DataFrame with target=COLUMN, or arrays (x, y), or arrays by name with "
            "target=NAME"
        )
    arrays = {str(name): _array(each) for name, each in data.items()}
    np.savez(file, **arrays)
    number = arrays[target].dtype.kind == "f"
    return ["dataset=npz", f"dataset.target={quoted(target)}", *["objective=regression"] * number]


def _array(values: Any) -> Any:
    """Return an array, tensor, series or list as an array without Python objects."""
    found = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if found.dtype.kind == "O":
        if not all(isinstance(each, str) for each in found.flat):
            raise TaskError("data= has an array of Python objects: give numbers or texts")
        found = found.astype(str)
    return found
