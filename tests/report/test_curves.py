"""Sweeps are drawn as curves: the numbers in the curves, and the image file."""

import struct

import numpy as np
import pytest

from edgewire.report.curves import draw, main, moving_average
from edgewire.report.runs import group_runs, read_runs
from tests.report.made_runs import add_job

LOSSES = {"algorithm=sgd": ([4.0, 2.0, 1.0], [6.0, 2.0, 3.0]), "algorithm=esgd": ([5.0, 4.0, 3.0],)}


def rows(losses, step):
    """Return a history with losses from round 1 on, and an accuracy in every second round."""
    return [
        {
            "round": n,
            "train_loss": loss,
            "accuracy": None if n % 2 else n / 10,
            "uplink_bytes": n * step,
            "virtual_seconds": None,
        }
        for n, loss in enumerate([None, *losses])
    ]


@pytest.fixture
def sweep(tmp_path):
    for overrides, seeds in LOSSES.items():
        for seed, losses in enumerate(seeds):
            history = rows(losses, 1_000_000 * (1 + seed))
            add_job(tmp_path / overrides / str(seed), f"{overrides} seed={seed}", history)
    return tmp_path


@pytest.fixture
def axes(sweep):
    groups = group_runs(read_runs([sweep])[0])
    return lambda *columns, **options: draw(groups, *columns, **options).axes[0]


def test_a_curve_is_the_mean_of_its_seeds_in_a_band(axes):
    drawn = axes("round", "train_loss")
    esgd, sgd = drawn.lines
    assert [line.get_label() for line in drawn.lines] == ["esgd", "sgd"]
    assert list(esgd.get_xdata()) == [1, 2, 3]  # the row without a loss is skipped
    assert list(esgd.get_ydata()) == [5, 4, 3]
    assert list(sgd.get_ydata()) == [5, 2, 2]
    (band,) = drawn.collections  # one seed has no spread
    corners = {tuple(map(float, point)) for point in band.get_paths()[0].vertices}
    assert {(1, 4), (1, 6), (2, 2), (3, 1), (3, 3)} == corners


def test_the_axes_have_units(axes):
    drawn = axes("uplink_bytes", "accuracy", title="Digits")
    esgd, sgd = drawn.lines
    assert list(esgd.get_xdata()) == [0, 2e6]
    assert list(sgd.get_xdata()) == [0, 3e6]  # the mean of 2 MB and 4 MB
    assert list(sgd.get_ydata()) == pytest.approx([0, 20])
    assert (drawn.get_xlabel(), drawn.get_ylabel()) == (
        "all bytes up", "test accuracy (%)"
    )  # fmt: skip
    assert drawn.get_title("left") == "Digits"
    assert "2 MB" in [tick.get_text() for tick in drawn.get_xticklabels()]


def test_bytes_are_those_of_whole_messages(tmp_path):
    history = [{"round": n, "loss": 1.0, "uplink_bytes": n, "uplink_other_bytes": 4 * n,
                "uplink_header_bytes": n} for n in range(3)]  # fmt: skip
    add_job(tmp_path, "algorithm=esgd", history)
    drawn = draw(group_runs(read_runs([tmp_path])[0]), "uplink_bytes", "loss").axes[0]
    assert list(drawn.lines[0].get_xdata()) == pytest.approx([0, 6, 12])


def test_curves_have_their_names_at_their_ends(axes):
    drawn = axes("round", "train_loss")
    shown = {text.get_text(): text.xy for text in drawn.texts}
    assert shown == {"esgd": (3, 3), "sgd": (3, 2)}
    assert not drawn.figure.legends


def test_the_title_is_what_all_runs_train(tmp_path):
    for name in ("esgd", "sgd"):
        task = {"dataset": "digits", "model": "mlp", "nodes": 3, "algorithm": name}
        add_job(tmp_path / name, f"algorithm={name}", rows([1.0, 2.0], 1), **task)
    groups = group_runs(read_runs([tmp_path])[0])
    both, one = (draw(part, "round", "train_loss").axes[0] for part in (groups, groups[:1]))
    assert both.get_title("left") == "digits · mlp · 3 nodes"
    assert one.get_title("left") == "digits · mlp · 3 nodes · esgd"


def test_a_line_is_at_the_value_without_compression(tmp_path):
    def made(name, value, sent):
        history = [{"round": n, "accuracy": value * n} for n in range(3)]
        add_job(
            tmp_path / name,
            f"algorithm={name}",
            history,
            uplink_bytes=sent,
            uplink_bytes_float32=1000,
        )

    made("esgd", 0.4, 10)
    made("fedavg", 0.45, 1000)
    groups = group_runs(read_runs([tmp_path])[0])
    drawn = draw(groups, "round", "accuracy").axes[0]
    assert [float(line.get_ydata()[0]) for line in drawn.lines[2:]] == [90.0]
    assert len(draw(groups[:1], "round", "accuracy").axes[0].lines) == 1


def test_many_curves_have_a_legend(tmp_path):
    for at in range(13):
        add_job(tmp_path / str(at), f"lr={at}", rows([1.0, at], 1))
    drawn = draw(group_runs(read_runs([tmp_path])[0]), "round", "train_loss")
    assert len(drawn.legends[0].texts) == 13
    assert len({(line.get_color(), line.get_linestyle()) for line in drawn.axes[0].lines}) == 13


def test_smoothing_comes_before_the_band(axes):
    drawn = axes("round", "train_loss", smooth=3)
    assert list(drawn.lines[1].get_ydata()) == pytest.approx([5, (7 + 11) / 6, 2])
    assert "3 rows" in drawn.get_ylabel()


def test_moving_average():
    values = np.array([1.0, 2.0, 6.0, 1.0, 5.0])
    assert list(moving_average(values, 1)) == list(values)
    assert list(moving_average(values, 3)) == pytest.approx([1, 3, 3, 4, 5])
    assert list(moving_average(values, 2)) == pytest.approx([1, 1.5, 4, 3.5, 5])
    assert list(moving_average(values, 99)) == pytest.approx([1, 3, 3, 4, 5])
    assert moving_average(np.array([1e30, 1.0, 1.0, 1.0, 1.0]), 3)[-2] == 1


def test_groups_that_differ_in_several_keys_name_them(sweep):
    add_job(sweep / "9", "algorithm=esgd lr=2", rows([1.0], 1))
    drawn = draw(group_runs(read_runs([sweep])[0]), "round", "train_loss").axes[0]
    labels = [line.get_label() for line in drawn.lines]
    assert sorted(labels) == ["esgd", "esgd, lr=2", "sgd"]


def test_the_picture_is_1200_pixels_wide_with_axes_as_asked_for(sweep, tmp_path, capsys):
    file = tmp_path / "curves.png"
    asked = ["--y", "train_loss", "--x", "uplink_bytes", "--smooth", "2", "--out", str(file)]
    assert main([str(sweep), *asked]) == 0
    assert struct.unpack(">I", file.read_bytes()[16:20]) == (1200,)
    assert capsys.readouterr() == ("", "")
    before = file.read_bytes()
    assert main([str(sweep), *asked, "--log-x"]) == 0
    assert file.read_bytes() != before


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["--x", "virtual_seconds", "--out", "x.png"], "no history holds train_loss and virtual"),
        (["--out", "/nowhere/x.png"], "/nowhere/x.png: No such file"),
    ],
)
def test_a_mistake_gives_one_line(sweep, capsys, overrides, part):
    assert main([str(sweep), *overrides]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert part in error
