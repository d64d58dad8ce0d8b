"""What the repository stores of a run, and which stored run is replaced by a new run."""

import json
import subprocess
from itertools import pairwise

import pytest

from edgewire.report.reader import ResultsError
from papers.make.run_archive import ROWS, archive_file, commit_of, main, read_archive
from tests.papers.make.made_pages import packed, unpacked
from tests.report.made_runs import add_job


def add(folder, overrides, history=(), **result):
    add_job(folder, f"experiment=e {overrides}", history, rounds=60, **result)


@pytest.fixture
def sweep(root):
    folder = root / "sweep"
    for seed in range(3):
        add(folder / str(seed), f"lr=1 batch_size=2 seed={seed}", accuracy=0.5 + seed / 10)
    add(folder / "3", "lr=2 seed=0 dataset.root=/x engine.workers=4 checkpoint_every=9")
    return folder


def keep(root, *folders, name="e"):
    return main([name, *map(str, folders)], root)


def kept(root):
    return read_archive(archive_file(root, "e"))


def test_the_file_has_a_line_a_run_with_overrides_seed_and_numbers(root, sweep, capsys):
    assert keep(root, sweep) == 0
    assert "4 runs, 4 of them new" in capsys.readouterr().out
    text = unpacked(archive_file(root, "e"))
    assert json.loads(text)["command"] == "python run.py -m experiment=e"
    assert len(text.splitlines()) == 4 + 2
    assert main(["e", "--show"], root) == 0
    assert capsys.readouterr().out == text
    runs = kept(root)
    assert [run.key for run in runs] == [
        ("batch_size=2 lr=1", 0), ("batch_size=2 lr=1", 1), ("batch_size=2 lr=1", 2), ("lr=2", 0),
    ]  # fmt: skip
    assert runs[1].result["accuracy"] == 0.6
    assert runs[1].result["top5"] is None
    assert not runs[1].diverged


def test_the_order_in_which_runs_are_taken_does_not_matter(root, sweep, capsys):
    keep(root, sweep)
    at_once = archive_file(root, "e").read_bytes()
    archive_file(root, "e").unlink()
    for number in (3, 1, 0, 2):
        keep(root, sweep / str(number))
    capsys.readouterr()
    assert keep(root, sweep) == 0  # runs that are stored already
    assert "4 runs, 0 of them new" in capsys.readouterr().out
    assert archive_file(root, "e").read_bytes() == at_once


def test_a_run_with_the_same_overrides_and_seed_replaces_the_old_one(root, sweep):
    keep(root, sweep)
    add(root / "again", "batch_size=2 seed=1 lr=1 verbose=true", accuracy=0.9, diverged=True)
    keep(root, root / "again")
    runs = kept(root)
    assert len(runs) == 4
    assert [run.result["accuracy"] for run in runs[:3]] == [0.5, 0.9, 0.7]
    assert [run.diverged for run in runs] == [False, True, False, False]


def test_a_duplicate_run_is_left_out_and_reported(root, sweep, capsys):
    add(sweep / "9", "batch_size=2 seed=1 lr=1", accuracy=0.9)
    keep(root, sweep)
    assert "the last run was taken, 1 were left out" in capsys.readouterr().out
    assert len(kept(root)) == 4


@pytest.mark.parametrize("count", [1, ROWS - 1, ROWS, ROWS + 1, 7 * ROWS])
def test_a_curve_is_thinned_evenly_and_keeps_its_ends(root, count):
    curve = [
        {"round": n, "accuracy": n / count if n % 2 else None, "uplink_bytes": 10 * n,
         "downlink_bytes": n}
        for n in range(1, 2 * count + 1)
    ]  # fmt: skip
    add(root / "sweep", "seed=0", curve)
    keep(root, root / "sweep")
    (run,) = kept(root)
    rounds = run.result["curve"]["round"]
    assert len(rounds) == min(count, ROWS)
    assert (rounds[0], rounds[-1]) == (1, 2 * count - 1)
    steps = {b - a for a, b in pairwise(rounds)}
    assert not steps or max(steps) - min(steps) <= 2  # evaluations are two rounds apart
    assert run.result["curve"]["uplink_bytes"] == [10 * n for n in rounds]
    assert "virtual_seconds" not in run.result["curve"]


def test_invalid_input_does_not_change_kept_runs(root, sweep, capsys):
    keep(root, sweep)
    before = archive_file(root, "e").read_bytes()
    add_job(root / "other", "experiment=f lr=1 seed=0")
    add_job(root / "none", "lr=1 seed=0")
    add_job(root / "unfinished", "experiment=e lr=1 seed=0", finished=False)
    history = [{"round": 1, "accuracy": 0.5, "train_loss": "x"}]
    add_job(root / "text", "experiment=e lr=1 seed=0", history)
    capsys.readouterr()
    for folders, name, said in [
        ((root / "other",), "e", "was not run with experiment=e"),
        ((root / "none",), "e", "was not run with experiment=e"),
        ((root / "unfinished",), "e", "no finished run"),
        ((root / "text",), "e", "line 1 cannot be read"),
        ((sweep,), "g", "no experiment g"),
        (("--show",), "f", "f.json.xz: No such file"),
    ]:
        assert keep(root, *folders, name=name) == 2
        err = capsys.readouterr().err
        assert said in err
        assert len(err.splitlines()) == 1
    assert archive_file(root, "e").read_bytes() == before


def test_a_commit_is_marked_if_code_was_changed(root, sweep):
    def git(*arguments):
        subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True)

    (root / ".gitignore").write_text("sweep\n")
    git("init")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "x")
    clean = commit_of(root)
    assert len(clean) >= 7
    keep(root, sweep)  # the file of stored runs does not count as changed code
    assert {run.result["commit"] for run in kept(root)} == {clean} == {commit_of(root)}
    (root / "run.py").write_text("")
    assert commit_of(root) == f"{clean}+"
    keep(root, sweep)  # runs that are stored again keep their commit
    assert {run.result["commit"] for run in kept(root)} == {clean}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (None, ""),
        (None, '{"runs": 1}'),
        (None, '{"experiment": "e", "runs": [{}]}'),
        ("\n]}", ""),
        ('"experiment": "e"', '"experiment": "f"'),
        ('"seed": 1', '"seed": 0'),
        ('"accuracy": 0.5', '"accuracy": "high"'),
        ('"uplink_bytes": 1000000, ', ""),
        ('"round": [1]', '"round": [1, 2]'),
    ],
)
def test_an_archive_in_another_format_is_refused(root, old, new):
    for seed in (0, 1):
        curve = [{"round": 1, "accuracy": 0.5}]
        add_job(root / "sweep" / str(seed), f"experiment=e seed={seed}", curve, accuracy=0.5)
    assert main(["e", str(root / "sweep")], root) == 0
    file = archive_file(root, "e")
    text = unpacked(file)
    assert len(read_archive(file)) == len(json.loads(text)["runs"]) == 2
    assert old is None or old in text
    file.write_bytes(packed(new if old is None else text.replace(old, new)))
    with pytest.raises(ResultsError, match=f"^{file} .*") as error:
        read_archive(file)
    assert "\n" not in str(error.value)
