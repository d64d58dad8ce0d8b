"""`python run.py compare`: its words, the rates of its methods, the table, and what follows."""

import re
import sys

import pytest

from edgewire.command import compare as command
from edgewire.command.compare import Comparison, compare
from edgewire.command.exit import Failed, Stopped, clear_errors
from edgewire.command.main import cli
from edgewire.command.new_task import new_task
from edgewire.command.search import search

QUICK = ["rounds=2", "nodes=3", "engine.workers=1", "seed=0,1"]


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = 0
        try:
            with clear_errors():
                code = compare(list(words), search)
        except Failed as failed:
            code = failed.code
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a task of the user's own, and return the words that choose it."""
    monkeypatch.chdir(tmp_path)
    name = f"compared_{tmp_path.name.replace('-', '_')}"
    new_task([name])
    yield ["--config-dir", f"{name}/conf", f"experiment={name}"]
    sys.modules.pop(name, None)


def test_the_methods_of_the_default_are_compared(printed, tmp_path):
    code, text = printed(*QUICK)
    assert code == 0
    lines = text.splitlines()
    assert "digits" in lines[0]
    assert lines[0].endswith("2 rounds · 6 runs of 3 methods")
    assert [line.split()[1] for line in lines if " is done: " in line] == list("123456")
    names = [f"{shown} ({name})" for name, shown in command.NAMES.items()]
    rows = {name: line for name in names for line in lines if line.startswith(name)}
    ups = [re.search(r"([\d.]+) (kB|MB)", line) for line in rows.values()]
    sizes = [float(up[1]) * {"kB": 1, "MB": 1000}[up[2]] for up in ups]
    assert sizes == sorted(sizes, reverse=True)
    assert all(": " in rows[name] for name in names[1:])  # a verdict in words
    assert "no update failed" in text
    unclear = any(row.partition(": ")[2].startswith("unclear") for row in rows.values())
    assert any(line.startswith("unclear ") for line in lines) == unclear
    more = "python run.py compare rounds=2 nodes=3 engine.workers=1 seed=0,1,2,3,4,5,6,7,8,9"
    assert (more in text) == unclear
    assert command.OWN_DATA in text
    assert lines[-1].strip().startswith(more.replace("seed=0,1,2,3,4,5,6,7,8,9", "goal=within:1"))
    folder = re.search(r"python -m edgewire.report (\S+)", text)[1]
    assert len(list((tmp_path / folder).glob("*/result.json"))) == 6
    others = [len(line) for line in lines if line not in rows.values()]
    assert max(others) <= command.WIDTH
    assert all(row.rstrip().endswith(" J") for row in rows.values())


@pytest.mark.system
def test_other_methods_another_link_and_a_metric_of_which_less_is_better(printed):
    code, text = printed(
        *QUICK, "task=sensor_table", "dataset.samples=200", "algorithm=fedavg_topk", "network=10/1"
    )
    assert code == 0
    assert "over 10/1" in text
    assert "lora" not in text
    assert re.search(r"fedavg_topk .*mae|mae", text)
    assert "few bytes" not in text.partition("next")[0]
    assert re.search(r"fedavg_topk +\S.* [+-][\d.]+ ± \S+: ", text)


@pytest.mark.system
def test_a_method_that_fails_is_named_and_the_others_are_shown(printed):
    code, text = printed(*QUICK, "algorithm=esgd", "local_steps=2")
    assert code == 1
    assert text.count("esgd: local_steps goes with strategy.update=delta") == 1
    assert re.search(r"uncompressed \(fedavg\) +\d", text)


