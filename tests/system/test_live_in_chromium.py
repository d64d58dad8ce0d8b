"""The page of `report.live` in a browser: a real run, 2,000 nodes, hostile texts."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from tests.report.live_runs import row, write_history, write_nodes
from tests.runs import ROOT

pytestmark = pytest.mark.system
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
# The text of each visible element that has text of its own, its contrast, and what it says.
CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = rgb(getComputedStyle(at).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const text = rgb(element.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const pair = [light(text), light(behind(element))].sort((a, b) => b - a);
    found.push([(pair[0] + 0.05) / (pair[1] + 0.05), element.textContent.trim().slice(0, 40)]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def watching(folder):
    """Run the command; yield the page's address. Ctrl-C must end it with exit code 0, quietly."""
    command = [sys.executable, "-m", "edgewire.report.live", str(folder), "--no-browser"]
    process = subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        line = process.stdout.readline()
        address, name = line.split(" ", 1)
        assert address.startswith("http://127.0.0.1:"), process.stderr.read()
        assert name.startswith(f"shows {folder.name};")
        yield address
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
        assert (process.returncode, rest, errors) == (0, "", "")
    finally:
        process.kill()
        process.wait()


class Pages:
    """Opens pages and notes what they must not do."""

    def __init__(self, browser, address):
        self._browser, self._address = browser, address
        self.complaints = []

    @contextmanager
    def open(self, width=1400, scheme="light", wait="#figures dd"):
        page = self._browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, service_workers="block"
        )
        page.on("console", lambda said: self.complaints.append(said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.on("request", self._note)
        page.goto(self._address)
        page.wait_for_selector(wait)
        yield page
        page.close()

    def _note(self, request):
        if not request.url.startswith((self._address, "data:,")):
            self.complaints.append(request.url)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return the folder of a run with 2,000 nodes, some of which send hostile texts."""
    folder = tmp_path_factory.mktemp("live") / "<img src=x onerror=alert(1)>"
    write_history(folder, 25, staleness=3.0)
    write_nodes(folder, 2000, others=12)
    content = json.loads((folder / "nodes.json").read_text())
    bad = "<script>alert(2)</script>\u202e" + "wide" * 300
    content["nodes"][7] |= {"failures": 9, "reason": bad, "node": "'\"]<b>", "online": True}
    (folder / "nodes.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def pages(browser, made):
    with watching(made) as address:
        yield Pages(browser, address)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_fits_and_is_readable(pages, scheme, width):
    with pages.open(width, scheme, "#rows button") as page:
        page.locator("#rows button").nth(7).click()
        page.wait_for_selector("#detail:not([hidden])")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 100
        assert [found for found in contrasts if found[0] < 4.5] == []
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, background[4:-1].split(","))) < 200) == (scheme == "dark")
    assert pages.complaints == []


def test_hostile_texts_are_texts(pages):
    with pages.open(wait="#rows button") as page:
        assert page.locator("h1").inner_text() == "<img src=x onerror=alert(1)>"
        page.locator("#rows button").nth(7).click()
        assert "<script>alert(2)</script>" in page.locator("#detail-reason").inner_text()
        assert page.locator("script").count() == 1
        assert page.locator("img").count() == 0
        page.locator("#close").click()  # an id with quotes and brackets gets the focus back
        assert page.evaluate("document.activeElement.dataset.node") == "'\"]<b>"
    assert pages.complaints == []


def column(page, name):
    """Return the texts of a column's visible cells, in their order."""
    heads = [text.split(" ↓")[0].split(" ↑")[0] for text in page.locator("th").all_inner_texts()]
    rows = page.locator("#rows tr:not([aria-hidden])").all()
    return [row.locator("td").nth(heads.index(name)).inner_text() for row in rows]


def test_nodes_are_sorted_and_chosen_by_keyboard(pages):
    with pages.open(wait="#rows button") as page:
        page.locator("th[data-key=mean_lag] button").focus()
        page.keyboard.press("Enter")
        assert page.locator("th[data-key=mean_lag]").get_attribute("aria-sort") == "descending"
        assert set(column(page, "state")[:20]) == {"slow", "offline"}
        page.keyboard.press("Enter")
        assert page.locator("th[data-key=mean_lag]").get_attribute("aria-sort") == "ascending"
        assert "slow" not in column(page, "state")[:20]
        page.locator("th[data-key=failures] button").focus()
        page.keyboard.press("Space")
        assert column(page, "failures")[:2] == ["9", "1"]
        page.locator("[data-filter=offline]").focus()
        page.keyboard.press("Space")
        assert set(column(page, "state")) == {"offline"}
        page.locator("[data-filter=offline]").press("Space")
        page.locator("#search").fill("1999")
        assert column(page, "node") == ["1,999"]
        page.locator("#rows button").press("Enter")
        assert str(2**63 + 7919 * 1999) in page.locator("#detail-title").inner_text()
    assert pages.complaints == []


def test_two_thousand_nodes_stay_fluid(pages):
    with pages.open(wait="#rows button") as page:
        assert page.locator("#rows tr").count() < 60
        assert "2,000 of 2,000 nodes; 12 more" in page.locator("#shown").inner_text()
        page.locator("#scroll").evaluate("each => { each.scrollTop = each.scrollHeight; }")
        page.wait_for_selector("#rows button[aria-label='details of node 1,999']")
        bounds = page.evaluate(
            "() => { const began = performance.now();"
            "for (let at = 0; at < 10; at++) { takeNodes(); showNodes(); }"
            "return (performance.now() - began) / 10; }"
        )
        assert bounds < 200  # milliseconds; the page does it at most every two seconds
    assert pages.complaints == []


def test_curves_are_read_by_keyboard(pages):
    with pages.open() as page:
        page.wait_for_selector("figure path")
        chart = page.locator("figure").first
        chart.locator("svg").focus()
        page.keyboard.press("Home")
        assert "at update 0" in chart.locator(".at").inner_text()
        page.keyboard.press("ArrowRight")
        assert "at update 1" in chart.locator(".at").inner_text()
        page.locator("#axis").select_option("uplink")
        assert "B" in chart.locator(".at").inner_text()
    assert pages.complaints == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_files_that_change_are_followed(browser, tmp_path, asynchronous):
    """Rows are added, a resumed run removes rows, nodes appear, the folder vanishes."""
    more = {"staleness": 2.0} if asynchronous else {}
    folder = tmp_path / "run"
    folder.mkdir()
    with watching(folder) as address:
        pages = Pages(browser, address)
        with pages.open() as page:
            until(page, "#state", "waiting")
            write_history(folder, 12, **more)
            until(page, "#rounds", f"{'update' if asynchronous else 'round'} 11 of 40")
            write_history(folder, 5, **more)
            until(page, "#rounds", " 4 of 40")
            write_nodes(folder, 4)
            page.wait_for_selector("#rows button")
            (folder / "result.json").write_text(json.dumps({**row(40), "stopped": "no\nmore"}))
            until(page, "#state", "failed")
            assert page.locator("#reason").inner_text() == "no more"
            assert "unanswered" in column(page, "state")
            shutil.rmtree(folder)
            until(page, "#state", "removed")
            assert not page.locator("#lost").is_visible()
        assert pages.complaints == []


def until(page, where, text, seconds=15):
    """Wait until an element contains a text."""
    page.wait_for_function(
        "([where, text]) => document.querySelector(where).textContent.includes(text)",
        arg=[where, text],
        timeout=1000 * seconds,
    )


def test_the_page_says_that_its_command_has_ended(browser, tmp_path):
    write_history(tmp_path / "run", 5)
    with watching(tmp_path / "run") as address:
        page = browser.new_page()
        page.goto(address)
        until(page, "#state", "running")
        assert not page.locator("#lost").is_visible()
    page.wait_for_selector("#lost:not([hidden])", timeout=15000)
    page.close()


def test_a_real_run_is_watched(browser, tmp_path):
    """The page follows a run from before its first round to its end."""
    folder = tmp_path / "real"
    folder.mkdir()
    command = ["run.py", "algorithm=fedavg_f2i_both", "rounds=60", "engine.workers=1"]
    with watching(folder) as address:
        pages = Pages(browser, address)
        with pages.open() as page:
            until(page, "#state", "waiting")
            run = subprocess.Popen(
                [sys.executable, *command, f"hydra.run.dir={folder}"],
                cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            try:
                until(page, "#state", "running", 60)
                seen = set()
                while page.locator("#state").inner_text() == "running":
                    seen.add(page.locator("#rounds").inner_text())
                    time.sleep(0.2)
                until(page, "#state", "finished", 60)
                assert run.wait(60) == 0
            finally:
                run.kill()
                run.wait()
            assert len(seen) >= 3
            assert page.locator("#rounds").inner_text() == "round 60 of 60"
            result = json.loads((folder / "result.json").read_text())
            shown = page.locator("#figures").inner_text()
            assert f"{100 * result['accuracy']:.2f} %" in shown
            assert f"ratio {result['uplink_ratio']:.2f}" in shown
            assert page.locator("#overrides").inner_text().startswith("algorithm=fedavg_f2i_both")
        assert pages.complaints == []
