"""Text files as data sets: windows of bytes."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewire.task.datasets.text import text
from edgewire.task.errors import NoData, TaskError
from edgewire.task.objectives.next_token import NextToken


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(min_size=12, max_size=99), length=st.integers(1, 5))
def test_windows_are_the_bytes_of_the_file(content, length, tmp_path):
    (tmp_path / "mine.txt").write_bytes(content)
    data = text(str(tmp_path / "mine.txt"), length, test_share=0.5)
    inputs, targets = (torch.cat([getattr(s, p) for s in (data.train, data.test)]).flatten()
                       for p in ("inputs", "targets"))  # fmt: skip
    windows = (len(content) - 1) // length
    assert bytes(inputs.tolist()) == content[: windows * length]
    assert bytes(targets.tolist()) == content[1 : windows * length + 1]
    assert abs(len(data.train) - len(data.test)) <= 1
    assert data.prepared(data.train.inputs).dtype == torch.int64
    own = text(str(tmp_path / "mine.txt"), length, on_device=True)
    assert (len(own.train), len(own.test)) == (windows, 0)
    logits = torch.nn.functional.one_hot(own.train.targets.long(), 256).float()
    loss = NextToken().loss(torch.nn.Identity(), logits, own.train.targets)
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), own.train.targets.long().flatten()
    )
    assert torch.equal(loss, expected)


def test_each_file_is_a_group(tmp_path):
    for name, letter in (("anna", "a"), ("ben", "b"), ("cleo", "c")):
        (tmp_path / f"{name}.txt").write_text(letter * 41)
    data = text(str(tmp_path), 4, test_share=0.2)
    assert data.train.groups.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert (data.train.inputs[:, 0] - ord("a")).tolist() == data.train.groups.tolist()
    assert data.test.groups.tolist() == [0, 0, 1, 1, 2, 2]
    (tmp_path / "train.txt").write_text("x" * 41)
    (tmp_path / "test.txt").write_text("y" * 21)
    data = text(str(tmp_path), 4)
    assert (len(data.train), len(data.test)) == (10, 5)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"length": 0}, "at least 1"),
        ({"test_share": 1.0}, "below 1"),
        ({"length": 99}, "too little text"),
        ({"length": 20}, "too little text"),  # one window, so none to test on
    ],
)
def test_a_wrong_use_is_one_line(options, line, tmp_path):
    with pytest.raises(NoData, match="no file"):
        text(str(tmp_path))
    (tmp_path / "mine.txt").write_text("x" * 30)
    with pytest.raises(TaskError, match=line):
        text(str(tmp_path / "mine.txt"), **options)
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(TaskError):
        text(str(tmp_path / "mine.txt"), **options)
