"""`python -m edgewire.report.live` tells a run's state over HTTP, to this machine only."""

import asyncio
import json
import os
import random
import shutil
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest

from edgewire.report.errors import ResultsError
from edgewire.report.live import server as live_server
from edgewire.report.live.__main__ import main
from edgewire.report.live.history import POINTS
from edgewire.report.live.nodes import LONGEST, SHOWN
from edgewire.report.live.run_watcher import FolderWatcher, RunWatcher, expect_run
from edgewire.report.live.server import app, listen, server
from tests.report.live_runs import ROUNDS, lines, node, row, write_history, write_nodes

RESULT = {
    **row(ROUNDS),
    "best_accuracy": 0.99,
    "diverged": False,
    "metrics": {"accuracy": {"name": "accuracy", "higher": True, "share": True}},
    "stopped": None,
    "ended": "finished",
}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


class Client:
    """Sends requests to the app of a run's page, without a server."""

    def __init__(self, folder):
        self._app = app(RunWatcher(folder))

    def request(self, method, path, **options):
        async def answer():
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
                return await http.request(method, path, **options)

        return asyncio.run(answer())

    def get(self, path, **options):
        return self.request("GET", path, **options)


@pytest.fixture
def client(folder):
    write_history(folder, 5)
    return Client(folder)


def write_result(folder, **more):
    (folder / "result.json").write_text(json.dumps({**RESULT, **more}))


def stage(folder):
    found = RunWatcher(folder).look()
    return found["state"], found["reason"] or ""


# HTTP


def test_the_page_is_whole_and_loads_nothing(client):
    found = client.get("/")
    assert found.status_code == 200
    assert found.headers["content-type"] == "text/html; charset=utf-8"
    assert "/* page." not in found.text
    for sign in ("http://", "https://", "@import", "url(", "innerHTML", "insertAdjacent", "eval("):
        assert sign not in found.text.replace("http://www.w3.org/2000/svg", ""), sign


@pytest.mark.parametrize("path", ["/", "/state", "/other"])
def test_every_response_forbids_what_the_page_does_not_need(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9", "localhost", "localhost:1"])
def test_a_loopback_name_is_answered(client, host):
    assert client.get("/state", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.org", "127.0.0.1.evil.org", "localhost.evil.org:80", "evil.org:127.0.0.1", ""),
        *("10.0.0.1", "0.0.0.0", "www.localhost", "LOCALHOST.evil", "[::1]", "127.0.0.1@evil.org"),
    ],
)
@pytest.mark.parametrize("path", ["/", "/state"])
def test_another_host_is_refused(client, host, path):
    found = client.get(path, headers={"host": host})
    assert found.status_code == 400
    assert "accuracy" not in found.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/state"])
def test_only_get_is_answered(client, method, path):
    assert client.request(method, path).status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/history.jsonl",
            "/result.json",
            "/page.js",
            "/state/",
            "/state/history.jsonl",
        ),
        *("/..%2fresult.json", "/%2e%2e/%2e%2e/etc/passwd", "/.hydra/config.yaml", "/docs"),
    ],
)
def test_no_file_is_served(client, folder, path):
    write_result(folder)
    found = client.get(path)
    assert found.status_code in (307, 404)
    assert "accuracy" not in found.text


