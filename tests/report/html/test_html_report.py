"""A report holds what its runs have recorded, for usual and for odd runs."""

import csv
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from statistics import fmean

import pytest

from edgewire.conf.network import network_named
from edgewire.report.__main__ import main
from edgewire.report.estimate import paired
from edgewire.report.html import canvas, html_report
from tests.report.made_runs import SCREENS, Page, add_job, add_run, history, node, write_nodes

PLAIN, GOOD, BAD = (0.90, 0.91, 0.92), (0.899, 0.912, 0.919), (0.80, 0.81, 0.82)


def made(folder, *words):
    """Write the report of a folder; return its page. The folder's own report is written."""
    assert main([str(folder), *words]) == 0
    return Page((folder / "report" / "report.html").read_text())


def add_group(folder, name, ends, up, **options):
    for seed, end in enumerate(ends):
        overrides = f"algorithm={name} seed={seed}"
        add_run(folder / f"{name}{seed}", overrides, (0.1, 0.5, end), up=up, down=up, **options)


@pytest.fixture
def quick(monkeypatch):
    """Draw the pictures of one link only: most tests need no more."""
    monkeypatch.setattr(html_report, "named_links", lambda: {"lte": network_named("lte")})


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Return a sweep of three groups: uncompressed, as good with a tenth of the bytes, worse."""
    folder = tmp_path_factory.mktemp("runs") / "sweep"
    for name, ends, up in (("all", PLAIN, 10_000), ("good", GOOD, 1000), ("worse", BAD, 100)):
        add_group(folder, name, ends, up, config=f"lr: 0.1\na: {{b: '${{lr}}', c: {name}}}\n")
    return folder


@pytest.fixture(scope="module")
def page(sweep):
    return made(sweep, "--title", "My sweep")


def test_the_main_table_has_a_row_for_each_group(page):
    assert page.column("summary", "runs") == ["3", "3", "3"]
    assert page.column("summary", "ratio up") == ["1.00", "10.00", "100.00"]
    assert page.column("summary", "sent up") == ["200 kB", "20 kB", "2 kB"]
    means = [text.split(" ± ")[0] for text in page.column("summary", "accuracy, %")]
    assert means == [f"{100 * fmean(ends):.2f}" for ends in (PLAIN, GOOD, BAD)]


def test_differences_are_paired_by_the_seed(page):
    plain, good, bad = page.column("summary", "difference, points")
    assert plain == "-"
    found = paired(*({at: 100 * v for at, v in enumerate(each)} for each in (GOOD, PLAIN)))
    assert good == f"0.00 ± {found.half:.2f}, no loss seen"
    assert bad == "-10.00 ± 0.00, a loss"


def test_the_top_of_the_page_answers_questions(page):
    text = " ".join(page.text.split())
    assert "It depends: 1 of 2 compressed groups are worse." in text
    assert (
        "algorithm=good, with 10 times fewer bytes than Flower: accuracy shows no loss from" in text
    )
    assert "algorithm=worse sends the fewest: 2 kB, 2 kB: 100 and 100 times fewer than" in text
    assert "9 finished, without a problem." in text
    assert text.count("My sweep") == 2  # the title and the heading


def test_the_files_beside_the_page_are_whole(sweep, page):
    folder = sweep / "report"
    pictures = sorted(folder.glob("*.svg"))
    assert {file.stem for file in pictures} >= {
        *("accuracy_by_bytes_up", "accuracy_by_bytes_down", "rounds", "virtual_time"),
        *("bytes_a_round_up", "bytes_a_round_down", "parts_up", "parts_down", "density"),
        *(f"time_{link}" for link in ("adsl", "cable", "fibre", "lan", "lora", "lte", "wifi")),
    }
    assert page.svgs == len(pictures)
    for file in pictures:
        ElementTree.parse(file)
    rows = list(csv.DictReader((folder / "histories.csv").open()))
    assert len(rows) == 9 * 3
    assert [row["accuracy"] for row in rows if row["folder"] == str(sweep / "good1")] == [
        "0.1", "0.5", "0.912"
    ]  # fmt: skip
    summary = list(csv.DictReader((folder / "summary.csv").open()))
    assert [float(row["sent up"]) for row in summary] == [200_000, 20_000, 2_000]


def test_the_page_needs_no_other_file(sweep, page):
    html = (sweep / "report" / "report.html").read_text()
    for part in ("http://", "https://", "src=", "@import", "url(//"):
        found = html.replace("http://www.w3.org/1999/xlink", "").count(part)
        assert not found - (part == "src=") * html.count("-src=")
    ids = [piece.split('"')[0] for piece in html.split(' id="')[1:]]
    assert len(ids) == len(set(ids))


def test_settings_that_differ_are_listed(page):
    assert page.tables["settings"] == [
        ["key", "algorithm=all", "algorithm=good", "algorithm=worse"],
        ["a.c", "all", "good", "worse"]
    ]  # fmt: skip


def test_the_page_of_one_run_has_its_classes_and_losses_and_no_front(tmp_path, quick):
    """Names of classes may be equal, and 21 classes have no table."""
    for classes, there in ((3, True), (21, False)):
        folder, table = tmp_path / str(classes), [[*range(classes)]] * classes
        add_run(folder, "seed=0", result={"class_names": ["a"] * classes, "confusion": table})
        page = made(folder)
        names = {file.stem for file in (folder / "report").glob("*.svg")}
        assert {"rounds", "loss", "train_loss"} <= names
        assert not any("by_bytes" in name for name in names)
        assert ("confusion" in page.tables) is there
        if there:
            assert page.tables["confusion"] == [["class", *"aaa"], *[["a", *"012"]] * 3]


def test_the_only_run_has_a_report(tmp_path, quick, capsys):
    add_run(tmp_path / "run", "algorithm=fedavg_f2i seed=3")
    found = made(tmp_path / "run")
    assert found.column("summary", "accuracy, %") == ["90.00"]
    assert found.tables["settings"][1:] == [["algorithm", "fedavg_f2i"]]
    page = tmp_path / "run" / "report" / "report.html"
    first, *others, last = capsys.readouterr().out.splitlines()
    assert first == "digits · mlp · 10 nodes · uncompressed (fedavg)"
    assert last.split() == ["next", "python", "-m", "webbrowser", page.as_uri()]
    for line in others:  # the page gives the same answers
        assert line[11:] in found.text
    made(tmp_path / "run", "--quiet")
    assert capsys.readouterr().out == f"{page}\n"


REGRESSION = {"metrics": {"mae": {"name": "mae", "higher": False, "share": False}}}


def test_of_an_error_less_is_better(tmp_path, quick):
    for name, up, ends in (("plain", 9000, (0.5, 0.52)), ("f2i", 900, (0.9, 0.93))):
        for seed, end in enumerate(ends):
            add_run(tmp_path / f"{name}{seed}", f"compression={name} seed={seed}",
                    (2.0, 1.0, end), up=up, down=up, name="mae", result=REGRESSION)  # fmt: skip
    found = made(tmp_path)
    difference = dict(zip(found.column("summary", "compression"),
                          found.column("summary", "difference"), strict=True))  # fmt: skip
    (worse,) = [text for name, text in difference.items() if "f2i" in name]
    assert worse.startswith("+0.40")
    assert worse.endswith("a loss")


ODD = {
    "no evaluation": (history((None, None, None)), {"accuracy": None, "best_accuracy": None}),
    "no history": ([], {}),
    "nulls": ([row | {"train_loss": None, "virtual_seconds": None, "loss": None}
               for row in history((0.1, None, 0.9))], {"loss": None}),
    "asynchronous": (history((0.1, 0.5, 0.9), staleness=3.0), {"staleness": 3.0, "nodes": 200}),
    "cut model": (history((0.1, 0.5, 0.9), uplink_bytes_by_segment=[1, 2]), {
        "segments": [{"layers": ["a"]}], "uplink_bytes_by_segment": [1, 2]}),
    "huge losses": (history((1.0, 1e100, 1e140), name="mae"), {"mae": 1e140, **REGRESSION}),
    "no bytes": (history((0.1, 0.9), up=0, down=0), dict.fromkeys(
        ("uplink_bytes", "downlink_bytes", "uplink_bytes_float32"), 0)),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("case", ODD)
def test_odd_runs_have_a_report(case, tmp_path, quick):
    rows, result = ODD[case]
    for seed in range(2):
        about = {"nodes": 10, "dataset": "d", "model": "m"} | result
        add_job(tmp_path / f"odd{seed}", f"x=odd seed={seed}", rows, **about)
        add_run(tmp_path / f"usual{seed}", f"x=usual seed={seed}")
    found = made(tmp_path)
    names = [name.strip() for name in found.column("summary", "x")]
    assert [name[-3:] for name in names] == ["odd", "ual"]
    assert len(found.column("runs", "run")) == 4
    for file in (tmp_path / "report").glob("*.svg"):
        ElementTree.parse(file)
    if case == "cut model":
        assert sorted(time == "-" for time in found.column("times", "lte")) == [False, True]


NAME = "<script>alert(1)</script>&\"'$x^{2$"


def test_hostile_names_are_text(tmp_path, quick, recwarn):
    (tmp_path / ".hydra").mkdir()
    for job, name in enumerate(
        (NAME, "`usual`", '" onload="x', "--x-->", "a\x1b[31m\x00\u202eb", "模型")
    ):
        add_run(tmp_path / str(job), f"seed={job}", config=f"{json.dumps(name)}: {job}\n")
        overrides = [f"model={name}", f"seed={job}"]
        file = tmp_path / str(job) / ".hydra" / "overrides.yaml"
        file.write_text(json.dumps(overrides))
        write_nodes(tmp_path / str(job), [node(0, reason=name, failures=3, node=name), node(1)])
    found = made(tmp_path, "--title", NAME)
    html = (tmp_path / "report" / "report.html").read_text()
    assert "<script>alert" not in html
    assert not found.handlers
    assert not [each for each in recwarn if "Glyph" in str(each.message)]
    assert html.count("<script") == 1
    assert not {"\x1b", "\x00", "\u202e"} & set(html)
    assert NAME in found.text
    assert any(NAME in name for name in found.column("summary", "model"))
    for file in (tmp_path / "report").glob("*.svg"):
        ElementTree.parse(file)


def test_runs_without_a_result_say_why_and_how_to_go_on(tmp_path, quick, monkeypatch):
    add_run(tmp_path / "fine", "x=1 seed=0")
    add_job(tmp_path / "killed", "x=2 seed=0", history((0.1, 0.5)), finished=False)
    add_job(tmp_path / "failed", "x=3 seed=0", finished=False)
    (tmp_path / "failed" / "failed.json").write_text('{"code": 1, "line": "no data"}')
    add_job(tmp_path / "ctrl c", "x=4 seed=0", stopped="interrupted")
    (tmp_path / "ctrl c" / "checkpoint").write_text("")
    add_job(tmp_path / "damaged", "x=5 seed=0")
    (tmp_path / "damaged" / "result.json").write_text("{")
    add_run(tmp_path / "diverged", "x=6 seed=0", result={"diverged": True})
    add_run(tmp_path / "again", "x=1 seed=0")
    add_run(tmp_path / "garbled", "x=7 seed=0")
    (tmp_path / "garbled" / "history.jsonl").write_text("garbage\n{}\n")
    monkeypatch.chdir(tmp_path)  # the commands work in every folder
    found = made(Path())
    rows = {row[0].rpartition("/")[2]: row for row in found.tables["runs"][1:]}
    outcomes = {name: row[3] for name, row in rows.items()}
    unreadable = "finished, but its history.jsonl cannot be read"
    assert outcomes.pop("garbled").startswith(f"{unreadable}: it has no curves")
    assert outcomes == {
        "again": "repeated: a later run with this seed counts",
        "fine": "finished",
        "killed": "no result.json: it still runs, or was killed",
        "failed": "failed: no data",
        "ctrl c": "stopped: interrupted",
        "damaged": "result.json is damaged",
        "diverged": "diverged",
    }
    assert rows["ctrl c"][-1] == f"python run.py 'resume={tmp_path}/ctrl c'"
    assert rows["killed"][-1] == (
        f"python run.py --config-path {tmp_path}/killed/.hydra --config-name config"
    )
    assert rows["killed"][5] == "1"  # the last round
    remarks = found.column("summary", "remarks")
    assert remarks == ["", "1 of 1 runs diverged", "", "not finished"]
    assert "7 of 8 need a look" in found.text


@pytest.mark.parametrize("finished", [False, True])
def test_an_unfinished_run_shows_what_it_has_done_beside_finished_runs(finished, tmp_path, quick):
    rows = [row | {"rounds": 9} for row in history((0.1, 0.5, 0.8))]
    ended = {"stopped": "interrupted", **rows[-1]} if finished else {}
    rows.append(rows[-1] | {"round": 3, "accuracy": None})  # the last value that is known counts
    add_job(tmp_path / "cut", "x=1 seed=0", rows, finished, **ended)
    write_nodes(tmp_path / "cut", [node(0), node(1, mean_lag=9.0)])
    add_run(tmp_path / "whole", "x=1 seed=1")
    found = made(tmp_path)
    assert found.column("summary", "accuracy, %") == ["90.00", "80.00"]
    assert found.column("summary", "remarks") == ["", "not finished"]
    assert found.column("summary", "sent up") == ["20 kB", "20 kB"]
    assert {"nodes", "runs"} <= set(found.tables)
    assert "1 finished" in found.text


@pytest.mark.parametrize("words", [["{}/none"], ["{}"], ["{}/run", "--out", "{}/file"]])
def test_a_mistake_is_a_line(words, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    if len(words) > 1:
        add_run(tmp_path / "run", "x=1 seed=0")
    assert main([word.format(tmp_path) for word in words]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("error: ")
    assert not (tmp_path / "report").exists()


def test_of_many_groups_the_best_are_in_colour(tmp_path, quick):
    for job in range(20):
        add_run(tmp_path / str(job), f"x={job} seed=0", (0.1, 0.5, 0.5 + job / 100))
    found = made(tmp_path)
    names = found.column("summary", "x")
    assert len(names) == 20
    assert sum("\u2002" in name for name in names) == 12
    assert names[19] == "1\u200219"
    assert "12 groups with the best accuracy. The points of the 8 others" in found.text


def test_nodes_that_are_slow_or_fail_are_named(tmp_path, quick):
    add_run(tmp_path, "x=1 seed=0")
    slow, failed = node(3, mean_lag=4.0), node(5, failures=2, replies=8, reason="time-out")
    write_nodes(tmp_path, [node(0), node(1), slow, node(4), failed])
    found = made(tmp_path)
    assert "node 4: 4 s a reply, 4.0 times the usual" in found.text
    assert [row[0] for row in found.tables["nodes"][3:]] == ["1", "2", "5"]  # then the others
    rows = [dict(zip(found.tables["nodes"][0], row, strict=True))
            for row in found.tables["nodes"][1:]]  # fmt: skip
    heads = ("node", "× usual", "failures", "last failure")
    assert [tuple(row[head] for head in heads) for row in rows[:2]] == [
        ("4", "4×", "0", ""),
        ("6", "1×", "2", "time-out"),
    ]
    assert {"node_metric", "node_lag", "node_loss", "node_bytes_up"} <= {
        file.stem for file in (tmp_path / "report").glob("*.svg")
    }


def test_a_run_that_ended_early_names_the_nodes_that_do_not_answer(tmp_path, quick):
    add_run(tmp_path, "x=1 seed=0", result={"rounds": 100})
    quiet = node(1, waiting=True, sent=2.0, heard=2.0)
    write_nodes(tmp_path, [node(0, waiting=False, sent=2.0, heard=3.0), quiet])
    found = made(tmp_path)
    assert "node 2: no answer to the last message" in found.text
    assert found.column("nodes", "state") == ["does not answer", "answers"]
    assert found.column("runs", "outcome") == ["ended at 2 of 100"]
    assert "without a problem" not in found.text


def test_a_diverged_run_has_no_estimated_time(tmp_path, quick):
    add_run(tmp_path / "a", "x=1 seed=0", result={"diverged": True})
    add_run(tmp_path / "b", "x=2 seed=0")
    add_run(tmp_path / "c", "x=3 seed=0", up=0, down=0)
    times = made(tmp_path).column("times", "lte")
    assert [time in ("-", "0 s") for time in times] == [True, False, True]


@pytest.mark.parametrize(
    ("ends", "compressed", "said"),
    [
        ((0.9, 0.9, 0.9), (0.89, 0.87, 0.8827),
         "Not known: the difference is -1.91 ±"),  # the seeds differ by more
        (PLAIN, GOOD, "No loss is measurable."),
    ],
)  # fmt: skip
def test_only_a_narrow_interval_tells_of_no_loss(ends, compressed, said, tmp_path, quick):
    add_group(tmp_path, "all", ends, 10_000)
    add_group(tmp_path, "few", compressed, 1000)
    text = " ".join(made(tmp_path).text.split())
    assert said in text
    assert said.startswith("No loss") or "No loss is measurable" not in text


def test_axes_have_plain_numbers_and_whole_bars(tmp_path, monkeypatch, quick):
    drawn = []
    save = canvas.Canvas.save
    monkeypatch.setattr(
        canvas.Canvas, "save", lambda self, folder: (drawn.append(self), save(self, folder))[1]
    )
    add_group(tmp_path, "all", (0.90, 0.60, 0.80), 10_000)
    for seed in range(2):
        long = (0.1, *[0.5] * 59, 0.85)
        add_run(tmp_path / f"few{seed}", f"algorithm=few seed={seed}", long, up=1000, down=1500)
    made(tmp_path)
    (front,) = [each for each in drawn if each.name == "accuracy_by_bytes_up"]
    (low, high), ends = front.axes.get_ylim(), []
    for container in front.axes.containers:
        for bar in container.lines[2]:
            ends += [y for segment in bar.get_segments() for _, y in segment]
    assert len(ends) > 2
    assert low < min(ends) < max(ends) < high
    (rounds,) = [each for each in drawn if each.name == "rounds"]
    assert rounds.axes.get_xscale() == "log"
    for each in drawn:
        for axis in (each.axes.xaxis, each.axes.yaxis):
            texts = [label.get_text() for label in axis.get_ticklabels()]
            assert not [text for text in texts if "$" in text], each.name
    assert len(front.axes.get_xticks()) >= 3
    assert all(text.get_text().endswith("B") for text in front.axes.get_xticklabels())


def test_text_in_csv_files_is_never_a_formula(tmp_path, quick):
    for job, name in enumerate(("=1+1", "@SUM(A1)", "+x", "-5", "-x")):
        add_run(tmp_path / str(job), f"seed={job}")
        file = tmp_path / str(job) / ".hydra" / "overrides.yaml"
        file.write_text(json.dumps([f"x={name}"]))
    made(tmp_path)
    for name in ("summary.csv", "histories.csv"):
        cells = {cell for row in csv.reader((tmp_path / "report" / name).open()) for cell in row}
        text = {cell for cell in cells if cell[:1] in tuple("=+-@") and cell != "-"}
        assert text <= {"-5"}, name


def test_a_report_of_several_runs_prints_a_screen(tmp_path, quick, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {"data": {"train": 1438, "test": 359, "kind": "images", "classes": 10}}
    for name, up in (("fedavg", 10_000), ("edgewire", 1000)):
        for seed in range(3):
            ends = (0.1, 0.5, 0.9 + up / 1e6 + seed / 1000)
            run = tmp_path / "sweep" / f"{name}{seed}"
            add_run(run, f"algorithm={name} seed={seed}", ends, up=up, down=up, result=data)
            write_nodes(run, [node(at, mean_lag=1.0 + 5 * (at == 3)) for at in range(4)])
    assert main(["sweep"]) == 0
    printed = capsys.readouterr().out.replace(tmp_path.as_uri(), "file://")
    lines = [line.removesuffix("   the page").rstrip() for line in printed.splitlines()]
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 110
    assert lines == (SCREENS / "several_runs.txt").read_text().splitlines()
