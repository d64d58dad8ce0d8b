"""Files of runs are read in bounds: regular ones only, plain data only, and names stay in place."""

import json
import os
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgewire.command.run_result import RunResult
from edgewire.report import reader
from edgewire.report.__main__ import main
from edgewire.report.progress import FINISHED, RunProgress
from edgewire.report.reader import (
    GrowingFile,
    file_name,
    folders,
    left_out,
    noting,
    parse_json,
    read_json,
    read_yaml,
)
from edgewire.report.runs import REFERENCE, read_runs
from tests.report.made_runs import add_run

TEXTS = st.text(max_size=300) | st.text(alphabet="aA./\\-_@ é\n\0", max_size=12)


@given(TEXTS)
@example("..")
@example("\ud800")
def test_a_file_name_is_one_short_plain_part(text):
    name = file_name(text)
    assert name == os.path.basename(name) == name.lower()
    assert re.fullmatch(r"[a-z0-9_]([a-z0-9_.-]{0,62}[a-z0-9_-])?", name)


@given(TEXTS, TEXTS)
@example("a/b", "a_b")
@example("A", "a")
def test_different_texts_have_different_names(one, other):
    assert (file_name(one) == file_name(other)) == (one == other)


@pytest.mark.parametrize("text", ["accuracy", "rmse_by_bytes_up", "recall-1", "auroc.macro", "0"])
def test_a_plain_name_stays(text):
    assert file_name(text) == text


def fifo(file):
    os.mkfifo(file)


def hole(file):
    with file.open("wb") as made:
        made.truncate(10**13)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (fifo, "is no regular file"),
        (lambda file: file.mkdir(), "is no regular file"),
        (lambda file: file.symlink_to("/dev/zero"), "is a link"),
        (lambda file: file.symlink_to(file.with_name("other")), "is a link"),
        (lambda file: file.symlink_to(file), "is a link"),
        (hole, "is too large"),
        (lambda file: file.write_text("[" * 100_000), "too many levels"),
        (lambda file: file.write_text("[" * 200 + "]" * 200), "too many levels"),
        (lambda file: file.write_text("[" + "[]," * 200_000 + "0]"), "too many lists"),
        (lambda file: file.write_text("0" * 20_000_000), "16 MB"),
        (lambda file: file.write_text("{"), "cannot be read"),
    ],
)
@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_what_is_no_small_regular_file_is_left_out(make, why, read, tmp_path):
    (tmp_path / "other").write_text("{}")
    file = tmp_path / "result.json"
    make(file)
    with noting() as notes, pytest.raises(ValueError, match=r"result\.json "):
        read(file)
    line = left_out(notes)
    assert str(file) in line.splitlines()[0] == line
    assert why in line or (read is read_yaml and "cannot be read" in line)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [1]\nb: *a", "&a [*a]", "a: &a {x: 1}\nb: {<<: *a}", "a: !!binary x", "!x {}",
        "!!python/object/apply:os.system [x]", "a: " + "1:" * 100 + "1", "- " * 200 + "a",
        "? [a]\n: 1", "a: 2024-99-99", "\tx", "- a\n" * 100_000,
    ],
)  # fmt: skip
def test_yaml_that_is_no_small_plain_data_is_refused(text, tmp_path):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ValueError, match="cannot be read"):
        read_yaml(tmp_path / "x.yaml")


def test_inner_folders_are_no_links_and_walks_follow_none(tmp_path):
    run = tmp_path / "sweep" / "0"
    add_run(run, "lr=1 seed=0")
    (tmp_path / "sweep" / "1").symlink_to(run)
    assert [folder for folder, _ in folders(tmp_path / "sweep")] == [tmp_path / "sweep", run]
    (run / ".hydra").rename(tmp_path / "hydra")
    (run / ".hydra").symlink_to(tmp_path / "hydra")
    with pytest.raises(ValueError, match="hydra is a link"):
        read_yaml(run / ".hydra" / "overrides.yaml")


