"""`python run.py new NAME` writes a folder whose README's commands run at once."""

import re
import shlex
import sys

import pytest

from edgewire.command.new_task import TEMPLATE, new_task
from edgewire.conf.schema import ConfigError
from tests import fork_server
from tests.runs import ROOT, result_of


@pytest.mark.few(1)
@pytest.mark.parametrize("number", range(3))
def test_the_commands_of_the_readme_run(number, tmp_path, cli, monkeypatch):
    folder = tmp_path / "a folder's own"
    folder.mkdir()
    monkeypatch.chdir(folder)
    code, said = cli("new", "turbine")
    assert (code, said.err) == (0, "")
    made = folder / "turbine"
    assert said.out == f"{made} is written; {made}/README.md says how to run it\n"
    readme = (made / "README.md").read_text()
    (block,) = re.findall(r"^```\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    python, *words = shlex.split(block.splitlines()[number])
    assert (python, words[0]) == ("python", "run.py")
    done = fork_server.run(
        [sys.executable, *words, f"hydra.run.dir={tmp_path}/run", f"hydra.sweep.dir={tmp_path}"],
        cwd=ROOT, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    found = [result_of(file.parent) for file in tmp_path.rglob("result.json")]
    assert len(found) == (2 if "-m" in words else 1)
    assert {(each["dataset"], each["model"]) for each in found} == {("table", "net")}
    assert all(each["mae"] < 1 for each in found)


def test_the_folder_is_the_template_with_the_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new_task(["turbine"])
    written = {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*.*")}
    template = [
        str(p.relative_to(TEMPLATE)) for p in TEMPLATE.rglob("*.*") if "pycache" not in str(p)
    ]
    assert set(written) == {f"turbine/{name.replace('my_task', 'turbine')}" for name in template}
    assert "my_task" not in "".join(written.values())
    assert len(written["turbine/turbine.py"].splitlines()) <= 25
    assert len(written["turbine/conf/experiment/turbine.yaml"].splitlines()) <= 10


WRONG = {
    "no name": ([], "takes one name"),
    "a path": (["a/b"], "'a/b' is no name for a task"),
    "another alphabet": (["größe"], "is no name for a task"),
    "too long": (["a" * 101], "is no name for a task"),
    "a keyword": (["class"], "has a meaning in Python or EdgeWire"),
    "a test": (["test_x"], "has a meaning in Python or EdgeWire"),
    "of Python": (["os"], "has a meaning in Python or EdgeWire"),
    "installed": (["numpy"], "has a meaning in Python or EdgeWire"),
    "ours": (["edgewire"], "has a meaning in Python or EdgeWire"),
    "a folder of ours": (["client"], "has a meaning in Python or EdgeWire"),
    "an experiment of ours": (["f2i"], "has a meaning in Python or EdgeWire"),
    "a folder": (["there"], "there is there already: choose another name"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_name_is_one_line_and_writes_nothing(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("")
    words, line = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        new_task(words)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "there"]
