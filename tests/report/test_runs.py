"""Runs are read from their folders; damaged files are named."""

import json

import pytest

from edgewire.report.reader import ResultsError
from edgewire.report.runs import GAVE_UP, group_runs, in_order, read_history, read_runs, varying
from tests.report.made_runs import RESULT, add_job


def groups_of(folder):
    return group_runs(read_runs([folder])[0])


@pytest.mark.parametrize(
    "word",
    ["seed=1", "verbose=true", "engine=ray", "engine.workers=4", "hydra.job.name=x",
     "dataset.root=/x", "dataset.download=true"],
)  # fmt: skip
def test_runs_with_the_same_effect_are_one_group(tmp_path, word):
    add_job(tmp_path / "0", "lr=1 batch_size=2")
    add_job(tmp_path / "1", f"batch_size=2 {word} lr=1")
    assert len(groups_of(tmp_path)) == 1


@pytest.mark.parametrize("word", ["dataset=mnist", "dataset.size=8", "seeds=1", "+engineer=1"])
def test_any_other_override_makes_a_group(tmp_path, word):
    add_job(tmp_path / "0", "lr=1")
    add_job(tmp_path / "1", f"lr=1 {word}")
    assert varying(groups_of(tmp_path)) == [word.lstrip("+").split("=")[0]]


INVALID = (
    *({"uplink_bytes": None}, {"accuracy": "x"}, {"seed": [1]}, {"failures": "2"}, {"seconds": {}}),
    *({"stopped": "interrupted"}, {"metrics": []}, {"metrics": 3}, {"metrics": {"rmse": 3}}),
    *({"metrics": {"rmse": {"name": 3}}}, {"metrics": {"rmse": {"name": "rmse", "higher": 1}}}),
    {"metrics": {"rmse": {"name": "rmse", "lower": True}}},
    {"metrics": {"other": {"name": "other", "higher": "yes"}}},
)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *(("result.json", text) for text in ('{"a": ', "{}", "[1]", "", None)),
        *(("result.json", json.dumps(RESULT | result)) for result in INVALID),
        *((".hydra/overrides.yaml", text) for text in ("foo: [", "foo: 1")),
    ],
)
def test_a_damaged_or_missing_file_affects_its_own_run_only(tmp_path, file, text):
    for number in range(2):
        add_job(tmp_path / str(number), f"seed={number}")
    damaged = tmp_path / "0" / file
    damaged.unlink() if text is None else damaged.write_text(text)
    runs, unfinished = read_runs([tmp_path])
    assert [run.seed for run in runs] == [1]
    assert [*unfinished] == [tmp_path / "0"]


@pytest.mark.parametrize("result", [{"diverged": True}, {"stopped": f"{GAVE_UP} in 20 rounds"}])
def test_a_run_that_gave_up_counts_as_one_that_diverged(tmp_path, result):
    add_job(tmp_path / "0", "lr=9", **result)
    add_job(tmp_path / "1", "lr=1")
    assert [run.diverged for run in read_runs([tmp_path])[0]] == [True, False]


def test_folders_without_a_finished_run_are_named(tmp_path):
    add_job(tmp_path / "0", "lr=9", finished=False)
    with pytest.raises(ResultsError, match=f"^no finished run in {tmp_path}; 1 unfinished$"):
        read_runs([tmp_path])
    with pytest.raises(ResultsError, match=f"^{tmp_path}/nowhere: no such folder$"):
        read_runs([tmp_path / "nowhere"])


def test_an_incomplete_last_line_of_a_history_is_skipped(tmp_path):
    file = tmp_path / "history.jsonl"
    file.write_text('{"round": 1}\n{"round": 2, "accuracy": NaN}\n{"round": 3, "loss')
    assert read_history(file) == [{"round": 1}, {"round": 2, "accuracy": None}]


@pytest.mark.parametrize(
    "damage", [b"\xff\xfe\n{}\n", b"[1]\n[2]\n", b"{}\n{}\n", b'{"round": \n{"round": 1}\n']
)
def test_any_other_damaged_line_of_a_history_is_named(tmp_path, damage):
    file = tmp_path / "history.jsonl"
    file.write_bytes(damage)
    with pytest.raises(ResultsError, match=f"^{file}: line 1 cannot be read$"):
        read_history(file)


def test_equal_overrides_in_other_notation_are_equal():
    assert in_order({"b": "true", "a": "1e-3"}) == in_order({"a": "0.001", "b": "True"})
    assert in_order({"a": "[1, 2]"}) == in_order({"a": "[1,2]"})
    assert in_order({"a": "1,2"}) == "a=1,2"