def test_a_link_to_a_run_and_one_above_it_are_the_users_own(tmp_path):
    add_run(tmp_path / "real" / "0", "lr=1 seed=0")
    (tmp_path / "latest").symlink_to(tmp_path / "real" / "0")
    (tmp_path / "parent").symlink_to("real")
    with noting() as notes:
        for folder in (tmp_path / "latest", tmp_path / "parent" / "0"):
            assert RunResult(folder).overrides == {"lr": "1", "seed": "0"}
            assert [run.folder for run in read_runs([folder])[0]] == [folder]
            job = RunProgress(folder)
            job.update()
            assert job.state == FINISHED
        assert len(read_runs([tmp_path / "parent"])[0]) == 1
    assert not notes


def test_a_deep_folder_ends_no_walk(tmp_path):
    folder = tmp_path.joinpath(*"a" * 300)
    folder.mkdir(parents=True)
    assert len(list(folders(tmp_path))) == reader.DEEPEST + 1


def test_a_large_honest_nodes_file_is_read(tmp_path):
    nodes = [{"node": 2**63 + at, "labels": [17] * 1000, "reason": "[{"} for at in range(2000)]
    (tmp_path / "nodes.json").write_text(json.dumps({"nodes": nodes}))
    assert read_json(tmp_path / "nodes.json")["nodes"] == nodes
    assert parse_json(b'{"a": NaN}') == {"a": None}


def test_a_growing_file_skips_the_rest_of_a_long_line(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "LONGEST_LINE", 10)
    file, tail = tmp_path / "history.jsonl", GrowingFile(tmp_path / "history.jsonl")
    assert list(tail.lines()) == []
    file.write_bytes(b"one\n" + b"x" * 35 + b"\ntwo\nthr")
    assert list(tail.lines()) == [b"one\n", b"x" * 10, b"two\n"]
    with file.open("ab") as more:
        more.write(b"ee\n")
    assert list(tail.lines()) == [b"three\n"]
    file.write_bytes(b"new\n" + b"x" * 60 + b"\n")
    assert next(tail.lines()) == b"new\n"


@given(data=st.data())
def test_a_configuration_of_somebody_else_stays_text(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign")
    parts = st.sampled_from(["${oc.env:HOME}", "${", "}", "\\", "$", "${a}", "{oc.env:HOME}", "x"])
    texts = data.draw(st.dictionaries(st.sampled_from("abcd"), st.lists(parts).map("".join)))
    config = {
        **texts,
        "rest": {"deep": ["${oc.env:HOME}", "${oc.decode:1}"]},
        "n": 3,
        "ref": "${n}",
    }
    add_run(folder / "run", "seed=0", config=json.dumps(config))
    found = RunResult(folder / "run").config
    assert (found.ref, found.rest.deep[0], found.rest.deep[1]) == (3, *config["rest"]["deep"])
    for key, text in texts.items():
        if not REFERENCE.fullmatch(text):
            assert found[key] == text


def test_pictures_stay_in_the_reports_folder_whatever_the_metric_is_called(tmp_path, capsys):
    name = "/../../up" + "é" * 80
    run, out = tmp_path / "in" / "deep" / "run", tmp_path / "in" / "deep" / "out"
    metrics = {name: {"name": name, "higher": True, "share": True}}
    add_run(run, "lr=1 seed=0", name=name, metrics=metrics)
    before = set(tmp_path.rglob("*"))
    assert main([str(run), "--out", str(out)]) == 0
    made = set(tmp_path.rglob("*")) - before - {out}
    assert {each.parent for each in made} == {out}
    assert len([each for each in made if each.suffix == ".svg"]) > 3
    assert "left out" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["x" * 10**5, "a\nb", "\x1b[31m", "‮x"])
def test_a_metrics_name_that_no_picture_can_show_counts_as_damage(name, tmp_path, capsys):
    add_run(tmp_path / "run", "seed=0", name=name, metrics={"m": {"name": name}})
    assert main([str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert "1 of 1 need a look: 1 result.json is damaged" in capsys.readouterr().out


def test_a_report_names_what_it_leaves_out_and_each_failed_update(tmp_path, capsys):
    add_run(tmp_path / "run", "seed=0", failures=29, client_updates=51)
    os.mkfifo(tmp_path / "run" / "nodes.json")
    assert main([str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr()
    assert shown.err == f"left out: {tmp_path / 'run' / 'nodes.json'} is no regular file\n"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "29 of 80 updates" in page
    assert "without a problem" not in page
