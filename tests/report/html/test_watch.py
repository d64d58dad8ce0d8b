"""`report FOLDER --watch` serves the report of runs that go on, to this machine only."""

import json
import os
import shutil
import socket
import threading
import time
from collections import defaultdict
from contextlib import ExitStack

import pytest

from edgewire.report.__main__ import main
from edgewire.report.html import html_report, watch
from edgewire.report.html.watch import PageHandler, PageServer, WatchedReport
from edgewire.report.reader import ResultsError
from tests.report.made_runs import ROUNDS, node, row, write_history, write_nodes


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def write_run(folder, count, **more):
    """Write a run that has `count` rows so far."""
    write_history(folder, count, **more)
    (folder / ".hydra").mkdir(exist_ok=True)
    (folder / ".hydra" / "overrides.yaml").write_text('["seed=0"]')


def write_result(folder, **more):
    (folder / "result.json").write_text(json.dumps({**row(ROUNDS), "stopped": None, **more}))


# HTTP


class Ready:
    """A report whose page is made."""

    lock = threading.Lock()

    def shown(self):
        return b"the page", 5.0


@pytest.fixture(scope="module")
def port():
    """Run the server in a thread; yield its port."""
    with PageServer(Ready(), 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def asked(port, first="GET / HTTP/1.1", *fields):
    """Return the status and the whole response to a request."""
    head = "\r\n".join([first, *(fields or ("Host: 127.0.0.1",)), "", ""])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as made:
        made.sendall(head.encode())
        found = b"".join(iter(lambda: made.recv(10_000), b"")).decode()
    return int(found.split()[1]), found


@pytest.mark.parametrize("first", ["GET / HTTP/1.1", "GET /other HTTP/1.1", "PUT / HTTP/1.1"])
def test_every_response_forbids_what_the_page_does_not_need(port, first):
    head, _, page = asked(port, first)[1].partition("\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.lower().split("\r\n")[1:])
    policy = fields["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "connect-src" not in policy
    assert fields["x-content-type-options"] == "nosniff"
    assert fields["cache-control"] == "no-store"
    assert not {"access-control-allow-origin", "server"} & set(fields)
    assert int(fields["content-length"]) == len(page)
    assert fields.get("refresh") == ("6" if page else None)


@pytest.mark.parametrize(
    ("asking", "status"),
    [
        *((["GET /?a HTTP/1.1", f"Host: {host}"], 200)
          for host in ("127.0.0.1", "127.0.0.1:9", "localhost", "localhost:1")),
        *((["GET / HTTP/1.1", f"Host: {host}"], 400) for host in (
            "evil.org", "127.0.0.1.evil.org", "localhost.evil.org:80", "", "evil.org:127.0.0.1",
            "10.0.0.1", "0.0.0.0", "[::1]", "127.0.0.1@evil.org", "127.0.0.1\r\nhost: evil.org")),
        (["GET / HTTP/1.1", "Accept: *"], 400),  # without a host
        *(([f"{method} / HTTP/1.1"], 501) for method in ("POST", "HEAD", "OPTIONS", "get")),
        *(([f"GET {path} HTTP/1.1"], 404)
          for path in ("/history.jsonl", "/report.html", "/..%2fresult.json", "http://127.0.0.1/")),
        (["GET / HTTP/1.1", f"X: {'x' * 100_000}"], 431),
    ],
)  # fmt: skip
def test_only_get_of_the_page_by_a_name_of_this_machine_is_answered(port, asking, status):
    found, text = asked(port, *asking)
    assert (found, "the page" in text) == (status, status == 200)


def test_only_the_loopback_address_listens(port):
    with socket.socket() as other:
        other.settimeout(2)
        with pytest.raises(OSError, match=r"refused|unreach"):
            other.connect(("127.0.0.2", port))


def test_idle_connections_keep_nobody_out_and_are_ended(port, monkeypatch, capsys):
    monkeypatch.setattr(PageHandler, "timeout", 0.5)
    with ExitStack() as stack:
        idle = []
        for head in (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ") * 50:
            made = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            made.sendall(head)
            idle.append(made)
        assert asked(port)[0] == 200
        for each in idle:
            assert each.recv(1) == b""
    assert capsys.readouterr().err == ""


# The page


@pytest.fixture
def page(folder, monkeypatch):
    """Return a function that makes the page of `folder` anew: its status and the page."""
    monkeypatch.setattr(html_report, "draw_all", lambda *_: defaultdict(list))
    monkeypatch.setattr(watch, "EVERY", 0.0)
    monkeypatch.setattr(watch, "COST", 0.0)
    report = WatchedReport([folder])

    def made():
        text = report.shown()[0].decode()
        status = text.partition('<div role="status">')[2].partition("</div>")[0]
        return status.replace("<p>", "").split("</p>")[:-1], text

    made.report = report
    return made


def test_a_run_is_followed_from_before_its_begin_to_its_end(page, folder):
    status, _ = page()
    assert status == [f"waiting: {folder}: no such folder"]
    assert page.report.shown()[1] is not None
    folder.mkdir()
    assert page()[0][0].startswith(f"waiting: no run in {folder}: name the folder")
    write_history(folder, 2)
    assert [line.split(",")[0] for line in page()[0]] == [
        "running", "no report: without .hydra/overrides.yaml the settings are unknown"
    ]  # fmt: skip
    write_run(folder, 25)
    status, text = page()
    assert status == [
        "running, round 24 of 40, accuracy 92.67 %, up 1.68 MB, down 2.16 MB, about 6 s left"
    ]
    assert '<section id="runs">' in text
    assert page.report.shown()[1] is not None
    write_result(folder)
    assert page()[0] == ["finished, round 24 of 40, accuracy 92.67 %, up 1.68 MB, down 2.16 MB"]
    assert page.report.shown()[1] is None
    shutil.rmtree(folder)
    assert page()[0] == [f"waiting: {folder}: no such folder"]


def test_a_page_is_made_when_it_is_asked_for_and_not_too_often(folder, monkeypatch):
    made = []

    def written(tops, out, title):
        made.append(out)
        raise ResultsError("no <run>")

    monkeypatch.setattr(watch, "write_report", written)
    report, begun = WatchedReport([folder], "A <title>"), time.monotonic()
    assert b"<title>A &lt;title&gt;</title>" in report.shown()[0]
    assert b"<p>waiting: no &lt;run&gt;</p>" in report.shown()[0]
    assert watch.EVERY - 5 < report.shown()[1] <= watch.EVERY
    assert len(made) == 1
    monkeypatch.setattr(watch, "COST", 1e9)
    monkeypatch.setattr(watch.time, "monotonic", lambda: begun + watch.EVERY + 5)
    assert report.shown()[1] > watch.EVERY  # a page that took long is kept longer
    assert len(made) == 2
    assert not any(out.exists() for out in made)


def test_jobs_of_a_sweep_are_counted_and_those_that_run_have_a_line(page, folder):
    write_run(folder / "9", ROUNDS + 1)
    write_result(folder / "9")
    write_run(folder / "10", 3, accuracy=None)
    (folder / "11" / ".hydra").mkdir(parents=True)
    (folder / "11" / ".hydra" / "overrides.yaml").write_text("[]")
    status, _ = page()
    assert sorted(status[0].split(", ")) == ["1 finished", "1 running", "1 starting"]
    assert [line.split(",")[:3] for line in status[1:]] == [
        ["10 running", " round 2 of 40", " loss 1.983"]
    ]
    for name in ("10", "11"):
        write_result(folder / name)
    assert page()[0] == ["3 finished"]
    assert page.report.shown()[1] is not None  # there may be more jobs


def test_a_run_without_news_is_marked(page, folder):
    write_run(folder, 9)
    old = (time.time() - 100,) * 2
    os.utime(folder / "history.jsonl", old)
    assert "nothing was written for 1 min" in page()[0][0]
    write_nodes(folder, [node(0), node(1)])  # news of another kind
    assert "nothing was written" not in page()[0][0]


def test_hostile_names_and_files_are_text(page, folder, tmp_path):
    write_run(folder / "<img src=x>\n", 3)
    write_run(folder / "2", 3)
    (folder / "2" / "nodes.json").symlink_to(tmp_path / "elsewhere")
    status, text = page()
    assert "<img" not in text
    assert status[1].startswith("2 running")
    assert status[2].startswith("&lt;img src=x&gt; running")
    assert status[3].startswith("left out: ")


# The command


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--watch", "--out", "x"], "--watch writes no files"),
        (["--port", "1"], "needs --watch"),
    ],
)
def test_wrong_options_are_refused(folder, words, says, capsys):
    write_run(folder, 3)
    with pytest.raises(SystemExit) as done:
        main([str(folder), *words])
    assert done.value.code == 2
    assert says in capsys.readouterr().err


def test_a_file_and_a_port_that_is_taken_are_one_line(folder, capsys):
    folder.write_text("")
    assert main([str(folder), "--watch"]) == 2
    assert capsys.readouterr().err == f"error: {folder}: no such folder\n"
    with PageServer(Ready(), 0) as taken:
        port = str(taken.server_address[1])
        assert main([str(folder.parent), "--watch", "--port", port]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: --port {port}: ")
    assert printed.count("\n") == 1
    assert main([str(folder.parent), "--watch", "--port", "65536"]) == 2
    assert capsys.readouterr().err.startswith("error: --port 65536: ")
