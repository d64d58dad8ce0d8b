"""What the columns of a table are, and all that cannot be taken, in one error."""

import numpy as np
import pandas
import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from edgewire.task.datasets.table import table, without_rows
from edgewire.task.errors import MissingOption, NoData, TaskError
from edgewire.task.override_text import with_quotes
from edgewire.task.tables.columns import Columns, Reading
from edgewire.task.tables.learn import Problem, Problems, Wishes
from edgewire.task.tables.read import ids_of, inputs_of, rows_of, targets_of

ROWS = 60
random = np.random.default_rng(0)
GOOD = {
    "age": random.normal(40, 9, ROWS).round(2),
    "plan": random.choice(["basic", "plus"], ROWS),
    "churn": random.choice(["no", "yes"], ROWS),
}


def file_of(folder, columns, name="t.csv"):
    pandas.DataFrame(columns).to_csv(folder / name, index=False)
    return str(folder / name)


def test_all_columns_that_cannot_be_taken_are_in_one_error(tmp_path):
    columns = {
        **GOOD,
        "note": [f"note {row}" for row in range(ROWS)],
        "id": random.permutation(ROWS) ** 2,
        "income": [*GOOD["age"][:-2], "12 k", "unknown"],
        "user_id": random.integers(0, 2**40, ROWS),
        "since": ["01/02/2020", "03/04/2021"] * (ROWS // 2),
    }
    columns["churn"] = [None, *columns["churn"][1:]]
    with pytest.raises(Problems) as caught:
        table(file_of(tmp_path, columns), "churn")
    head, *rows, mended = caught.value.screen.splitlines()
    assert head.endswith("t.csv: 6 columns cannot be taken as they are")
    words = {row.split()[0]: row for row in rows}
    assert words.keys() == {"churn", "note", "id", "income", "user_id", "since"}
    assert '"12 k" in row 59 and 1 more' in words["income"]
    assert "1 of 60 rows without a value" in words["churn"]
    assert "60 different texts in 60 rows" in words["note"]
    assert "row number?" in words["id"]
    assert "row number?" in words["user_id"]
    assert "day or month first?" in words["since"]
    assert "\n" not in str(caught.value)
    assert "dataset.drop_missing=true" in mended
    assert "dataset.missing=[" in mended
    options = {"drop_missing": True, "skip": ["note", "id", "user_id"]}
    options["missing"] = ["12 k", "unknown"]
    kinds = {"since": "%d/%m/%Y"}
    data = table(file_of(tmp_path, columns), "churn", **options, kinds=kinds)
    kept = [each.name for each in data.columns.features]
    assert kept == ["age", "plan", "income", "since"]
    assert len(data.train) + len(data.test) == ROWS - 1


NAMES = st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), min_size=1)


@given(NAMES)
def test_the_overrides_of_an_error_name_any_column(names):
    names = list(dict.fromkeys(names))
    problems = [(name, Problem("found", "cure", "skip")) for name in names]
    mended = Problems("t.csv", problems, Wishes()).screen.splitlines()[-1]
    import shlex

    (word,) = shlex.split(mended.removeprefix("then add: "))
    (found,) = OverridesParser.create().parse_overrides([word])
    assert found.value() == names


LEFT = {
    "pandas' index": {"": range(ROWS), **GOOD},
    "numbers the rows": {"customer_id": random.permutation(ROWS) + 100, **GOOD},
    "constant": {**GOOD, "country": ["DE"] * ROWS},
    "empty": {**GOOD, "later": [None] * ROWS},
    "dataset.skip": {**GOOD, "id": range(ROWS)},
}


@pytest.mark.parametrize("why", LEFT)
def test_columns_without_use_are_left_out_with_a_line(why, tmp_path):
    options = {"skip": ["id"]} if why == "dataset.skip" else {}
    data = table(file_of(tmp_path, LEFT[why]), "churn", **options)
    assert [each.name for each in data.columns.features] == ["age", "plan"]
    ((_, reason),) = data.columns.left
    assert reason == why
    lines = data.columns.lines()
    assert len(lines) <= 7
    assert any(reason in line for line in lines)


TARGETS = {
    "text": (["b", "a"], ("a", "b"), torch.int64),
    "true and false": ([True, False], ("False", "True"), torch.int64),
    "two whole numbers": ([2, 1], ("1", "2"), torch.int64),
    "more whole numbers": ([3, 1, 2], (), torch.float32),
    "broken numbers": ([0.5, 1.5], (), torch.float32),
    "codes": (["01067", "10115", "80331"], ("01067", "10115", "80331"), torch.int64),
    "numbers of several lengths": ([7, 10, 80331], (), torch.float32),
}


