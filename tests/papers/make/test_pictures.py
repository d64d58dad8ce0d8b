"""Pictures of tables, as curves and as points: what is drawn, and when it is drawn again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.make.results import main, outputs
from papers.make.run_archive import main as keep
from papers.make.scatter_plot import Point, Scatter, front
from tests.papers.make.made_pages import PAGE, define, written
from tests.report.made_runs import add_job

CURVES = PAGE.replace("    against: a\n", "    picture: accuracy\n    least: 50\n").replace(
    "[paper, accuracy, difference, updates]", "[accuracy]"
)
CURVES = CURVES.replace("B is {b.verdict} A: {b.difference}.", "A claim.")


def keep_run(root, overrides, seed, accuracies, rounds=(0, 10, 20)):
    folder = root / f"sweep_{overrides}_{seed}"
    history = [
        {"round": at, "accuracy": value, "uplink_bytes": at * 1e6, "downlink_bytes": 0}
        for at, value in zip(rounds, accuracies, strict=True)
    ]
    job = f"experiment=e {overrides} seed={seed}"
    add_job(folder / "0", job, history, accuracy=accuracies[-1], rounds=rounds[-1])
    assert keep(["e", str(folder)], root) == 0


def drawn(root):
    (content,) = [o.content for o in outputs(root) if o.file.suffix == ".png"]
    return content


def test_a_row_is_the_mean_of_its_seeds_in_a_band_over_rounds_and_bytes(root):
    define(root, CURVES)
    keep_run(root, "lr=1", 0, [0.1, 0.5, 0.7])
    keep_run(root, "lr=1", 1, [0.1, 0.7, 0.8])
    (trace,) = drawn(root).rows
    assert trace.label == "A"
    for curve, first in zip(trace.curves, (0, 1), strict=True):  # a logarithmic axis has no 0
        assert curve.x == pytest.approx([0, 10, 20][first:])  # rounds, MB
        assert curve.mean == pytest.approx([10, 60, 75][first:])
        assert curve.low == pytest.approx([10, 50, 70][first:])
        assert curve.high == pytest.approx([10, 70, 80][first:])


def test_only_rounds_that_all_seeds_measured_are_drawn(root):
    define(root, CURVES)
    keep_run(root, "lr=1", 0, [0.1, 0.5, 0.7], rounds=(0, 10, 30))
    keep_run(root, "lr=1", 1, [0.1, 0.7, 0.8], rounds=(0, 20, 30))
    assert drawn(root).rows[0].curves[0].x == pytest.approx([0, 30])


def test_the_picture_is_on_the_page_and_drawn_anew_for_another_axis(root):
    define(root, CURVES)
    keep_run(root, "lr=1", 0, [0.1, 0.5, 0.7])
    keep_run(root, "lr=2 momentum=true", 0, [0.1, 0.6, 0.7])
    assert "![accuracy over rounds and bytes](page.png)" in written(root)
    assert (root / "papers" / "results" / "page.png").read_bytes().startswith(b"\x89PNG")
    over_rounds, over_bytes = drawn(root).draw().axes
    assert over_rounds.get_ylim()[0] == 50
    assert over_rounds.get_xscale() == "linear"
    assert over_bytes.get_xscale() == "log"
    assert [line.get_label() for line in over_bytes.lines] == ["A", "B"]
    assert main(["--check"], root) == 0
    define(root, CURVES.replace("least: 50", "least: 60"))
    assert main(["--check"], root) == 1


def test_an_unknown_picture_is_refused_in_a_line(root, capsys):
    define(root, CURVES.replace("picture: accuracy", "picture: speed"))
    assert main([], root) == 2
    said = capsys.readouterr().err
    assert "picture must be one of points, metric, accuracy, train_loss, not speed" in said


# A table as points


@pytest.mark.parametrize("least", [None, 78.0])
def test_a_point_below_the_axis_is_at_its_border_with_its_number(least):
    points = [Point("FedAvg", 85.0, 1.0, (5e7, 5e7), least)]
    points += [Point("random-k", 70.7, 2.0, (3e5, 3e5), least)]
    for axes in Scatter(points).draw().axes:
        height = axes.containers[-1].lines[0].get_ydata()[0]
        assert height == (70.7 if least is None else least)
        names = [text.get_text() for text in axes.texts]
        assert names == ["1", "2" if least is None else "2: 70.7 ↓"]


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=12),
    st.booleans(),
)
def test_the_front_holds_the_points_that_no_other_beats(points, higher):
    sent, values = zip(*points, strict=True)
    found = front(sent, values, higher=higher)
    signed = [value if higher else -value for value in values]
    beaten = {
        i
        for i in range(len(sent))
        if any(
            sent[j] <= sent[i]
            and signed[j] >= signed[i]
            and (sent[j], signed[j]) != (sent[i], signed[i])
            for j in range(len(sent))
        )
    }
    assert {(sent[i], values[i]) for i in found} == {points[i] for i in range(len(sent))} - {
        points[i] for i in beaten
    }
    assert [sent[i] for i in found] == sorted({sent[i] for i in found})
