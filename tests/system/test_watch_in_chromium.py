"""`report RUN --watch` in a browser: a real run from before its first round to its end."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.deploy.processes import eventually
from tests.runs import ROOT

pytestmark = pytest.mark.system
STATUS = "[role=status]"


@contextmanager
def watching(folder):
    """Run the command; yield the page's address. Ctrl-C must end it with exit code 0, quietly."""
    command = [sys.executable, "-m", "edgewire.report", str(folder), "--watch"]
    process = subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        line = process.stdout.readline()
        address, name = line.split(" ", 1)
        assert address.startswith("http://127.0.0.1:"), process.stderr.read()
        assert name.endswith(f"{folder.name}; Ctrl-C ends the page, not the run\n")
        yield address
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
        assert (process.returncode, rest, errors) == (0, "", "")
    finally:
        process.kill()
        process.wait()


def until(page, text, seconds=60):
    """Wait until the first lines of the page contain a text; the page loads itself again."""
    page.wait_for_selector(f"{STATUS}:has-text('{text}')", timeout=1000 * seconds)


def test_a_real_run_is_watched(browser, tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    command = ["run.py", "algorithm=fedavg_f2i_both", "rounds=100", "engine.workers=1"]
    complaints = []
    with watching(folder) as address:
        page = browser.new_page(service_workers="block")
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda sent: complaints.append(sent.url) if sent.url != address
                and not sent.url.startswith("data:") else None)  # fmt: skip
        page.goto(address)
        until(page, "waiting: ")
        run = subprocess.Popen(
            [sys.executable, *command, f"hydra.run.dir='{folder}'"],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            history = folder / "history.jsonl"
            eventually(lambda: history.exists() and history.read_bytes().count(b"\n") > 1)
            run.send_signal(signal.SIGSTOP)  # the page is made every ten seconds, the run is faster
            until(page, "running, round ", seconds=180)
            run.send_signal(signal.SIGCONT)
            assert run.wait(300) == 0  # a slow machine's run takes longer than a page may
            until(page, "finished, round 100 of 100", seconds=180)
        finally:
            run.kill()
            run.wait()
        assert page.locator("#table-runs tbody tr").count() == 1
        assert page.locator("img").count() == 0
        page.close()
    assert complaints == []
