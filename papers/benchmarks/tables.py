"""The time and the memory of reading large tables; prints JSON.

Three files: a million rows of 50 columns (numbers, texts and dates), 20,000 columns of 1,000 rows,
and 1,000 rows of which one has a cell of 20 MB. Each is read in a process of its own, from the file
to the inputs of the first 1,000 rows.

    python -m papers.benchmarks.tables [SHARE]      SHARE of the rows and columns, 1 by default
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import csv

SHAPES = {"rows": (1_000_000, 50), "columns": (1_000, 20_000), "long cell": (1_000, 5)}
LONG = 20_000_000  # characters


def write(file: Path, name: str, share: float) -> None:
    """Write the table `name` with a target of two classes."""
    random = np.random.default_rng(0)
    rows, width = SHAPES[name]
    rows = max(int(rows * share), 50) if name == "rows" else rows
    width = max(int(width * share), 10) if name == "columns" else width
    columns = {"target": pyarrow.array(random.choice(["no", "yes"], rows))}
    days = np.datetime64("2020-01-01") + random.integers(0, 2000, rows)
    for place in range(width):
        kind = place % 5 if name == "rows" else 0
        values = random.normal(size=rows).round(4)
        texts = random.choice([f"text {each}" for each in range(100)], rows) if kind == 3 else None
        columns[f"c{place}"] = pyarrow.array(texts if kind == 3 else days if kind == 4 else values)
    if name == "long cell":
        columns["note"] = pyarrow.array(["x" * LONG, *["y", "z"] * (rows // 2)][:rows])
    csv.write_csv(pyarrow.table(columns), file)


def measure(file: Path) -> dict[str, float]:
    """Return the seconds that reading takes, and the gigabytes that it takes at most."""
    import torch

    from edgewire.task.datasets.table import table

    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    data = table(str(file))
    data.prepared(data.train.inputs[:1000])  # type: ignore[index]
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "peak_gb": round(after.ru_maxrss / (1 << 20), 2),
        "peak_gb_before": round(before.ru_maxrss / (1 << 20), 2),
    }


def main() -> None:
    """Measure each table and print the figures."""
    if sys.argv[1:2] == ["--of"]:
        print(json.dumps(measure(Path(sys.argv[2]))))
        return
    share, found = float(([*sys.argv[1:], "1"])[0]), {}
    with tempfile.TemporaryDirectory() as folder:
        for name in SHAPES:
            file = Path(folder, "t.csv")
            write(file, name, share)
            command = [sys.executable, "-m", "papers.benchmarks.tables", "--of", str(file)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[name] = {
                "megabytes": round(file.stat().st_size / 1e6, 1),
                **json.loads(done.stdout.splitlines()[-1]),
            }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
