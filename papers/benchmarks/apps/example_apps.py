"""Runs Flower apps under `python -m edgewire.simulation` and checks the bytes that it reports.

    python -m papers.benchmarks.apps.example_apps FOLDER               # JSON on stdout, a row a run
    python -m papers.benchmarks.apps.example_apps FOLDER --ways plain int8 --settings settings.json

Each folder in FOLDER with a `pyproject.toml` is an app, which the benchmark does not change.
`--ways` names the methods of compression. `plain` runs the app itself, without compression. The
other ways run a copy with compression, made by `papers.benchmarks.apps.compressed_apps`. The
benchmark counts the bytes of every message a second time, where Flower's own ServerApp and
ClientApp are called: the server and each node count the bytes that they send and receive, record by
record.

`--settings` is a JSON file with `nodes` and `run_config` (for `--run-config`) by the app's name. It
makes runs shorter: `{"quickstart-pytorch": {"nodes": 4, "run_config": "num-server-rounds=2"}}`.
`--before` is a Python file that runs first in each process. It can replace an app's downloads by
small data.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from papers.benchmarks.apps.compressed_apps import WAYS, compressed_copy
from papers.benchmarks.timing import ROOT

COUNTING = """
import json, os, threading
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

with open(os.environ["RUN_BEFORE"]) as before:
    exec(compile(before.read(), before.name, "exec"))


def size(content):
    arrays = [r for r in content.values() if isinstance(r, ArrayRecord)]
    others = [r for r in content.values() if not isinstance(r, ArrayRecord)]
    data = sum(len(bytes(array.data)) for record in arrays for array in record.values())
    return data + sum(len(record.deflate()) for record in others)


def note(**counted):
    with open(os.environ["COUNTED"], "a") as file:
        file.write(json.dumps(counted) + "\\n")


def at_node(call):
    def counted(self, message, context):
        down = size(message.content)
        try:
            reply = call(self, message, context)
        except BaseException:
            note(node_down=down)
            raise
        note(node_down=down, node_up=size(reply.content) if reply.has_content() else 0)
        return reply
    return counted


def at_server(call):
    def counted(self, grid, context):
        inside = threading.local()
        for name in ("push_messages", "pull_messages", "pull_before", "send_and_receive"):
            if hasattr(grid, name):
                setattr(grid, name, of_grid(getattr(grid, name), name, inside))
        return call(self, grid, context)
    return counted


def of_grid(method, name, inside):
    def counted(first, *args, **kwargs):
        if getattr(inside, "it", False):  # called by another of them
            return method(first, *args, **kwargs)
        first = list(first)
        sent = 0 if name.startswith("pull") else sum(size(m.content) for m in first)
        inside.it = True
        try:
            found = method(first, *args, **kwargs)
        finally:
            inside.it = False
        replies = [] if name == "push_messages" else found
        note(down=sent, up=sum(size(r.content) for r in replies if r.has_content()))
        return found

    def by_name(*args, **kwargs):
        first = args[0] if args else kwargs.pop("messages", kwargs.pop("message_ids", ()))
        return counted(first, *args[1:], **kwargs)
    return by_name


ClientApp.__call__ = at_node(ClientApp.__call__)
ServerApp.__call__ = at_server(ServerApp.__call__)
"""
SUMMARY = {
    "messages": r"^messages +(\d+) sent, (\d+) answered, (\d+) failed$",
    "bytes": r"^bytes +([\d,]+) down, ([\d,]+) up",
    "unfetched": r"^bytes .+ up, ([\d,]+) up",
}
METRIC = re.compile(
    r"\b(\w*(?:acc|auc|loss)\w*)['\"]?[:=]+ *['\"]?(\d[\d.]*(?:e[-+]\d+)?)", re.IGNORECASE
)
SAID = re.compile(r"(?:not compressed|CompressionMod|^error|^stopped): .+", re.MULTILINE)


def run(app: Path, *, nodes: int, run_config: str, before: str) -> dict[str, Any]:
    """Run an app in a new process; return its exit code, seconds, reported and counted bytes."""
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder)
        (temporary / "sitecustomize.py").write_text(COUNTING)
        counted = temporary / "counted.jsonl"
        counted.touch()
        places = [folder, *filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]
        settings = {"PYTHONPATH": os.pathsep.join(places), "COUNTED": str(counted)}
        work = temporary / "work"
        work.mkdir()
        command = [sys.executable, "-m", "edgewire.simulation", str(app), "--nodes", str(nodes)]
        command += ["--run-config", run_config] if run_config else []
        began = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=work,
            env=os.environ | settings | {"RUN_BEFORE": before},
            capture_output=True,
            text=True,
        )
        row: dict[str, Any] = {"rc": done.returncode}
        row["seconds"] = round(time.perf_counter() - began, 1)
        for name, pattern in SUMMARY.items():
            found = re.search(pattern, done.stdout, re.MULTILINE)
            row[name] = [int(each.replace(",", "")) for each in found.groups()] if found else None
        row |= _sums(counted)
        printed = done.stdout + done.stderr
    (row["unfetched"],) = row["unfetched"] or [0]
    row["true"] = row["bytes"] == [row["down"], row["up"]]
    row["true"] &= row["node_up"] == row["up"] + row["unfetched"]
    row["metrics"] = {name: float(value.rstrip(".")) for name, value in METRIC.findall(printed)}
    row["said"] = list(dict.fromkeys(SAID.findall(printed)))
    if done.returncode and not row["said"]:
        row["said"] = printed.splitlines()[-1:]
    return row


def _sums(file: Path) -> dict[str, int]:
    """Return the sums of the bytes that all processes have counted and written to this file."""
    sums = dict.fromkeys(("down", "up", "node_down", "node_up"), 0)
    for line in file.read_text().splitlines():
        for name, size in json.loads(line).items():
            sums[name] += size
    return sums


def main() -> None:
    """Run all apps in all ways, and print JSON with one row per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--apps", nargs="+", help="of the folder; all of them")
    parser.add_argument("--ways", nargs="+", default=["plain"], choices=["plain", *WAYS])
    parser.add_argument("--nodes", type=int, default=4, help="where the settings name none")
    parser.add_argument("--settings", type=Path)
    parser.add_argument("--before", type=Path, default=Path(os.devnull))
    given = parser.parse_args()
    settings = json.loads(given.settings.read_text()) if given.settings else {}
    if unknown := {key for own in settings.values() for key in own} - {"nodes", "run_config"}:
        parser.error(f"--settings: {min(unknown)} is unknown; an app has nodes and run_config")
    found = sorted(path.parent.name for path in given.folder.glob("*/pyproject.toml"))
    rows = []
    for name in given.apps or found:
        own = {"nodes": given.nodes, "run_config": ""} | settings.get(name, {})
        for way in given.ways:
            row = {"app": name, "way": way, "nodes": own["nodes"], "run_config": own["run_config"]}
            with tempfile.TemporaryDirectory() as folder:
                app = given.folder.resolve() / name
                try:
                    if way != "plain":
                        app = compressed_copy(app, Path(folder), WAYS[way])
                    row |= run(app, **own, before=str(given.before.resolve()))
                except ValueError as error:
                    row["said"] = [str(error)]
            rows.append(row)
            print(json.dumps(row), file=sys.stderr)
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
