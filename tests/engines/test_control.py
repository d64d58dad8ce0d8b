"""What an app's bundle holds; a run is followed, and its warnings are repeated here."""

import io
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgewire.engines import control
from edgewire.engines.control import bundle, follow, repeat_warnings
from edgewire.machine.errors import UsageError
from tests.simulation.any_app.apps import write

ROOT = Path(__file__).parents[2]


def files_of(fab):
    with zipfile.ZipFile(io.BytesIO(fab.content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_bundle_leaves_out_what_is_only_for_papers():
    made = bundle(ROOT, {})
    assert not [n for n in files_of(made) if n.startswith(("papers/", "conf/experiment/"))]


INCLUDED = 'fab-include = ["server.py", "client.py"]'


@pytest.mark.parametrize("included", ["", INCLUDED])
def test_a_bundle_holds_further_sources_in_place_of_a_folder_of_their_name(included, tmp_path):
    files = {
        "server.py": "",
        "client.py": "",
        "mine/old.py": "",
        "x.py": "",
        ".gitignore": "mine/\n",
    }
    app = write(tmp_path / "app", files, included=included)
    sources = {"mine/__init__.py": "1", "mine/parts/a.py": "2", "one.py": "3"}
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    made = bundle(app, {}, {name: tmp_path / name for name in sources})
    found = files_of(made)
    assert {name: found[name].decode() for name in sources} == sources
    assert "mine/old.py" not in found
    assert ("x.py" in found) == (not included)
    assert {"server.py", "client.py", "pyproject.toml"} <= found.keys()


@pytest.mark.parametrize("included", ["", INCLUDED])
@pytest.mark.parametrize("name", ["lib/__init__.py", "build/__init__.py", "test_one.py", "one.so"])
def test_sources_that_flower_leaves_out_are_one_line(name, included, tmp_path):
    files = {"server.py": "", "client.py": ""}
    app = write(tmp_path / "app", files, included=included)
    (tmp_path / "source").write_text("")
    with pytest.raises(UsageError, match=f"Flower leaves {name} out of an app"):
        bundle(app, {}, {name: tmp_path / "source"})


class Pending:
    """A fake SuperLink that starts a run after `polls` polls, each with the status `waits`."""

    def __init__(self, polls, waits):
        self._states = [waits] * polls + ["running", "running", "finished"]

    def ListRuns(self, request):
        status = SimpleNamespace(status=self._states.pop(0))
        return SimpleNamespace(run_dict={request.run_id: SimpleNamespace(status=status)})

    def StreamLogs(self, request):
        return []


@pytest.mark.parametrize(("minutes", "lines"), [(0, 0), (1, 0), (5, 1)])
@pytest.mark.parametrize("waits", ["pending", "starting"])
def test_a_run_that_waits_to_start_is_reported(
    waits, minutes, lines, tmp_path, caplog, monkeypatch
):
    clock = iter(range(0, 10**6, 60))
    time = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None)
    monkeypatch.setattr(control, "time", time)
    assert follow(Pending(minutes, waits), 7, tmp_path / "log").status == "finished"
    assert len(caplog.messages) == lines
    said = {"pending": "has not started the run for 30 s", "starting": "its machine is slow"}
    assert all(said[waits] in line for line in caplog.messages)


def test_a_warning_of_the_app_is_logged_here_once(tmp_path, caplog):
    log = tmp_path / "log"
    mark = "WARNING:edgewire:"
    gone = "node 7 has left: the run continues with 1"
    log.write_text(f"starting\nINFO:edgewire:x\n{mark}{gone}\n{mark}node 8 left ")
    start = repeat_warnings(log)
    assert repeat_warnings(log, start) == start
    assert caplog.messages == [gone]
    with log.open("a") as more:
        more.write("out: NaN\n")
    repeat_warnings(log, start)
    assert caplog.messages[1:] == ["node 8 left out: NaN"]
