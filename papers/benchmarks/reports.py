"""Measures how long `python -m edgewire.report` takes, and how long Chromium opens its page.

    python -m papers.benchmarks.reports           # JSON on stdout; about three minutes

One run is trained, and its files are copied with changed numbers: 36 runs (12 settings, 3 seeds)
and 1,000 runs (500 settings, 2 seeds). `command` is the time of the whole command, with the start
of Python; on a busy machine its CPU time says more. `opened` is the time from the begin of the
navigation until the page has loaded and the first row of its main table is visible. It needs
playwright and an installed Chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from edgewire.report.runs import HISTORY, HYDRA, OVERRIDES, RESULT
from papers.benchmarks.timing import ROOT

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
COPIED = ("config.yaml", "hydra.yaml")
BYTES = ("uplink_bytes", "downlink_bytes")


def train(folder: Path, rounds: int) -> None:
    """Train the default run with some rounds into a folder."""
    words = [f"rounds={rounds}", f"hydra.run.dir={folder}"]
    subprocess.run([sys.executable, "run.py", *words], cwd=ROOT, check=True, capture_output=True)


def copy_runs(run: Path, sweep: Path, settings: int, seeds: int) -> None:
    """Write a sweep of copies of a run whose bytes and main metric differ from the run's own."""
    rows = [json.loads(line) for line in (run / HISTORY).read_text().splitlines()]
    result = json.loads((run / RESULT).read_text())
    for job in range(settings * seeds):
        setting, seed = divmod(job, seeds)
        drawn = random.Random(setting)
        factor, shift = drawn.uniform(0.05, 2), drawn.uniform(-0.1, 0.01)
        shift += random.Random(job).uniform(-0.005, 0.005)
        folder = sweep / str(job)
        (folder / HYDRA).mkdir(parents=True)
        for name in COPIED:
            shutil.copy(run / HYDRA / name, folder / HYDRA)
        words = [f"lr={0.001 * (setting + 1):.3f}", f"nodes={setting % 7 + 3}", f"seed={seed}"]
        (folder / OVERRIDES).write_text(json.dumps(words))
        lines = (json.dumps(_changed(row, factor, shift)) + "\n" for row in rows)
        (folder / HISTORY).write_text("".join(lines))
        changed = _changed(result, factor, shift) | {"seed": seed}
        (folder / RESULT).write_text(json.dumps(changed))
        if (run / "nodes.json").exists():
            shutil.copy(run / "nodes.json", folder)


def _changed(row: dict[str, Any], factor: float, shift: float) -> dict[str, Any]:
    changed = row | {key: round(row[key] * factor) for key in BYTES}
    if row.get("accuracy") is not None:
        changed["accuracy"] = min(max(row["accuracy"] + shift, 0.0), 1.0)
    return changed


def command_seconds(sweep: Path) -> tuple[float, float]:
    """Return the seconds of the whole command for the report of a sweep, and its CPU seconds."""
    begun, before = time.perf_counter(), os.times()
    words = [sys.executable, "-m", "edgewire.report", str(sweep)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    seconds, after = time.perf_counter() - begun, os.times()
    spent = after.children_user + after.children_system
    return seconds, spent - before.children_user - before.children_system


def opened_seconds(page: Path, times: int) -> list[float]:
    """Return for each opening of a page the seconds until its first row is visible."""
    from playwright.sync_api import sync_playwright

    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        sys.exit(f"no Chromium is installed: none of {', '.join(BROWSERS)} is on the PATH")
    seconds = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for _ in range(times):
            window = browser.new_page(viewport={"width": 1400, "height": 900})
            begun = time.perf_counter()
            window.goto(page.as_uri(), wait_until="load")
            window.locator("#table-summary tbody tr").first.wait_for(state="visible")
            seconds.append(time.perf_counter() - begun)
            window.close()
        browser.close()
    return seconds


def measure(run: Path, sweep: Path, settings: int, seeds: int, times: int) -> dict[str, Any]:
    """Return the times and the size of the report of a sweep of `settings` x `seeds` runs."""
    copy_runs(run, sweep, settings, seeds)
    walls, spent = zip(*(command_seconds(sweep) for _ in range(times)), strict=True)
    page = sweep / "report" / "report.html"
    opened = opened_seconds(page, times)
    return {
        "runs": settings * seeds,
        "command_seconds": {"median": median(walls), "all": walls},
        "command_cpu_seconds": {"median": median(spent), "all": spent},
        "opened_seconds": {"median": median(opened), "all": opened},
        "page_megabytes": page.stat().st_size / 1e6,
    }


def main() -> None:
    """Print the times as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="rounds of the copied run")
    parser.add_argument("--times", type=int, default=3, help="how often each time is measured")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train(run, asked.rounds)
        found = {
            "small": measure(run, Path(folder) / "small", 12, 3, asked.times),
            "large": measure(run, Path(folder) / "large", 500, 2, asked.times),
        }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
