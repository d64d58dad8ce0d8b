"""The bytes of a node's Python environment: `python -m papers.benchmarks.devices.fleet slim`.

The environment has the CPU build of torch and the extra `node` of compression/pyproject.toml. Two
nodes that use it then make a run of a table (csv) with a server of this environment. If the index
of CPU builds cannot be reached, the packages of 64-bit ARM Linux are unpacked in its place, whose
torch has no CUDA; these cannot be run here. `platform` says which one was measured.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from papers.benchmarks.timing import ROOT
from tests.deploy.processes import eventually
from tests.system.fault_field import Field, TheRun

INDEX = "https://download.pytorch.org/whl/cpu"
ARM = "aarch64-unknown-linux-gnu"
PACKAGES = "./compression[node]"
WORDS = ["task=table", "dataset.target=y", "algorithm=fedavg", "rounds=3"]


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    files = (each for each in folder.rglob("*") if each.is_file() and not each.is_symlink())
    return sum(each.stat().st_size for each in files)


def installed(folder: Path, index: str) -> bool:
    """Install a node's packages into a new environment; return False if the index is not there."""
    python = str(folder / "bin" / "python")
    subprocess.run(["uv", "venv", "--quiet", "-p", sys.executable, str(folder)], check=True)
    tool = ["uv", "pip", "install", "--quiet", "-p", python]
    if subprocess.run([*tool, "torch", "--index-url", index], check=False).returncode:
        return False
    subprocess.run([*tool, PACKAGES], cwd=ROOT, check=True)
    return True


def of_table(folder: Path, python: str) -> dict[str, Any]:
    """Return the result of a run of two nodes that have a table each."""
    with Field(folder, 2) as field:
        for index in range(2):
            table = folder / f"{index}.csv"
            rows = [f"{x},{x % 7},{('a', 'b')[x % 3 > 0]}" for x in range(index, 400 + index)]
            table.write_text("\n".join(["u,v,y", *rows]))
            field.nodes[index].kill()
            field.nodes[index].wait()
            field.begin_node(index, python=python, EDGEWIRE_DATA=str(folder))
        run = TheRun(field, "run", [*WORDS, f"dataset.root={folder / '0.csv'}"])
        eventually(run.has_ended)
        return {"exit": run.process.returncode, "failures": run.result()["failures"]}


def measured(words: list[str]) -> dict[str, Any]:
    """Return the result of the case with these options."""
    parser = argparse.ArgumentParser(prog="slim", description=__doc__)
    parser.add_argument("--index", default=INDEX, help="of CPU builds of torch")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "venv"
        if installed(folder, args.index):
            python = str(folder / "bin" / "python")
            (Path(name) / "field").mkdir()
            run = of_table(Path(name) / "field", python)
            return {"platform": platform.machine(), "bytes": size_of(folder), "csv_run": run}
        target = Path(name) / "unpacked"
        where = ["--python-platform", ARM, "--target", str(target)]
        tool = ["uv", "pip", "install", "--quiet", *where, PACKAGES]
        subprocess.run(tool, cwd=ROOT, check=True)
        return {"platform": "aarch64, unpacked only", "bytes": size_of(target), "csv_run": None}
