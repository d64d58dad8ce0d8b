"""Apps in the layout of Flower's examples, plain and with the link's two lines, on two engines.

    python -m benchmarks.linked_apps              # JSON on stdout, about ten minutes
    python -m benchmarks.linked_apps --apps sklearn_float64 --engines local --nodes 4

An app is copied, the library goes into it under another name, and its two lines are put in: the
app is otherwise as it was. Engines: the local one, and Flower's own simulation (Ray), by the path
of `flwr run` with an environment that is there already. Bytes are those that the link has counted,
and what Flower would have sent in their place; a run without the link has none.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.any_app import ON_RAY
from benchmarks.timing import ROOT

APPS = ROOT / "tests" / "apps"
LIBRARY = "squeeze"  # any name will do


class Lines(NamedTuple):
    """What is given to `Link` beside the grid, and what to `Uplink`, as they are written."""

    link: str
    uplink: str


WAYS = {
    "int8": Lines(', downlink="int8"', '"int8"'),
    "topk": Lines(', downlink="int8"', '"topk", density=0.1'),
    "dense": Lines("", '"dense"'),
}
TELL = '    print("traffic", link.traffic.as_dict())\n'


def linked(app: Path, folder: Path, lines: Lines, *, tell: bool = False) -> Path:
    """Copy an app into a folder, with the library in it and its two lines; return where it is.

    `tell`: the server keeps the link, and prints at its end what that has counted. Raises
    `ValueError` if the app has no such lines.
    """
    copy = shutil.copytree(app, folder / app.name, ignore=shutil.ignore_patterns("__pycache__"))
    components = tomllib.loads((copy / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    server, client = (
        copy / (components["components"][each].split(":")[0].replace(".", "/") + ".py")
        for each in ("serverapp", "clientapp")
    )
    package = server.parent
    unused = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "compression", package / LIBRARY, ignore=unused)
    source = f"from {package.name}.{LIBRARY}.flower import"
    link = f"Link(grid{lines.link})"
    link = f"(link := {link})" if tell else link
    _put(server, "grid=grid", f"grid={link}")
    _put(server, "app = ServerApp()", f"{source} Link\n\napp = ServerApp()")
    with_mod = f"{source} Uplink\n\napp = ClientApp(mods=[Uplink({lines.uplink})])"
    _put(client, "app = ClientApp()", with_mod)
    if tell:
        server.write_text(server.read_text() + TELL)  # `main` is its last function
    return copy


def _put(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    if text.count(old) != 1:
        raise ValueError(f"{file} must hold {old!r} once, not {text.count(old)} times")
    file.write_text(text.replace(old, new))


def measured(app: Path, engine: str, nodes: int, words: str, folder: Path) -> dict[str, Any]:
    """Run an app from the start of a process to its end; return what came out of it."""
    log, began = folder / "run.log", time.perf_counter()
    command = ["-m", "simulation", str(app), "--nodes", str(nodes), "--workers", "2"]
    command += ["--run-config", words]
    if engine == "ray":
        told = ON_RAY.replace(
            "actors=int(actors))", f"actors=int(actors), log_file=Path({str(log)!r}))"
        )
        command = ["-c", told, str(app), str(nodes), "2", words]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, check=True, capture_output=True, text=True
    )
    seconds = time.perf_counter() - began
    printed = log.read_text() if engine == "ray" else done.stdout
    (accuracy,) = re.findall(r"final accuracy ([\d.]+)", printed)
    traffic = re.findall(r"^traffic (.+)$", printed, re.MULTILINE)
    found = {"accuracy": float(accuracy), "seconds": round(seconds, 1)}
    return found | (ast.literal_eval(traffic[0]) if traffic else {})


def main() -> None:
    """Run all and print JSON, a row a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apps", nargs="+", default=sorted(path.name for path in APPS.iterdir()))
    parser.add_argument("--engines", nargs="+", default=["local", "ray"], choices=["local", "ray"])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--ways", nargs="+", default=["int8", "topk"], choices=list(WAYS))
    given = parser.parse_args()
    words = f"num-server-rounds={given.rounds}"
    rows = []
    for name in given.apps:
        for engine in given.engines:
            for way in ("plain", *given.ways):
                with tempfile.TemporaryDirectory() as folder:
                    app = APPS / name
                    if way != "plain":
                        app = linked(app, Path(folder), WAYS[way], tell=True)
                    row = {"app": name, "engine": engine, "way": way}
                    rows.append(row | measured(app, engine, given.nodes, words, Path(folder)))
                print(rows[-1], file=sys.stderr)
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
