"""Runs apps in the layout of Flower's examples, without and with compression, on two engines.

    python -m papers.benchmarks.apps.compressed_apps             # JSON on stdout, about ten minutes
    python -m papers.benchmarks.apps.compressed_apps --apps sklearn_float64 --engines local --nodes
    4

Compression needs two lines in an app: `CompressedGrid` in the ServerApp, and `CompressionMod` in
the ClientApp. The benchmark copies an app, copies the library into it under another name, and adds
these two lines. It changes nothing else. The engines are the local engine and Flower's simulation
(Ray), started as by `flwr run` but without installing dependencies. `CompressedGrid` counts the
bytes, and the bytes that Flower would have sent instead. A run without compression has no counts.
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

from papers.benchmarks.apps.any_app import ON_RAY
from papers.benchmarks.timing import ROOT

APPS = ROOT / "tests" / "apps"
LIBRARY = "squeeze"  # any name will do


class Lines(NamedTuple):
    """Source code of the arguments of `CompressedGrid` (`grid`) and `CompressionMod` (`mod`)."""

    grid: str
    mod: str


WAYS = {
    "int8": Lines(', downlink="int8"', '"int8"'),
    "topk": Lines(', downlink="int8"', '"topk", density=0.1'),
    "dense": Lines("", '"dense"'),
}
TELL = 'print("traffic", compressed.traffic.as_dict())'


def compressed_copy(app: Path, folder: Path, lines: Lines, *, tell: bool = False) -> Path:
    """Copy an app into a folder, add the library and its two lines, and return the copy's path.

    `tell`: the server prints the counted traffic at its end. Raises `ValueError` if the app has not
    exactly one function under `@app.main()`, or not exactly one `app = ClientApp(...)`.
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
    server.write_text(with_compressed_grid(server.read_text(), source, lines.grid, tell=tell))
    client.write_text(with_compression_mod(client.read_text(), source, lines.mod))
    return copy


def with_compressed_grid(text: str, source: str, options: str, *, tell: bool = False) -> str:
    """Return a ServerApp's source code with `CompressedGrid` around the main function's grid."""
    mains = [
        each
        for each in ast.parse(text).body
        if isinstance(each, ast.FunctionDef)
        and any(ast.unparse(mark).endswith(".main()") for mark in each.decorator_list)
    ]
    if len(mains) != 1:
        found = f"{len(mains)} functions under `@app.main()`, not one"
        raise ValueError(f"no place for the grid: {found}; Flower's old API shows no grid")
    main, body = mains[0], mains[0].body
    documented = ast.get_docstring(main) is not None and len(body) > 1
    grid, first = main.args.args[0].arg, body[1 if documented else 0]
    rows, indent = text.splitlines(), " " * first.col_offset
    if tell:
        rows.insert(body[-1].end_lineno or len(rows), indent + TELL)
    rows.insert(first.lineno - 1, f"{indent}{grid} = compressed = CompressedGrid({grid}{options})")
    return _with_import(rows, f"{source} CompressedGrid")


def with_compression_mod(text: str, source: str, options: str) -> str:
    """Return a ClientApp's source code with `CompressionMod` as the first mod of its `app`."""
    calls = [
        each.value
        for each in ast.parse(text).body
        if isinstance(each, ast.Assign)
        and isinstance(each.value, ast.Call)
        and ast.unparse(each.value.func).endswith("ClientApp")
    ]
    if len(calls) != 1:
        raise ValueError(f"the module of the ClientApp makes {len(calls)} of them, not one")
    call, mod = calls[0], f"CompressionMod({options})"
    mods = [each.value for each in call.keywords if each.arg == "mods"]
    rows = text.splitlines()
    if mods:  # after the opening bracket
        row, column, mod = mods[0].lineno - 1, mods[0].col_offset + 1, f"{mod}, "
    else:
        row, column = call.func.end_lineno or 1, (call.func.end_col_offset or 0) + 1
        arguments = bool(call.args or call.keywords)
        row, mod = row - 1, f"mods=[{mod}]" + (", " if arguments else "")
        if call.args:  # a positional argument must stay the first
            row, column = (call.args[-1].end_lineno or 1) - 1, call.args[-1].end_col_offset or 0
            mod = f", mods=[CompressionMod({options})]"
    rows[row] = rows[row][:column] + mod + rows[row][column:]
    return _with_import(rows, f"{source} CompressionMod")


def _with_import(rows: list[str], line: str) -> str:
    """Add an import after the last import of a module."""
    tops = ast.parse("\n".join(rows)).body
    last = max(
        each.end_lineno or 0 for each in tops if isinstance(each, ast.Import | ast.ImportFrom)
    )
    return "\n".join([*rows[:last], line, *rows[last:], ""])


def measured(app: Path, engine: str, nodes: int, run_config: str, folder: Path) -> dict[str, Any]:
    """Run an app in a new process; return its accuracy, its seconds and the counted traffic."""
    log, began = folder / "run.log", time.perf_counter()
    command = ["-m", "edgewire.simulation", str(app), "--nodes", str(nodes), "--workers", "2"]
    command += ["--run-config", run_config]
    if engine == "ray":
        told = ON_RAY.replace(
            "actors=int(actors))", f"actors=int(actors), log_file=Path({str(log)!r}))"
        )
        command = ["-c", told, str(app), str(nodes), "2", run_config]
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
    """Run all apps, engines and ways, and print JSON with one row per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apps", nargs="+", default=sorted(path.name for path in APPS.iterdir()))
    parser.add_argument("--engines", nargs="+", default=["local", "ray"], choices=["local", "ray"])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--ways", nargs="+", default=["int8", "topk"], choices=list(WAYS))
    given = parser.parse_args()
    run_config = f"num-server-rounds={given.rounds}"
    rows = []
    for name in given.apps:
        for engine in given.engines:
            for way in ("plain", *given.ways):
                with tempfile.TemporaryDirectory() as folder:
                    app = APPS / name
                    if way != "plain":
                        app = compressed_copy(app, Path(folder), WAYS[way], tell=True)
                    row = {"app": name, "engine": engine, "way": way}
                    rows.append(row | measured(app, engine, given.nodes, run_config, Path(folder)))
                print(rows[-1], file=sys.stderr)
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
