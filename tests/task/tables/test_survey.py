"""A survey of parts says what a survey of the whole says, and nothing of few rows."""

import json
import math
import zlib
from dataclasses import asdict, replace

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewire.task.datasets.table import table as read_table
from edgewire.task.errors import TaskError
from edgewire.task.tables.columns import Column, Reading
from edgewire.task.tables.files import read
from edgewire.task.tables.learn import Problems, Wishes, columns_of, learn, survey_of
from edgewire.task.tables.survey import LEAST, Part, Survey, merged, refused

WISHES = Wishes(("churn",))


def table(rows=240, seed=0, offset=0.0):
    random = np.random.default_rng(seed)
    return pandas.DataFrame({
        "age": random.normal(offset, 3, rows),
        "plan": random.choice(["a", "b,c", 'd"', "=e"], rows),
        "gap": np.where(random.random(rows) < 0.2, np.nan, random.random(rows)),
        "day": pandas.Timestamp("2024-01-01")
        + pandas.to_timedelta(random.integers(0, 500, rows), "D"),
        "constant": 7.5,
        "empty": np.nan,
        "list": [*random.random((rows, 4))],
        "churn": random.choice(["yes", "no"], rows),
    })  # fmt: skip


def survey(frame, wishes=WISHES):
    return survey_of(read(frame, Reading()), wishes)


def learned(frame, wishes=WISHES):
    rows = read(frame, Reading())
    return learn(rows, wishes)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 8), st.integers(0, 999), st.sampled_from([0.0, 1e6, -1e12]))
def test_parts_are_the_whole(parts, seed, offset):
    """Each part has at least LEAST rows of each text."""
    frame = table(parts * 160, seed, offset)
    surveys = [survey(frame.iloc[at::parts]) for at in range(parts)]
    assert [Survey.from_bytes(each.to_bytes()) for each in surveys] == surveys
    assert refused(dict(enumerate(surveys))) == {}
    whole, found = learned(frame), columns_of(merged(surveys), WISHES)
    assert (found.target, {*found.left}) == (whole.target, {*whole.left})
    for one, other in zip(found.features, whole.features, strict=True):
        assert math.isclose(one.mean, other.mean, rel_tol=1e-12, abs_tol=1e-12)
        assert math.isclose(one.std, other.std, rel_tol=1e-12, abs_tol=1e-15 * abs(offset))
        assert math.isclose(one.missing, other.missing, abs_tol=1e-15)
        assert replace(one, mean=0, std=1, missing=0) == replace(other, mean=0, std=1, missing=0)
    if parts == 1:
        assert found.features == whole.features


@pytest.mark.parametrize(
    ("targets", "kind", "values"),
    [([[0] * 30, [1] * 30], "category", ("0", "1")),
     ([["b"] * 30, ["a"] * 20 + ["b"] * 10], "category", ("a", "b")),
     ([[0, 1, 2] * 10, [3, 4, 5] * 10], "number", ())],
)  # fmt: skip
def test_classes_of_all_nodes_are_classes(targets, kind, values):
    surveys = [survey(table(30, seed).assign(churn=values)) for seed, values in enumerate(targets)]
    assert refused(dict(enumerate(surveys))) == {}
    found = columns_of(merged(surveys), WISHES).target[0]
    assert (found.kind, found.values) == (kind, values)


def test_nothing_of_few_rows_is_told():
    frame = table(40).assign(
        few=[*[1.25, 2.5], *[np.nan] * 38],
        plan=[*["secret"] * (LEAST - 1), *["known"] * (41 - LEAST)],
        note=[f"text {number}" for number in range(40)],
        extreme=[987654.5, *range(39)],
    )
    said = survey(frame).to_bytes()
    text = zlib.decompress(said).decode()
    assert all(word not in text for word in ("secret", "text 1", "987654", "1.25", "1.875"))
    parts = {each.name: each for each in Survey.from_bytes(said).parts}
    assert (parts["plan"].counts, parts["plan"].unnamed) == ({"known": 41 - LEAST}, LEAST - 1)
    assert (parts["few"].known, parts["few"].told, parts["few"].column.mean) == (2, 0, 0.0)
    assert (parts["note"].texts, parts["note"].counts) == (40, {})
    with pytest.raises(Problems, match=r"note: 40 different texts in 40 rows .*skip=\[note\]"):
        columns_of(Survey.from_bytes(said), WISHES)


