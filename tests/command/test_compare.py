"""`python run.py compare`: the table of methods, its picture, and what follows."""

import re

import pytest

from edgewire.command import compare as command
from edgewire.command.compare import compare
from edgewire.command.main import COMPARE, cli

QUICK = ["rounds=2", "nodes=3", "engine.workers=1", "seed=0,1"]


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = compare(list(words))
        return code, capsys.readouterr().out

    return run


def test_the_methods_of_the_default_are_compared(printed, tmp_path):
    code, text = printed(*QUICK)
    assert code == 0
    rows = {line.split()[0]: line for line in text.splitlines() if "±" in line and "%" in line}
    assert [name for name in rows if name in command.METHODS] == list(command.METHODS)
    ups = [re.search(r"([\d.]+) (kB|MB)", line) for line in rows.values()]
    sizes = [float(up[1]) * {"kB": 1, "MB": 1000}[up[2]] for up in ups if up]
    assert sizes == sorted(sizes, reverse=True)
    picture = re.search(r"picture  (\S+)", text)[1]
    assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert f"python -m edgewire.report {picture.rpartition('/')[0]}" in text


def test_other_methods_another_link_and_a_metric_of_which_less_is_better(printed):
    code, text = printed(*QUICK, "task=sensor_table", "algorithm=fedavg_topk", "network=adsl")
    assert code == 0
    assert "Virtual time: over network=adsl." in text
    assert "lora" not in text
    assert "mae" in text
    assert "fedavg_topk" in text
    assert "edgewire (few bytes)" not in text
    assert re.search(r"fedavg_topk +\S.* [+-][\d.]+", text)


def test_a_method_that_fails_is_named_and_the_others_are_shown(printed):
    code, text = printed(*QUICK, "algorithm=esgd", "local_steps=2")
    assert code == 1
    assert "local_steps goes with strategy.update=delta" in text
    assert re.search(r"fedavg \(uncompressed\) +\d", text)


@pytest.mark.parametrize("words", [["rounds=x"], ["--hlp"], ["task=none"]])
def test_a_mistake_is_one_line(words, printed, tmp_path):
    code, text = printed(*words)
    assert (code, text.count("error: ")) == (2, 1)
    assert not list(tmp_path.rglob("comparison.png"))


def test_it_is_a_word_of_the_command_line(monkeypatch):
    given = []
    monkeypatch.setattr(command, "compare", lambda words: given.append(words) or 3)
    monkeypatch.setattr("sys.argv", ["run.py", COMPARE, "task=keywords"])
    with pytest.raises(SystemExit) as ended:
        cli()
    assert (ended.value.code, given) == (3, [["task=keywords"]])