@contextmanager
def serving(folder):
    """Run the server in a thread; yield its port."""
    with listen(0) as listening:
        made = server(RunWatcher(folder))
        thread = threading.Thread(target=made.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            made.should_exit = True
            thread.join()


def test_only_the_loopback_address_listens(folder):
    write_history(folder, 3)
    with serving(folder) as port:
        assert httpx.get(f"http://127.0.0.1:{port}/state").json()["round"] == 2
        with socket.socket() as other:
            other.settimeout(2)
            with pytest.raises(OSError, match=r"refused|unreach"):
                other.connect(("127.0.0.2", port))


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
def test_idle_and_slow_heads_keep_nobody_out(folder, head, monkeypatch):
    monkeypatch.setattr(live_server, "HEAD", 1.0)
    write_history(folder, 3)
    with serving(folder) as port, ExitStack() as stack:
        idle = []
        for _ in range(3 * live_server.MOST):
            made = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            made.sendall(head)
            idle.append(made)
        for _ in range(3):
            assert httpx.get(f"http://127.0.0.1:{port}/state", timeout=5).json()["round"] == 2
        for each in idle:  # the server ends them all
            with suppress(ConnectionError):
                assert each.recv(1) == b""


def test_unchanged_parts_are_not_sent_again(client, folder):
    write_nodes(folder, 3)
    first = client.get("/state").json()
    assert {"curves", "nodes"} <= set(first)
    again = client.get("/state", params=first["versions"]).json()
    assert not {"curves", "nodes"} & set(again)
    assert again["round"] == 4
    with (folder / "history.jsonl").open("a") as file:
        file.write(lines([row(5)]))
    third = client.get("/state", params=first["versions"]).json()
    assert "curves" in third
    assert "nodes" not in third
    write_nodes(folder, 4)
    assert (
        len(client.get("/state", params=third["versions"]).json()["nodes"]["columns"]["node"]) == 4
    )


# What the state says


def test_a_running_run(folder):
    write_history(folder, 25)
    found = RunWatcher(folder).look()
    assert (found["state"], found["round"], found["rounds"]) == ("running", 24, ROUNDS)
    assert found["metric"]["name"] == "accuracy"
    assert found["metric"]["share"]
    assert found["metric"]["value"] == found["metric"]["best"] == pytest.approx(row(24)["accuracy"])
    assert found["left"] == pytest.approx(16 * 0.4)
    assert found["speeds"] == pytest.approx({"rounds": 2.5, "updates": 25, "bytes": 407025})
    up = 24 * (70_000 + 960 + 460)
    assert found["uplink"]["bytes"] == up
    assert found["uplink"]["ratio"] == pytest.approx(24 * (389_520 + 960) / up)
    assert len(found["curves"]["metric"]) == 25
    assert len(found["curves"]["train_loss"]) == 24
    assert found["curves"]["density"][-1][1] == pytest.approx(0.01)
    assert "nodes" not in found or found["nodes"] is None


def test_bytes_of_indices_and_values_are_told_if_they_are_known(folder):
    write_history(folder, 3, uplink_index_bytes=10, uplink_value_bytes=20)
    found = RunWatcher(folder).look()
    assert (found["uplink"]["indices"], found["uplink"]["values"]) == (10, 20)
    assert found["downlink"]["indices"] is None


def test_a_finished_run(folder):
    write_history(folder, ROUNDS + 1)
    write_result(folder)
    found = RunWatcher(folder).look()
    assert (found["state"], found["reason"], found["left"]) == ("finished", None, None)
    assert found["metric"]["best"] == 0.99


@pytest.mark.parametrize(
    ("more", "state", "reason"),
    [
        ({"diverged": True}, "diverged", "the model has diverged"),
        ({"diverged": True, "stopped": "NaN\nin all"}, "diverged", "NaN in all"),
        ({"stopped": "interrupted"}, "interrupted", "the run was stopped"),
        ({"stopped": "no update could be used for 5 rounds"}, "failed", "no update could be used"),
    ],
)
def test_why_a_run_has_ended(folder, more, state, reason):
    write_history(folder, 9)
    write_result(folder, **more)
    found = stage(folder)
    assert found[0] == state
    assert reason in found[1]
    assert "\n" not in found[1]


def test_an_interrupted_run_tells_how_to_resume_it(folder):
    write_history(folder, 9)
    write_result(folder, stopped="interrupted")
    assert "resume" not in stage(folder)[1]
    (folder / "checkpoint").write_text("")
    assert f"python run.py resume={folder}" in stage(folder)[1]


def test_a_run_that_has_not_begun(folder):
    folder.mkdir()
    assert stage(folder) == ("waiting", "the run has written nothing yet")
    (folder / "superlink.json").write_text("{}")
    assert "submitted" in stage(folder)[1]
    (folder / "history.jsonl").write_text("")
    assert stage(folder)[0] == "waiting"


def test_a_job_of_a_sweep_that_has_failed(folder):
    write_history(folder, 2)
    (folder / "failed.json").write_text('{"code": 1, "line": "out of\\nmemory"}')
    assert stage(folder) == ("failed", "out of memory")
    (folder / "failed.json").write_text("[]")
    assert stage(folder)[0] == "running"


def test_a_run_without_news_may_be_dead(folder):
    write_history(folder, 9)
    os.utime(folder / "history.jsonl", (time.time() - 100,) * 2)
    assert stage(folder)[0] == "silent"
    write_nodes(folder, 2)  # news of another kind
    assert stage(folder)[0] == "running"


def test_slow_rounds_are_no_silence(folder):
    write_history(folder, 9)
    slow = [row(number, seconds=30.0 * number) for number in range(9)]
    (folder / "history.jsonl").write_text(lines(slow))
    os.utime(folder / "history.jsonl", (time.time() - 100,) * 2)
    assert stage(folder)[0] == "running"


# The history while it grows


def test_a_truncated_last_line_is_read_when_it_is_complete(folder):
    write_history(folder, 3)
    watcher, file = RunWatcher(folder), folder / "history.jsonl"
    text = lines([row(3)])
    with file.open("a") as history:
        history.write(text[:50])
    assert watcher.look()["round"] == 2
    with file.open("a") as history:
        history.write(text[50:])
    assert watcher.look()["round"] == 3


@pytest.mark.parametrize("grown", [False, True])
def test_a_resumed_run_begins_the_curves_anew(folder, grown):
    write_history(folder, 20)
    watcher = RunWatcher(folder)
    before = watcher.look()
    again = [row(n) if n < 10 else row(n, accuracy=0.5) for n in range(30 if grown else 12)]
    (folder / "history.jsonl").write_text(lines(again))
    after = watcher.look(**before["versions"])
    assert after["round"] == (29 if grown else 11)
    assert [axes[0] for axes, _ in after["curves"]["metric"]] == list(range(len(again)))
    assert after["curves"]["metric"][11][1] == 0.5


def test_the_folder_may_vanish_and_come_back(folder):
    write_history(folder, 20)
    watcher = RunWatcher(folder)
    watcher.look()
    shutil.rmtree(folder)
    assert watcher.look()["state"] == "removed"
    write_history(folder, 4)
    assert (watcher.look()["state"], watcher.look()["round"]) == ("running", 3)


def test_a_long_history_is_thinned_and_keeps_its_peaks(folder):
    folder.mkdir()
    rows = (row(n, 30000, accuracy=0.0 if n == 12345 else 0.5 + n / 1e5) for n in range(20000))
    (folder / "history.jsonl").write_text(lines(rows))
    watcher = RunWatcher(folder)
    points = watcher.look()["curves"]["metric"]
    assert 100 < len(points) <= POINTS
    rounds = [axes[0] for axes, _ in points]
    assert rounds == sorted(set(rounds))
    assert (rounds[0], rounds[-1]) == (0, 19999)
    assert [axes[0] for axes, value in points if value == 0] == [12345]


def test_rows_without_evaluation_keep_the_last_value(folder):
    folder.mkdir()
    rows = [row(n) if n % 3 == 0 else row(n, accuracy=None, loss=None) for n in range(11)]
    (folder / "history.jsonl").write_text(lines(rows))
    found = RunWatcher(folder).look()
    assert found["metric"]["value"] == row(9)["accuracy"]
    assert len(found["curves"]["metric"]) == 4


def metric_of(folder, row):
    folder.mkdir()
    (folder / "history.jsonl").write_text(lines([row, {**row, "round": 1}]))
    found = RunWatcher(folder).look()["metric"]
    return found["name"], found["higher"], found["share"], found["value"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"loss": -2.5, "mae": 1.5, "rmse": 2}, ("mae", False, False, 1.5)),
        ({"loss": 0.1, "auroc": 0.9}, ("auroc", True, True, 0.9)),
        ({"loss": -2.5}, ("loss", False, False, -2.5)),
        ({"loss": None, "accuracy": None}, ("accuracy", True, True, None)),
    ],
)
def test_the_main_metric_is_known_before_the_end(folder, names, expected):
    begin = {"round": 0, "rounds": 2}
    assert metric_of(folder, {**begin, **names, "train_loss": None, "lr": 0.1}) == expected


