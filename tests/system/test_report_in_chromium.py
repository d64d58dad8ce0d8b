"""The report in a real browser: nothing is loaded, everything fits and has keys."""

import pytest

from edgewire.report.html.html_report import write_report
from tests.report.made_runs import add_run, node, write_nodes

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Return the page of a report of three groups, with nodes and a run that has diverged."""
    folder = tmp_path_factory.mktemp("sweep")
    for name, up in (("all", 10_000), ("good", 1000), ("worse", 100)):
        for seed in range(3):
            run = folder / f"{name}{seed}"
            ends = (0.1, 0.5, 0.8 + up / 1e5 + seed / 100)
            add_run(run, f"algorithm={name} lr=0.{up} seed={seed}", ends, up=up, down=up,
                    result={"link_seconds": 3.5, "link_up_mbps": 2.0, "link_down_mbps": 10.0,
                            "diverged": name == "worse" and not seed},
                    config=f"very: {{long: {{key: {'x' * 90}{name}}}}}")  # fmt: skip
            write_nodes(run, [node(at, mean_lag=1.0 + 5 * (at == 3), failures=int(at == 4),
                                   reason="time-out " * 12) for at in range(8)])  # fmt: skip
    write_report([folder], folder / "report", f"A title that is long: {'w' * 90}")
    return folder / "report" / "report.html"


@pytest.fixture
def opened(browser, report):
    """Return a function that opens the report; at the end the browser must have no complaint."""
    complaints, requests, pages = [], [], []

    def open_at(width=1400):
        page = browser.new_page(viewport={"width": width, "height": 900})
        pages.append(page)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(report.as_uri())
        page.add_style_tag(content="section { content-visibility: visible !important; }")
        return page

    yield open_at
    for page in pages:
        page.close()
    assert complaints == []
    assert {url for url in requests if not url.startswith("data:")} == {report.as_uri()}


@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_is_not_wider_than_the_window(opened, width):
    page = opened(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.body.scrollWidth") <= width
    narrow = page.evaluate("Math.min(...[...document.querySelectorAll('figure > svg')]"
                           ".map((svg) => svg.getBoundingClientRect().width))")  # fmt: skip
    assert narrow > 300
    assert page.locator("figure > svg:not([aria-label])").count() == 0


def texts(page, table, column):
    return page.eval_on_selector_all(
        f"#table-{table} tbody tr:not([hidden]) td:nth-child({column})",
        "cells => cells.map((cell) => cell.textContent.trim())",
    )


def test_keys_sort_a_table(opened):
    page = opened()
    heads = page.eval_on_selector_all(
        "#table-summary th", "heads => heads.map((head) => head.textContent.trim())"
    )
    column = heads.index("sent up") + 1
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").strip() == "sent up":
            break
    focused = page.evaluate(
        "(() => { const style = getComputedStyle(document.activeElement);"
        " return [style.outlineStyle, parseFloat(style.outlineWidth)]; })()"
    )
    assert focused[0] != "none"
    assert focused[1] >= 2
    page.keyboard.press("Enter")
    assert texts(page, "summary", column) == ["2 kB", "20 kB", "200 kB"]
    page.keyboard.press("Enter")
    assert texts(page, "summary", column) == ["200 kB", "20 kB", "2 kB"]
    sorted_by = page.locator("#table-summary th[aria-sort=descending]")
    assert sorted_by.inner_text().strip().startswith("sent up")


def test_the_filter_leaves_matching_rows(opened):
    page = opened()
    assert len(texts(page, "runs", 1)) == 9
    page.fill("#table-runs input", "WORSE diverged")
    assert len(texts(page, "runs", 1)) == 1
    assert page.inner_text("#table-runs .count") == "1 of 9 rows"


def test_heads_stay_visible_and_wide_tables_scroll(opened):
    page = opened(400)
    box = page.locator("#table-runs .scroll")
    box.scroll_into_view_if_needed()
    box.evaluate("box => { box.scrollTop = 200; box.scrollLeft = 300; }")
    assert box.evaluate("box => box.scrollLeft") == 300
    top = box.evaluate("box => box.getBoundingClientRect().top")
    head = page.locator("#table-runs th").first.evaluate("th => th.getBoundingClientRect().top")
    assert abs(head - top) <= 2