@pytest.mark.parametrize("case", TARGETS)
def test_a_target_is_a_class_or_a_number(case, tmp_path, caplog):
    values, names, kind = TARGETS[case]
    columns = {**GOOD, "churn": values * (ROWS // len(values))}
    data = table(file_of(tmp_path, columns), "churn", test_share=0)
    assert (data.class_names, data.train.targets.dtype) == (names, kind)
    whole = not names and float(values[0]).is_integer()
    assert ("for classes add 'dataset.kinds={churn:category}'" in caplog.text) == whole
    if not names:
        assert data.train.targets.tolist() == columns["churn"]
        assert data.columns.target[0].mean == pytest.approx(np.mean(columns["churn"]))
    both = table(file_of(tmp_path, {**GOOD, "y": GOOD["age"] * 2}), ["y", "age"], test_share=0)
    assert both.train.targets.shape == (ROWS, 2)
    assert table(file_of(tmp_path, GOOD), None).train.targets == ()


@pytest.mark.parametrize("form", ["csv", "parquet", "tsv"])
def test_codes_keep_their_zeros(form, tmp_path):
    """Rows without a value and codes without a zero among the first rows change nothing."""
    codes = ["99084", None, "01067"] * (ROWS // 3)
    frame, file = pandas.DataFrame({**GOOD, "zip": codes}), str(tmp_path / f"t.{form}")
    if form == "parquet":
        frame.to_parquet(file)
    else:
        frame.to_csv(file, index=False, sep={"csv": ",", "tsv": "\t"}[form])
    columns = table(file, "churn").columns
    assert sorted(columns.features[-1].values) == ["01067", "99084"]
    for source in (file, frame):
        found = inputs_of(rows_of(source, columns), columns)[:, -1].tolist()
        names = [
            None if place != place else columns.features[-1].values[int(place)] for place in found
        ]
        assert names == codes


WRONG = {
    "an absent target": ({"target": "churned"}, "did you mean churn"),
    "the start of a name": ({"target": "ch"}, "did you mean churn"),
    "an absent input": (
        {"inputs": ["height"]},
        "no column height: give dataset.inputs=COLUMN of age",
    ),
    "an absent kind": ({"kinds": {"height": "number"}}, "no column height: give dataset.kinds="),
    "an unknown kind": ({"kinds": {"age": "numbr"}}, "kinds are number, category"),
    "the target as an input": ({"inputs": ["churn"]}, "not the target"),
    "no input": ({"skip": ["age", "plan"]}, "all are left out, age \\(dataset.skip\\)"),
    "dates as a target": ({"target": "day"}, "day: cells of date32.*name another"),
    "one class": ({"target": "one"}, "one class only"),
    "an unknown class": ({"classes": ["no", "maybe"]}, "'yes' is no known class"),
    "a wrong delimiter": ({"delimiter": "tabs"}, "a word: tab, space"),
    "a wrong decimal": ({"decimal": ";"}, "dataset.decimal"),
    "a broken kind": ({"kinds": {"plan": "number"}}, '"plus" in row 1 and 59 more'),
    "a broken date": ({"kinds": {"plan": "%d.%m.%Y"}}, "no date|date"),
    "columns of nobody": ({"columns": "[1, 2]"}, "not the JSON"),
    "an odd column": ({"columns": '{"features": [{"name": "a", "std": -1}]}'}, "not valid"),
    "an absent column": ({"columns": '{"features": [{"name": "height"}]}'}, "no column height"),
    "a device without columns": ({"on_device": True}, "dataset.columns=FILE"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_option_is_one_line(case, tmp_path):
    options, line = WRONG[case]
    more = {"one": ["a"] * ROWS, "day": pandas.date_range("2024-01-01", periods=ROWS)}
    name = options.get("target")
    root = file_of(tmp_path, {**GOOD, name: more[name]} if name in more else GOOD)
    with pytest.raises(TaskError, match=line) as caught:
        table(root, **{"target": "churn", **options})
    assert "\n" not in str(caught.value)


def test_rows_of_known_columns_are_refused_in_one_line(tmp_path):
    data = table(file_of(tmp_path, GOOD), "churn")
    good = pandas.DataFrame(GOOD)
    for frame, line in (
        (good.drop(columns="plan"), "no column plan"),
        (good.assign(age="old"), 'age has "old" in row 1 and 59 more.*: fix or empty these cells'),
        (pandas.concat([good, good], axis=1), "2 columns age"),
    ):
        with pytest.raises(TaskError, match=line):
            inputs_of(rows_of(frame, data.columns), data.columns)
    for value, line in (("maybe", "an unknown class \\('maybe'\\) in row 1"), (None, "no value")):
        with pytest.raises(TaskError, match=line):
            targets_of(rows_of(good.assign(churn=value), data.columns), data.columns)
    without = rows_of(good.drop(columns="churn"), data.columns)
    assert targets_of(without, data.columns) is None
    one = rows_of(good[:1].assign(plan="gold", age=None), data.columns)
    new = data.prepared(inputs_of(one, data.columns))
    assert new.tolist() == [[0, 0, 0]]  # an unknown text, and a gap that no training row had


def test_a_server_and_its_devices_share_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns = table(file_of(tmp_path, GOOD), "churn").columns.to_json()
    part = pandas.DataFrame(GOOD)[:20].assign(plan="plus", churn="no")
    device = table(file_of(tmp_path, part, "device.csv"), "churn", columns=columns, on_device=True)
    assert (len(device.train), len(device.test), device.class_names) == (20, 0, ("no", "yes"))
    assert device.prepared(device.train.inputs).shape == (20, 3)
    server = without_rows(columns)
    assert (len(server.train), server.classes, server.example.shape) == (0, 2, (2, 3))
    with pytest.raises(NoData):
        table("nowhere.csv", "churn", columns=columns)
    with pytest.raises(MissingOption):
        table("device.csv", "churn", on_device=True)


def test_columns_hold_no_references_and_keep_what_the_user_said_of_files():
    reading = Reading(missing=["-"], delimiter="tab")
    columns = Columns((), group="${lr} ???", reading=reading)
    assert "${" not in columns.to_json()
    assert Columns.from_json(columns.to_json()) == columns


def test_dates_as_texts_are_those_of_a_file(tmp_path):
    """A file's dates and a frame's, which are texts there, are the same inputs, in both ways."""
    days = [f"{1 + row % 28:02d}.0{1 + row % 9}.2024" for row in range(ROWS)]
    iso = [f"2024-0{1 + row % 9}-{1 + row % 28:02d} 10:30:00" for row in range(ROWS)]
    columns = {**GOOD, "day": days, "at": iso}
    frame = pandas.DataFrame(columns)
    frame.to_parquet(tmp_path / "t.parquet")  # texts stay texts there
    files = [file_of(tmp_path, columns), str(tmp_path / "t.parquet")]
    learned = [table(each, "churn").columns for each in files]
    kinds = [[(c.name, c.kind) for c in each.features[-2:]] for each in learned]
    assert kinds == 2 * [[("day", "date"), ("at", "time")]]
    found = [inputs_of(rows_of(each, c), c) for c in learned for each in (*files, frame)]
    assert all(torch.equal(found[0], each) for each in found[1:])


def test_new_rows_have_ids_and_unknown_texts_are_named(tmp_path, caplog):
    columns = {**GOOD, "key": [f"0{row}" for row in range(ROWS)]}
    data = table(file_of(tmp_path, columns), "churn", skip=["key"])
    new = {**columns, "plan": ["x"] * 2 + [*columns["plan"][2:]]}
    rows = rows_of(file_of(tmp_path, new), data.columns, ["key"])
    assert ids_of(rows, data.columns) == ("key", columns["key"])
    inputs_of(rows, data.columns)
    assert "3.33 % of plan is unknown, such as x" in caplog.text
    table(file_of(tmp_path, columns), "churn", skip=["key"])
    again = rows_of(file_of(tmp_path, {**new, "key": ["01"] * ROWS}), data.columns, ["key"])
    assert ids_of(again, data.columns) == ("key", ["01"] * ROWS)  # several readings of one


UNLIKE = {
    "another unit": ({"age": GOOD["age"] * 1000}, "100 % of age is far from the training's "),
    "no value": ({"age": [None] * ROWS}, "100 % of age has no value"),
    "no text": ({"plan": [None] * ROWS}, "100 % of plan has no value"),
    "as in training": ({}, ""),
    "a few outliers": ({"age": [1e9] * 9 + [*GOOD["age"][9:]]}, ""),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_columns_unlike_those_of_the_training_are_named(case, tmp_path, caplog):
    changed, line = UNLIKE[case]
    data = table(file_of(tmp_path, GOOD), "churn")
    assert not caplog.records
    rows = rows_of(pandas.DataFrame({**GOOD, **changed}), data.columns)
    inputs_of(rows, data.columns)
    assert [line in each.message for each in caplog.records] == [True] * bool(line)


def test_texts_among_numbers_are_named_as_missing_ones(tmp_path):
    """The printed override mends the table; those given before and the defaults count, too."""
    cells = [*GOOD["age"][:-3], "defekt", "k.A.", ""]
    columns = {**GOOD, "age": cells, "size": cells[::-1]}
    columns["size"][5] = "-"
    for before, mended in (
        (None, "'dataset.missing=[defekt,k.A.,'-']'"),
        ("defekt", "'dataset.missing=[defekt,k.A.,'-']'"),
    ):
        with pytest.raises(Problems) as caught:
            table(file_of(tmp_path, columns), "churn", missing=before)
        words = caught.value.screen.splitlines()[-1].replace("'\"'\"'", "'")
        assert words == f"then add: {mended}"
    data = table(file_of(tmp_path, columns), "churn", missing=["defekt", "k.A.", "-"])
    kinds = {each.name: (each.kind, round(ROWS * each.missing)) for each in data.columns.features}
    assert kinds == {"age": ("number", 3), "plan": ("category", 0), "size": ("number", 4)}
    target = {"plan": GOOD["plan"], "y": [*GOOD["age"][:-1], "bad"]}
    with pytest.raises(Problems) as caught:
        table(file_of(tmp_path, target), "y")
    assert caught.value.screen.splitlines()[-1].endswith("dataset.missing=[bad]'")
    many = {**GOOD, "age": ["-"] * 20 + [*GOOD["age"][20:]]}
    with pytest.raises(Problems, match="missing"):
        table(file_of(tmp_path, many), "churn")
    none = table(file_of(tmp_path, {**GOOD, "plan": ["NA", "x"] * 30}), "churn", missing=[])
    assert none.columns.features[1].values == ("NA", "x")  # a list without texts: empty cells only


@pytest.mark.parametrize("mark", [".", ","])
def test_new_numbers_that_do_not_tell_their_decimal_mark_have_that_of_the_training(mark, tmp_path):
    other = "," if mark == "." else "."

    def lines(name, *rows):
        (tmp_path / name).write_text("\n".join(["size;share;y", *rows]) + "\n", encoding="utf-8")
        return str(tmp_path / name)

    rows = [f"{2 + n % 7}{other}{100 + n};0{mark}{n + 10};{'ab'[n % 2]}" for n in range(40)]
    columns = table(lines("train.csv", *rows), "y").columns
    new = rows_of(lines("new.csv", f"5{other}316;1;a", f"1{other}900;0;b"), columns)
    assert inputs_of(new, columns)[:, 0].tolist() == [5316, 1900]


def test_percents_are_numbers_and_dropped_rows_leave_holes_in_ids(tmp_path):
    columns = {
        **GOOD,
        "id": range(3, 3 + 7 * ROWS, 7),
        "rate": [f"{row}.5 %" for row in range(ROWS)],
    }
    columns["churn"] = [None, *columns["churn"][1:30], None, *columns["churn"][31:]]
    data = table(file_of(tmp_path, columns), "churn", drop_missing=True)
    kinds = {each.name: each.kind for each in data.columns.features}
    assert kinds == {"age": "number", "plan": "category", "rate": "number"}
    assert dict(data.columns.left) == {"id": "numbers the rows"}


def test_groups_are_numbered_by_name(tmp_path):
    columns = {**GOOD, "shop": [f"shop {row % 3}" for row in range(ROWS)]}
    data = table(file_of(tmp_path, columns), "churn", group="shop", test_share=0)
    assert data.train.groups.tolist() == [row % 3 for row in range(ROWS)]
    assert data.group_names == ("shop 0", "shop 1", "shop 2")
    assert [each.name for each in data.columns.features] == ["age", "plan"]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("k=days [d]", "days [d]"),
        ("k=within 7 days", "within 7 days"),
        ("k=[Temperatur [°C],cost (EUR),b]", ["Temperatur [°C]", "cost (EUR)", "b"]),
        ("k=[größe,1]", ["größe", 1]),
        ("k='a [b]'", "a [b]"),
    ],
)
def test_names_with_brackets_and_other_letters_need_no_quotes(word, value):
    assert OverridesParser.create().parse_override(with_quotes(word)).value() == value