def test_old_rows_without_most_keys(folder):
    folder.mkdir()
    (folder / "history.jsonl").write_text('{"round": 1}\n{"round": 2, "uplink_bytes": 5}\n')
    found = RunWatcher(folder).look()
    assert (found["round"], found["uplink"]["bytes"], found["uplink"]["ratio"]) == (2, 5, None)
    assert found["left"] is None


ODD = [
    "[]", "null", "7", '"x"', "{", "{}", '{"round": "x"}', '{"round": null}', '{"round": true}',
    '{"round": 1e999}', '{"round": {}}', "\xff\xfe", "[" * 5000, '{"round": ' + "9" * 5000 + "}",
    '{"round": 3, "loss": NaN, "accuracy": "<b>", "seconds": [], "uplink_bytes": "x"}',
    '{"round": 4, "rounds": {}, "seconds": -1, "client_updates": null, "uplink_entries": Infinity}',
]  # fmt: skip


@pytest.mark.parametrize("name", ["history.jsonl", "result.json", "nodes.json", "failed.json"])
@pytest.mark.parametrize("text", ODD)
def test_an_odd_file_never_fails_a_request(folder, name, text):
    write_history(folder, 3)
    write_nodes(folder, 2)
    with (folder / name).open("w" if name != "history.jsonl" else "a", encoding="latin-1") as file:
        file.write(text + "\n")
    client = Client(folder)
    found = client.get("/state")
    assert found.status_code == 200
    assert found.json()["round"] in (2, 3, 4)