@pytest.mark.few(7)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rounds=x"], "could not be converted"),
        (["--hlp"], "unrecognized arguments: --hlp"),
        (["task=none"], "there is no task=none"),
        (["algorithm=none"], "there is no algorithm=none"),
        (["experiment=none", "--config-dir", "."], "there is no experiment=none"),
        (["word"], "cannot read 'word'"),
        (["start=outputs/a"], "compare takes no start=: it trains new models"),
        (["nodes=2,3"], "nodes=2,3 has several values"),
        (["seed=a"], "seed=a: give numbers"),
        (["minutes=3"], "minutes= goes with goal="),
        (["goal=accuracy"], "goal= takes METRIC:VALUE"),
        (["goal=accuracy:high", "network=lora"], "goal= takes METRIC:VALUE"),
        (["goal=accuracy:0.9"], "takes network=lora"),
        (["goal=acuracy:0.9", "network=lora"], "no metric acuracy; it has accuracy"),
        (["goal=accuracy:95", "network=lora"], "share from 0 to 1, as in accuracy:0.95"),
        (["goal=loss:0.3", "network=lora"], "no metric loss"),
        (["goal=mae:0.3", "network=lora"], "no metric mae"),
        (["goal=accuracy:0.9", "network=lora", "minutes=0"], "minutes= a number"),
        (["goal=within:0"], "points above 0"),
        (["goal=within:1", "minutes=3"], "and bytes=up; no minutes="),
        (["goal=within:1", "bytes=down"], "and bytes=up; no minutes="),
        (["goal=within:1", "engine=superlink"], "leave engine= out"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(words, said, printed, tmp_path):
    code, text = printed(*words)
    assert (code, text.count("\n"), text[:7]) == (2, 1, "error: ")
    assert said in text
    assert not list(tmp_path.iterdir())


def test_runs_that_all_fail_are_one_error(printed):
    code, text = printed(*QUICK, "network=0/3", "seed=0")
    assert code == 2
    assert text.splitlines()[-1].startswith("error: network.down_mbps must be a number above 0")


def test_a_stop_is_one_line_with_commands_for_a_shell(printed, monkeypatch, capsys):
    def stopped(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("edgewire.command.job.run", stopped)
    with pytest.raises(Stopped):
        printed(*QUICK)
    text = capsys.readouterr().err
    assert re.fullmatch(
        r"stopped: `python run.py continue=(/\S+)` continues the sweep, "
        r"`python -m edgewire.report \1` then compares its runs\n", text
    )  # fmt: skip


def test_a_saved_configuration_is_no_task(printed, tmp_path):
    (tmp_path / "config.yaml").write_text("rounds: 2\nalgorithm: fedavg\n")
    code, text = printed("--config-path", str(tmp_path))
    assert (code, "no task" in text or "saved configuration" in text) == (2, True)


@pytest.mark.system
def test_an_own_task_gets_the_rates_that_are_searched_for_it(printed, own, tmp_path):
    quick = ["seed=0", "nodes=2", "dataset.samples=100", "engine.workers=1", "rounds=1"]
    code, text = printed(*own, *quick, "algorithm=edgewire")
    assert code == 0
    assert "first 4 short runs search" in text
    rates = tmp_path.glob("multirun/*/*/*/result.json")
    assert len(list(rates)) == 4 + 2  # the few bytes have a rule
    again = " ".join(["python run.py compare", *own, *quick[1:]])
    more, goal = map(str.strip, text.splitlines()[-2:])
    assert more.startswith(f"{again} algorithm=edgewire seed=0,1,2,3,4,5,6,7,8,9")
    assert goal.startswith(f"{again} goal=within:1")
    assert command.OWN_DATA not in text


def test_a_method_keeps_its_own_rate_on_an_own_task(own):
    asked = Comparison(own)
    assert not asked.is_known
    assert asked.base.rounds == 5
    rates = {each.name: each.lr for each in asked.methods(["edgewire", "sparseloco", "stc"])}
    assert rates == {"fedavg": "0.01", "edgewire": "0.005", "sparseloco": "0.0004", "stc": "0.01"}
    tried = [each.lr for each in asked.at_rates(asked.methods([])[0])]
    assert tried == ["0.01", "0.003", "0.03"]
    given = Comparison([*own, "lr=0.2"])
    assert given.with_best_rates(given.methods([])) == given.methods([])
    assert {each.lr for each in given.methods(["edgewire"])} == {"0.2"}


def test_a_task_of_ours_has_its_rates_unless_its_data_are_files():
    assert Comparison([]).is_known
    assert Comparison(["task=sensor_table"]).is_known
    assert not Comparison(["dataset=csv", "dataset.root=x.csv"]).is_known


@pytest.mark.parametrize("more", [[], ["dataset.columns=survey", "nodes=2"]])
def test_an_own_table_is_read_before_the_first_run(more, tmp_path):
    rows = [f"{number % 40},{'yes' if number % 3 else 'no'}" for number in range(90)]
    (tmp_path / "own.csv").write_text("\n".join(["age,churn", *rows]))
    words = ["task=table", f"dataset.root={tmp_path}/own.csv", "dataset.target=churn"]
    title = Comparison([*words, *more]).title
    assert title.startswith("own.csv (")
    assert "2 classes) · table_mlp" in title


def test_an_asynchronous_method_has_as_many_replies_as_the_others_have():
    asked = Comparison(["rounds=7", "nodes=4"])
    method = asked.methods(["fedbuff"])[1]
    assert {"strategy.pushes=28", "eval_every=4"} <= {*asked.overrides(method)}


@pytest.mark.parametrize("words", [["network=10/1"], ["network=lora"], ["network.up_mbps=1"], []])
def test_the_words_of_a_link(words):
    asked = Comparison(words)
    network = asked.base.network
    if "10/1" in asked.link:
        assert (network.down_mbps, network.up_mbps) == (10, 1)
    assert bool(asked.link) == bool(words)


def test_it_is_a_word_of_the_command_line(monkeypatch):
    given = []
    monkeypatch.setattr(command, "compare", lambda words, search: given.append(words) or 3)
    monkeypatch.setattr("sys.argv", ["run.py", "compare", "task=keywords"])
    with pytest.raises(SystemExit) as ended:
        cli()
    assert (ended.value.code, given) == (3, [["task=keywords"]])
