"""Groups, references, curves and parts of messages are computed from the runs' files."""

import numpy as np
import pytest

from edgewire.report.curves import Axis, all_bytes, column, mean_curve
from edgewire.report.estimate import estimate
from edgewire.report.format import one_line
from edgewire.report.html.canvas import inline
from edgewire.report.html.pictures import a_round, density, parts_of
from edgewire.report.html.run_data import load, reference_of, thinned
from edgewire.report.link_time import own_links
from edgewire.report.node_table import not_answering, notable, read_nodes
from edgewire.report.runs import read_settings
from edgewire.report.style import THEME
from tests.report.made_runs import add_run, node, write_nodes

ENDS = (0.7, 0.8, 0.96)


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_bands_say_what_the_seeds_allow_until_the_shortest_run_ends(seeds, tmp_path):
    for seed in range(seeds):
        values = (0.1, None, ENDS[seed], *[0.9] * (seed == 1))
        add_run(tmp_path / str(seed), f"x=1 seed={seed}", values)
    (group,) = load([tmp_path]).groups
    rows, up = group.histories.values(), Axis("", column("accuracy"))
    found = mean_curve(rows, Axis("", column("round")), up)
    assert list(found.x) == [0, 2]
    known = estimate(ENDS[:seeds])
    assert found.mean[-1] == pytest.approx(known.mean)
    ends = {1: (0.7, 0.7), 2: (0.7, 0.8)}
    ends[3] = known.mean - (known.half or 0), known.mean + (known.half or 0)
    assert (found.low[-1], found.high[-1]) == pytest.approx(ends[seeds])
    found = mean_curve(rows, Axis("", column("round"), log=True), up)
    assert list(found.x) == [2]


def test_bytes_and_density_are_those_between_rows(tmp_path):
    add_run(tmp_path, "x=1 seed=0")
    (group,) = load([tmp_path]).groups
    rows = group.histories[0]
    assert [*a_round(all_bytes("uplink"))(rows, group)][1:] == [10_000, 10_000]
    assert [*density(rows, group)] == pytest.approx([np.nan, 1.0, 1.0], nan_ok=True)


def test_a_group_is_compared_with_the_uncompressed_one_most_like_it(tmp_path):
    job = 0
    for lr in ("0.1", "0.2"):
        for method, up in (("none", 10_000), ("f2i", 2000)):
            add_run(tmp_path / str(job), f"lr={lr} compression={method} seed=0", up=up, down=up)
            job += 1
    add_run(tmp_path / "other", "dataset=mnist lr=0.1 seed=0", result={"dataset": "mnist"})
    groups = load([tmp_path]).groups
    of = [(group, reference_of(group, groups)) for group in groups]
    assert [(dict(a.overrides), dict(b.overrides)) for a, b in of if b] == [
        ({"lr": lr, "compression": "f2i"}, {"lr": lr, "compression": "none"})
        for lr in ("0.1", "0.2")
    ]


def test_a_diverged_run_is_no_reference(tmp_path):
    """Nor is a run that ended early, or one with other conditions."""
    plain = {"up": 10_000, "down": 10_000}
    add_run(tmp_path / "0", "compression=none seed=0", result={"diverged": True}, **plain)
    add_run(tmp_path / "1", "compression=none nodes=5 seed=0", result={"rounds": 9}, **plain)
    add_run(tmp_path / "2", "compression=f2i seed=0", up=500, down=500)
    assert [reference_of(g, groups) for groups in [load([tmp_path]).groups] for g in groups][
        2:
    ] == [None]
    more = {"result": {"nodes": 99}}
    add_run(tmp_path / "3", "compression=none nodes=99 seed=0", **more, **plain)
    found = load([tmp_path]).groups
    assert reference_of(found[2], found) is None
    add_run(tmp_path / "4", "compression=none downlink=full strategy.x=1 seed=0", **plain)
    found = load([tmp_path]).groups
    assert reference_of(found[2], found) is found[4]


def test_long_histories_keep_evaluations_and_both_ends():
    rows = [{"round": at, "accuracy": 0.5 if at % 100 == 7 else None} for at in range(10_000)]
    found = thinned(rows, "accuracy", 50)
    assert len(found) <= 100
    assert (found[0], found[-1]) == (rows[0], rows[-1])
    assert sum(row["accuracy"] is not None for row in found) >= 50
    assert thinned(rows[:50], "accuracy", 50) == rows[:50]