# Nodes


def nodes_of(folder):
    return RunWatcher(folder).look()["nodes"]


def test_nodes_are_columns_and_their_ids_are_exact(folder):
    write_history(folder, 3)
    write_nodes(folder, 30)
    found = nodes_of(folder)
    assert found["metric"] == "accuracy"
    assert found["columns"]["node"][1] == str(2**63 + 7919)
    assert {len(column) for column in found["columns"].values()} == {30}


def test_states_of_nodes(folder):
    """The usual lag is 1 s, the longest 3.5 s, and the run's time is 12.5 s."""
    write_history(folder, 3)
    dice = random.Random(0)
    quiet = {"online": True, "waiting": False, "mean_lag": 1.0}
    nodes = [node(n, dice, **quiet) for n in range(7)]
    nodes[1]["mean_lag"] = 3.5
    nodes[2].update(waiting=True, sent=12.0, heard=12.0)
    nodes[3].update(waiting=True, sent=5.0, heard=5.0)
    nodes[4].update(online=False, lag=99.0)
    nodes[5].update(lag=None, mean_lag=None)
    nodes[6].update(waiting=True, sent=1.0, heard=1.0)
    (folder / "nodes.json").write_text(json.dumps({"seconds": 12.5, "nodes": nodes}))
    states = nodes_of(folder)["columns"]["state"]
    assert states == ["ready", "slow", "waiting", "slow", "offline", "ready", "unanswered"]


def test_the_round_between_two_rows_comes_from_the_nodes(folder):
    """An asynchronous run writes a row only after many updates."""
    folder.mkdir()
    write_nodes(folder, 2, reached=7)
    found = RunWatcher(folder).look()
    assert (found["state"], found["round"]) == ("running", None)
    write_history(folder, 3)
    assert RunWatcher(folder).look()["round"] == 7
    write_result(folder)
    assert RunWatcher(folder).look()["round"] == ROUNDS


def test_a_single_node_is_not_slow(folder):
    write_history(folder, 3)
    (folder / "nodes.json").write_text(json.dumps({"nodes": [{"node": 1, "lag": 50.0}]}))
    assert nodes_of(folder)["columns"]["state"] == ["ready"]


def test_a_run_that_ended_before_its_rounds_is_not_finished(folder):
    write_history(folder, 9)
    write_result(folder, round=9)
    assert stage(folder) == ("ended early", f"the run ended at 9 of {ROUNDS}")


