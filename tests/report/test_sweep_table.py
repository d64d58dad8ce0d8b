"""The table at the end of a sweep fits its width, whatever the runs are."""

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from edgewire.report.table import WIDTH, sweep_table
from tests.report.sweeps import add_job


def printed(folder, width=WIDTH):
    """Return the lines of the table of all jobs in a folder; none without a table."""
    table = sweep_table(sorted(folder.iterdir()), width)
    out = StringIO()
    if table is not None:
        Console(width=width, file=out).print(table)
    return out.getvalue().splitlines()


def test_runs_of_other_seeds_are_one_row(tmp_path):
    for job, (lr, seed, accuracy) in enumerate([(1, 0, 0.5), (1, 1, 0.7), (2, 0, 0.9)]):
        words = f"lr={lr} seed={seed}"
        add_job(tmp_path / str(job), words, accuracy=accuracy, uplink_bytes=100_000 * lr)
    head, *rows = printed(tmp_path)
    assert head.split()[:5] == ["lr", "runs", "accuracy", "up,", "ratio"]
    assert [row.split()[:4] for row in rows] == [
        ["1", "2", "60.00", "±"],
        ["2", "1", "90.00", "%"],
    ]
    assert ("40.00" in rows[0], "20.00" in rows[1]) == (True, True)


@pytest.mark.parametrize("finished", [0, 1])
def test_fewer_than_two_finished_runs_have_no_table(tmp_path, finished):
    for job in range(2):
        add_job(tmp_path / str(job), f"lr={job}", finished=job < finished)
    assert printed(tmp_path) == []


@given(
    st.lists(st.text("abcdefgh.=_", min_size=1, max_size=60), min_size=2, max_size=5, unique=True),
    st.integers(40, 120),
)
def test_lines_are_not_wider_than_asked(tmp_path_factory, names, width):
    folder = tmp_path_factory.mktemp("sweep")
    for job, name in enumerate(names):
        add_job(folder / str(job), f"model.name={name.replace('=', '')}x lr={job} seed={job % 2}")
    lines = printed(folder, width)
    assert lines
    assert max(map(len, lines)) <= width
    assert "accuracy" in " ".join(lines)