def test_parts_add_up_to_all_bytes(tmp_path):
    more = {"uplink_index_bytes": 30, "uplink_value_bytes": 60}
    result = {"uplink_bytes": 100, "uplink_header_bytes": 5, "uplink_other_bytes": 7, **more}
    add_run(tmp_path / "new", "x=1 seed=0", result=result)
    add_run(tmp_path / "old", "x=2 seed=0", result={"uplink_bytes": 100})
    new, old = load([tmp_path]).groups
    assert list(parts_of(new, "uplink").values()) == [60, 30, 10, 5, 7]
    assert list(parts_of(old, "uplink").values()) == [0, 0, 100, 0, 0]


def test_settings_refer_to_keys_and_never_to_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    text = "nodes: 5\na: {n: '${nodes}', list: [1, 2]}\ne: '${oc.env:SECRET}'\nx: '${x}'\non: true"
    add_run(tmp_path, "x=1 seed=0", config=text)
    assert read_settings(tmp_path) == {
        "nodes": "5", "a.n": "5", "a.list": "[1, 2]", "e": "${oc.env:SECRET}", "x": "${x}",
        "True": "true",
    }  # fmt: skip
    (tmp_path / ".hydra" / "config.yaml").write_text("!!python/object:os.system {}")
    assert read_settings(tmp_path) == {}
    assert own_links(load([tmp_path]).groups[0].settings).up_mbps is None


def test_text_is_one_line():
    assert one_line("a\n b\x00c\u202e\td") == "a b c d"
    assert one_line("x" * 200) == "x" * 159 + "…"


def luminance(colour):
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_text_has_contrast_on_all_its_grounds(theme):
    colours = {name: both[theme] for name, both in THEME.items()}
    for name, colour in colours.items():
        if name in ("ink", "muted") or name.startswith("group"):
            assert contrast(colour, colours["surface"]) >= 4.5, name
        if name.startswith("part") or name == "hover":
            assert contrast(colours["ink"], colour) >= 4.5, name


def test_a_picture_keeps_its_texts_and_changes_its_colours():
    svg = (
        '<?xml version="1.0"?>\n<svg width="1pt"><title>T</title><g id="g0"><text style="font: '
        '11px x; fill: #1c2128">lr=0.00051 id="a" #1c2128</text></g>\n</svg>'
    )
    found = inline(svg, "name", 'A "b"', 300)
    assert '>lr=0.00051 id="a" #1c2128<' in found
    assert 'fill: var(--ink)"' in found
    assert '<g id="name-g0">' in found
    assert 'aria-label="A &quot;b&quot;"' in found


# Slow and silent nodes


@pytest.mark.parametrize(
    ("lags", "slow"),
    [
        ((1.04, 0.048, 1.04, 1.04, 0.137), [0, 2, 3]),  # most nodes are slow
        ((1.0, 1.1, 0.9, 1.2, 1.9), []),
        ((1.0, 1.0, 1.0, 4.0), [3]),
        ((1.0, 50.0), [1]),
        ((50.0,), []),
    ],
)
def test_slow_nodes_may_be_the_majority(lags, slow, tmp_path):
    add_run(tmp_path, "x=1 seed=0")
    write_nodes(tmp_path, [node(at, mean_lag=lag) for at, lag in enumerate(lags)])
    found = notable(read_nodes(load([tmp_path]).groups))
    assert sorted(each.number - 1 for each in found) == slow


@pytest.mark.parametrize("text", ["{", "[]", '{"nodes": 1}', '{"nodes": [1]}', '{"nodes": [{}]}'])
def test_a_damaged_node_file_is_as_none(text, tmp_path):
    add_run(tmp_path, "x=1 seed=0")
    (tmp_path / "nodes.json").write_text(text)
    assert notable(read_nodes(load([tmp_path]).groups)) == []


def asked(sent, heard, waiting=True, lag=1.0):
    return {"sent": sent, "heard": heard, "waiting": waiting, "mean_lag": lag}


def test_an_open_message_counts_when_it_is_overdue():
    nodes = [
        asked(9.0, 9.0),  # an asynchronous server sends the next message at once
        asked(2.0, 2.0),
        asked(1.0, None, lag=None),
        asked(9.5, 9.8, waiting=False),
        asked(1.0, 5.0),  # an earlier message was lost
        {},
    ]
    assert not_answering(nodes, 10.0) == [False, True, True, False, False, False]
    assert not_answering(nodes, 10.0, gave_up=True) == [True, True, True, False, False, False]
    assert not_answering(nodes, None) == [False] * 6


def test_a_message_of_a_round_that_has_ended_is_lost():
    nodes = [asked(9.0, heard, waiting=False) for heard in (9.5, 8.5, None)]
    assert not_answering(nodes, 10.0) == [False, True, True]