def test_nodes_beyond_the_limit_are_counted(folder):
    write_history(folder, 3)
    write_nodes(folder, SHOWN + 5, others=7)
    found = nodes_of(folder)
    assert len(found["columns"]["node"]) == SHOWN
    assert found["others"] == 12


def test_hostile_nodes_stay_text_of_one_line(folder):
    write_history(folder, 3)
    reason = "<script>alert(1)</script>\n\x00\ud800" + "x" * 9999
    odd = {
        "node": "<img src=x>",
        "reason": reason,
        "lag": "1",
        "online": "no",
        "labels": ["<b>", None, 3],
        "failures": True,
        "samples": 1e300,
        "accuracy": 0.5,
        "x" * 100: 1.0,
    }
    text = json.dumps({"seconds": [], "others": "x", "nodes": [odd, 7, None, {}]})
    (folder / "nodes.json").write_text(text)
    client = Client(folder)
    found = client.get("/state").json()["nodes"]
    columns = found["columns"]
    assert columns["node"] == ["<img src=x>", "?"]
    assert "\n" not in columns["reason"][0]
    assert len(columns["reason"][0]) == LONGEST
    assert (columns["lag"][0], columns["failures"][0], columns["samples"][0]) == (None,) * 3
    assert columns["labels"] == [[0, 0, 3], None]
    assert len(found["metric"]) <= 40


def test_a_damaged_nodes_file_keeps_the_last_nodes(folder):
    write_history(folder, 3)
    write_nodes(folder, 3)
    watcher = RunWatcher(folder)
    before = watcher.look()
    (folder / "nodes.json").write_text("{")
    assert len(watcher.look()["nodes"]["columns"]["node"]) == 3
    (folder / "nodes.json").unlink()
    after = watcher.look(**before["versions"])
    assert after["nodes"] is None


# Sweeps


def test_the_newest_running_job_of_a_sweep_is_shown(folder):
    watcher = FolderWatcher(folder)
    found = watcher.look()
    assert (found["state"], found["reason"]) == ("waiting", f"waiting for {folder}")
    write_history(folder / "9", ROUNDS + 1)
    write_result(folder / "9")
    write_history(folder / "10", 3)
    write_history(folder / "11", 3)
    write_result(folder / "11")
    found = watcher.look()
    assert (found["name"], found["state"]) == ("10", "running")
    assert "job 10 of the sweep run; others: 2 finished" in found["reason"]
    write_result(folder / "10")
    after = watcher.look(**found["versions"])
    assert (after["name"], "curves" in after, after["nodes"]) == ("11", True, None)
    again = watcher.look(**after["versions"])
    assert not {"curves", "nodes"} & set(again)


# The command


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda at: at.write_text(""), "no such folder"),
        (lambda at: [at.mkdir(), (at / "notes.txt").write_text("")], "is no run"),
    ],
)
def test_a_folder_that_is_no_run_is_one_line(folder, make, says, capsys):
    make(folder)
    assert main([str(folder)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert says in printed.err


def test_which_folders_are_runs(folder):
    folder.mkdir()
    assert expect_run(folder) == folder.resolve()  # it has not begun
    (folder / ".hydra").mkdir()
    assert expect_run(folder) == folder.resolve()


def test_a_port_that_is_taken_is_one_line(folder, capsys):
    write_history(folder, 3)
    with listen(0) as taken:
        port = taken.getsockname()[1]
        assert main([str(folder), "--port", str(port)]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert f"--port {port}" in printed.err


@pytest.mark.parametrize("text", ["-1", "65536", "x", "1.5", ""])
def test_a_wrong_port_is_refused(folder, text, capsys):
    write_history(folder, 3)
    with pytest.raises(SystemExit) as done:
        main([str(folder), "--port", text])
    assert done.value.code == 2
    assert "--port" in capsys.readouterr().err


def test_a_port_of_the_system_is_one_line():
    if os.geteuid() == 0:
        pytest.skip("root may use every port")
    with pytest.raises(ResultsError, match="--port 1:"):
        listen(1)