def test_a_problem_is_told_without_cells():
    frame = table(40).assign(age=[*["12 k"] * 3, *map(str, range(37))])
    found = survey(frame)
    assert found.bad == {"age": "no number: fix them, or name them in dataset.missing="}
    good = survey(table(40))
    assert refused({1: found, 2: good, 3: good})[1].startswith("age is no number: fix them")
    with pytest.raises(Problems, match="age: no number: fix them"):
        columns_of(merged([found, found]), WISHES)


def test_nodes_unlike_most_are_refused():
    frame = table(40)
    lists = frame.assign(list=[[1.0, 2.0, 3.0]] * 40)
    nodes = [frame, frame, frame.drop(columns="plan"), lists, frame.assign(extra=range(40))]
    nodes += [frame.assign(plan=np.arange(40) % 3), frame.assign(age=np.nan)]
    found = refused(dict(enumerate(map(survey, nodes))))
    assert {*found} == {2, 3, 5}
    assert found[2] == "plan is missing, and a category at most nodes (dataset.kinds= decides)"
    assert "list is a list of 3 values, and a list of 4 values at most nodes" in found[3]
    assert "plan is a number, and a category at most nodes" in found[5]
    kept = [survey(each) for at, each in enumerate(nodes) if at not in found]
    columns = columns_of(merged(kept), WISHES)
    assert ("extra", "not at all nodes") in columns.left
    two = columns_of(merged(kept[:2]), WISHES)
    assert two.classes == columns.classes
    two = [survey(frame), survey(frame.drop(columns="churn").assign(plan=1.5))]
    assert refused(dict(enumerate(two))) == {}  # most nodes are more than half
    assert ("plan", "not of one kind at all nodes") in merged(two).left.items()
    with pytest.raises(Problems, match="churn: not at all nodes"):
        columns_of(merged(two), WISHES)


GOOD = Part(Column("a", "category"), 40, 40, 0, counts={"x": 20}, unnamed=20, texts=5)


@pytest.mark.parametrize(
    "part",
    [{"rows": -1}, {"rows": 2.0}, {"known": 41}, {"counts": {"x": 30}}, {"told": 7},
     {"rows": 1 << 60, "known": 1 << 60}, {"counts": {f"{n}": 0 for n in range(81)}},
     {"counts": {"x" * 101: 6}}, {"texts": None}, {"texts": True}, {"other": 1}, {"column": {}},
     {"column": asdict(Column("a", std=1e200))}, {"column": {"name": "a", "kind": "b"}},
     {"column": {"name": "a", "mean": math.nan}}, {"column": {"name": "a", "values": ["b", "c"]}}],
)  # fmt: skip
def test_a_hostile_survey_is_refused(part):
    plain = asdict(Survey((GOOD,), {}))
    assert Survey.from_bytes(zlib.compress(json.dumps(plain).encode())) == Survey((GOOD,), {})
    plain["parts"][0].update(part)
    with pytest.raises(TaskError, match="its survey is not valid"):
        Survey.from_bytes(zlib.compress(json.dumps(plain).encode()))


@pytest.mark.parametrize(
    "said",
    [b"", b"x", zlib.compress(b"[" * 100_000), zlib.compress(b"{}"),
     zlib.compress(b" " * (1 << 25)), Survey((GOOD, GOOD), {}).to_bytes(),
     Survey((GOOD,), {"a": "b"}).to_bytes()],
)  # fmt: skip
def test_hostile_bytes_are_refused(said):
    with pytest.raises(TaskError, match="its survey is not valid"):
        Survey.from_bytes(said)


def test_a_device_says_how_many_values_are_unknown(tmp_path, caplog):
    columns = learned(table(40)[["plan", "age", "churn"]]).to_json()
    file = tmp_path / "kitchen.csv"
    rows = table(40)[["plan", "age", "churn"]].assign(age=-1.0)
    rows.loc[:4, "plan"] = "new"
    rows.to_csv(file, index=False)
    for _ in range(2):  # the source does not remember; a run reads once a process
        read_table(str(file), "churn", columns=columns, on_device=True)
    assert [each.message for each in caplog.records] == [
        f"{file}: 12.5 % of plan is unknown, such as new"
    ] * 2
