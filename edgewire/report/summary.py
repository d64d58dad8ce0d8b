"""The screen about a run: what is trained, how good it is, its bytes and times, and its nodes.

A run prints it at its end. The report's page and `python -m edgewire.report` give the same answers.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from edgewire.conf.privacy import NODE
from edgewire.report.estimate import wilson
from edgewire.report.format import NOTHING, human_bytes, human_seconds, one_line
from edgewire.report.link_time import own_name
from edgewire.report.node_table import NodeRecord, nodes_of, notable, weak_node
from edgewire.report.reader import readable, reading
from edgewire.report.runs import Row, Run, ended_early, number, run_with_result, whole_bytes
from edgewire.task.errors import listed
from edgewire.task.metric import Metric, main_of

WIDTH = 110  # characters of a line
NAME = 40  # characters of a name from elsewhere
HARDLY_FOUND = 0.5  # the share of a rare class below which weights of the classes may help
RISEN = 0.2  # by this share above its least value the loss on the test samples tells of overfitting
MORE = "more rounds= or another lr= may help (compare searches lr= for your own data)"
FLAT = 4  # evaluations that show that a metric is flat
BESIDE = 0.05  # a direction is compressed if its ratio differs from 1 by more
# what a preset is called; the others go by their names
WORDS = {
    "fedavg": "uncompressed",
    "fedavg_f2i": "int8 up",
    "fedavg_f2i_both": "int8 both ways",
    "edgewire": "few bytes",
}
# overrides of what a preset sets: the run's name states them
METHOD = (
    *("strategy", "strategy._target_", "strategy/optimizer", "strategy/staleness"),
    *("compression", "compression@gradients", "downlink", "local", "adapter"),
)
FILES = ("csv", "parquet", "npz", "table", "imagefolder")  # data sets that go by their file's name


def trained(run: Run, root: str = "") -> str:
    """Return what a run trains, in one line: data, model, nodes and method.

    `run`: its result need not be complete. `root`: the file of the data, or "null"; "": as the
    run's configuration says.
    """
    result = run.result
    data, name = _mapping(result, "data"), data_name(run, root)
    sizes = [f"{size:,.0f}" for key in ("train", "test") if (size := number(data.get(key)))]
    parts = [f"{' + '.join(sizes)} {one_line(str(data.get('kind')), NAME)}"] if sizes else []
    if classes := number(data.get("classes")):
        parts.append(f"{classes:.0f} classes")
    size = number(result.get("parameters"))
    model = one_line(str(result.get("model", "")), NAME)
    model += "" if size is None else f", {size:,.0f} parameters"
    about = f"{name} ({', '.join(parts)})" if parts else name
    method = name_of(run)
    nodes, words = number(result.get("nodes")), WORDS.get(method, method)
    count = NOTHING if nodes is None else f"{nodes:,.0f}"
    shorter = f"{model} · {count} node{'s' * (nodes != 1)} · {words}"
    whole = f"{about} · {shorter}"
    lines = (whole + f" ({method})" * (words != method), whole, f"{name} · {shorter}")
    return next((line for line in lines if len(line) <= WIDTH), one_line(lines[-1], WIDTH))


def data_name(run: Run, root: str = "") -> str:
    """Return the name of a run's data set, or of its file; `root`: as for `trained`."""
    name = one_line(str(run.result.get("dataset", "")), NAME)
    if name not in FILES:
        return name
    root = root or run.configuration.get("dataset.root", "null")
    return one_line(Path(root).name, NAME) if root != "null" else name


def name_of(run: Run) -> str:
    """Return a run's name: its preset, and the choices that replace the preset's own."""
    overrides, preset = run.overrides, str(run.result.get("algorithm"))
    if "experiment" in overrides and "algorithm" not in overrides:  # it may set any group
        preset = f"experiment={overrides['experiment']} ({run.result.get('strategy')})"
    chosen = ", ".join(f"{key}={overrides[key]}" for key in METHOD if key in overrides)
    return f"{preset} with {chosen}" if chosen else preset


def screen(folder: Path) -> list[str]:
    """Return the lines about a run: what is trained, the answers, and the next commands.

    Raises `ResultsError` for a folder without a result, and for a damaged one.
    """
    with reading(folder):
        run = run_with_result(folder)
        result, rows = run.result, answers(run)
        where = shlex.quote(str(shown(folder)))
        use = [f"python run.py predict {where} FILE", "use the model"]
        more = [f"python -m edgewire.report {where}", "curves, bytes, nodes; then: compare"]
        weak = result.get("diverged") or is_no_better(result, main_of(result))
        nexts = [more] if not result["client_updates"] else [more, use] if weak else [use, more]
        return [trained(run), *laid_out(rows), *next_lines(rows, *nexts)]


def shown(path: Path) -> Path:
    """Return a path as seen from the working directory, if the path is inside of it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def laid_out(rows: Mapping[str, str]) -> list[str]:
    """Return the rows as lines of at most `WIDTH` characters: names at the left, then the texts."""
    width = _width(rows)
    wrapper = textwrap.TextWrapper(
        WIDTH, subsequent_indent=" " * width, break_long_words=False, break_on_hyphens=False
    )
    return [line for name in rows for line in wrapper.wrap(f"{name:{width}}{rows[name]}")]


def next_lines(rows: Mapping[str, str], *commands: Sequence[str]) -> list[str]:
    """Return lines with commands to paste, below `rows`, and what each is for if there is space."""
    width = max(len(command) for command, _ in commands) + 3
    lines = []
    for at, (command, what) in enumerate(commands):
        line = f"{'' if at else 'next':{_width(rows)}}{command}"
        long = f"{line}{'':{width - len(command)}}{what}"
        lines.append(long if len(long) <= WIDTH else line)
    return lines


def _width(rows: Mapping[str, str]) -> int:
    return max(10, *map(len, rows)) + 1


def answers(run: Run) -> dict[str, str]:
    """Return what the files of a run tell, by names of at most a few letters; the failures first.

    Raises the exceptions of damaged files (`edgewire.report.reader.reading`).
    """
    assert run.folder is not None
    result, main = run.result, run.metric
    done, rounds = (number(result.get(key)) for key in ("round", "rounds"))
    one, several = ("push", "pushes") if "staleness" in result else ("round", "rounds")
    unit = one if rounds == 1 else several
    at = f"{done:g} of " * ended_early(result) + f"{rounds:g} {unit}" if rounds else unit
    stopped = result.get("stopped")
    virtual = None if result.get("link_seconds") else number(result.get("virtual_seconds"))
    rows = {
        "stopped": one_line(f"after {at}: {stopped}") if stopped else "",
        "diverged": f"the model has diverged in {at}" if result.get("diverged") else "",
        main.name: _measured(run, main),
        "privacy": privacy_told(result),
        "classes": _worst_class(run),
        "up, down": bytes_told(result),
        **_over_a_link(run),
        **node_rows(result, nodes_of(run), main),
        "files": f"{shown(run.folder)}; {at} in {human_seconds(result['seconds'])}"
        + (f", on the virtual network {human_seconds(virtual)}" if virtual else "")
        + f", seed {result['seed']}",
    }
    return {name: text for name, text in rows.items() if text}


def interval_of(result: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the accuracy's 95 % interval by the number of test samples, as shares.

    None: the main metric is another one, or is not measured on samples of a known number.
    """
    value, count = number(result.get("accuracy")), number(_mapping(result, "data").get("test"))
    main, objective = main_of(result).name, result.get("objective")
    if value is None or not count or (main, objective) != ("accuracy", "Classification"):
        return None
    return wilson(value, count)


def is_no_better(result: Mapping[str, Any], main: Metric) -> bool:
    """Return whether a model's main metric is not surely better than the constant predictor's."""
    value, other = (number(each.get(main.name)) for each in (result, _mapping(result, "constant")))
    if value is None or other is None:
        return False
    return main.reaches(other, (interval_of(result) or (value,))[0])


def _measured(run: Run, main: Metric) -> str:
    """Return the main metric with its interval, the best value, and the constant predictor's."""
    result = run.result
    value, best = (number(result.get(f"{kind}{main.name}")) for kind in ("", "best_"))
    if value is None:
        return "not measured: no samples to test on, or their results are hidden or at the nodes"
    data, constant = (_mapping(result, key) for key in ("data", "constant"))
    count, places, half = number(data.get("test")), None, None

    def text(share: float | None) -> str:
        return (
            main.text(share) if places is None or share is None else f"{100 * share:.{places}f} %"
        )

    parts = [text(value)]
    if (found := interval_of(result)) is not None:
        low, high = found
        half = (high - low) / 2
        places = 1 if half > 0.005 else 2
        kind = one_line(str(data.get("kind")), NAME)
        interval = f"{100 * low:.{places}f} to {100 * high:.{places}f}"
        parts = [f"{text(value)} (95 % interval by {count:,.0f} test {kind}: {interval})"]
    elif data and not count:
        layers = ", each with its own personal layers" * bool(result.get("personal"))
        parts = [f"{text(value)} of what the nodes hold back{layers}"]
    rows = readable(run.evaluations) or []
    if rows and rows[0]["round"] == 0 and run.configuration.get("model.file", "null") != "null":
        parts.append(f"from {text(rows[0][main.name])} (start)")
    if best is not None and text(best) != text(value):
        at = next((row["round"] for row in rows if row[main.name] == best), None)
        parts.append(f"best {text(best)}" + ("" if at is None else f" (round {at:g})"))
    if half is not None and (flat := _flat_since(rows, main.name, half)) is not None:
        parts.append(f"flat since round {flat:g}")
    if (other := number(constant.get(main.name))) is not None:
        who = "the median" if main.name == "mae" else "the mean"
        if constant.get("class") is not None:
            who = f'"{one_line(str(constant["class"]), NAME)}"'
        worse = is_no_better(result, main)
        parts.append("no better than " * worse + f"always {who}: {text(other)}")
        parts += [MORE] * worse
    known = [row for row in rows if None not in (row.get("loss"), row.get("train_loss"))]
    least, last = min(known, key=lambda row: row["loss"], default={}), known[-1] if known else {}
    risen = known and last["loss"] - least["loss"] > RISEN * abs(least["loss"])
    if risen and last["train_loss"] < least["train_loss"]:
        losses = f"{least['loss']:.2g}, now {last['loss']:.2g}"
        parts.append(f"its loss is least in round {least['round']:g} ({losses}): fewer rounds=")
    return "; ".join(parts)


def _mapping(result: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a mapping of a result, which earlier versions lack and which may be damaged."""
    found = result.get(key)
    return found if isinstance(found, Mapping) else {}


def _flat_since(rows: Sequence[Row], name: str, half: float) -> float | None:
    """Return the round since which a metric stays within `half` of its last value; or None."""
    values = [row[name] for row in rows]
    moving = [at for at, value in enumerate(values) if abs(value - values[-1]) > half]
    first = moving[-1] + 1 if moving else 0
    return float(rows[first]["round"]) if 0 < first <= len(values) - FLAT else None


def confusion_of(result: Mapping[str, Any]) -> tuple[list[str], list[list[int]]]:
    """Return the classes' names and the confusion matrix; both empty if it is damaged."""
    table, names = result.get("confusion"), result.get("class_names")
    if not isinstance(table, list) or not table or not isinstance(names, list):
        return [], []
    flat = [value for row in table for value in row]
    if None in map(number, flat) or {*map(len, table)} != {len(table)} or min(flat) < 0:
        return [], []
    return [one_line(str(dict(enumerate(names)).get(k, k)), NAME) for k in range(len(table))], table


def _worst_class(run: Run) -> str:
    """Return the class of which the model finds the smallest share, and what it takes it for."""
    name, table = confusion_of(run.result)
    if not table:
        return ""
    found = [(row[at] / sum(row), at) for at, row in enumerate(table) if sum(row)]
    share, at = min(found, default=(1.0, 0))
    if share == 1.0:
        return "of each class all were found"
    wrong = max((k for k in range(len(table)) if k != at), key=lambda k: table[at][k])
    text = f'worst: "{name[at]}", {100 * share:.0f} % of {sum(table[at]):,} found'
    rare = sum(table[at]) * len(found) < sum(map(sum, table)) and share < HARDLY_FOUND
    weights = rare and run.configuration.get("objective.class_weights") == "null"
    hint = "; objective.class_weights=balanced may help" * weights
    return f'{text}, {table[at][wrong]:,} taken for "{name[wrong]}"{hint}'


def privacy_told(result: Mapping[str, Any]) -> str:
    """Return a run's epsilon and delta, and its accountant; "" without differential privacy."""
    found = _mapping(result, "privacy")
    words = (one_line(str(found.get(key)), WIDTH) for key in ("text", "method"))
    unit = "node" if hides_nodes(result) else "sample of a node"
    return "{} by {}, for one {}".format(*words, unit) if found else ""


def hides_nodes(result: Mapping[str, Any]) -> bool:
    """Return whether differential privacy hides who took part in a run."""
    return bool(_mapping(result, "privacy").get("unit") == NODE)


def bytes_told(result: Row) -> str:
    """Return the bytes in both directions, and how many times fewer they are."""
    sizes = [whole_bytes(result, way) for way in ("uplink", "downlink")]
    text = ", ".join(human_bytes(sent) for sent, _ in sizes)
    if min(min(pair) for pair in sizes) <= 0:  # nothing was sent, or the rest is unknown
        return text
    ratios = [plain / sent for sent, plain in sizes]
    if is_plain(result):
        return f"{text}: this run is not compressed"
    without = ", ".join(human_bytes(plain) for _, plain in sizes)
    told = f"{' and '.join(map(times, ratios))} times fewer than"
    if min(ratios) < 1 + BESIDE:  # one direction has as many bytes, or more
        told = f"{' and '.join(f'{100 / ratio:,.0f} %' for ratio in ratios)} of the bytes"
    return f"{text}: {told} without compression ({without})"


def is_plain(result: Row) -> bool:
    """Return whether a run was not compressed in either direction."""
    sizes = [whole_bytes(result, way) for way in ("uplink", "downlink")]
    return all(abs(plain - sent) <= BESIDE * sent for sent, plain in sizes)


def times(ratio: float) -> str:
    """Return a ratio as a sentence shows it: 5.37 -> '5.4', 67.1 -> '67'."""
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"


def _over_a_link(run: Run) -> dict[str, str]:
    """Return how long the run's messages take over its network, or a usual link; {} if unknown."""
    result = run.result
    if (seconds := number(result.get("link_seconds"))) is None:
        return {}
    name = own_name(run.configuration) or one_line(run.overrides.get("network", ""), 20)
    down, up = (
        "no limit" if rate is None else f"{rate:g} Mbit/s"
        for rate in (number(result.get(f"link_{way}_mbps")) for way in ("down", "up"))
    )
    text = human_seconds(seconds) + (f" at {down} down, {up} up" if not name else "")
    without = number(result.get("link_seconds_float32"))
    if without is not None and abs(without - seconds) > BESIDE * seconds:
        text += f", without compression {human_seconds(without)}"
    text += "; at a duty cycle of 1 % about 100 times as long" * (name == "lora")
    return {f"over {name}" if name else "on a link": text}


def node_rows(result: Row, nodes: Sequence[NodeRecord], main: Metric) -> dict[str, str]:
    """Return what is wrong with the nodes of a run, by kinds; `nodes`: how many answered."""
    silent = [node.label for node in nodes if node.unanswered]
    slow = [node for node in notable(nodes) if node.slow and not node.unanswered]
    rows = {
        "failed": _failed(result, nodes),
        "silent": f"{listed(silent, 3)}: no answer to the last message" if silent else "",
        "slow": _slow(slow, nodes),
    }
    if weak := weak_node(nodes, main):
        own, mean = map(main.text, weak[1:])
        rows["weak"] = f"{weak[0].label}: {own} on its own samples, the mean node {mean}"
    if nodes and not result["client_updates"]:
        rows["nodes"] = "not one update was used: the model is as it was before the first round"
    elif nodes:
        good = [n for n in nodes if not n.failures]
        fine = sum(n.count("replies") == n.count("messages") or n.waits for n in good)
        total = number(result.get("nodes")) or 0
        part = f" listed nodes (of {total:,.0f})" * (total > len(nodes))
        rows["nodes"] = f"{fine:,} of {len(nodes):,}{part} answered every message"
        rows["nodes"] += " without a failure" * (len(good) < len(nodes))
        known = any(node.lag is not None for node in nodes)
        rows["nodes"] += "; none is slow" if known and not slow else ""
    return {name: text for name, text in rows.items() if text}


def _failed(result: Row, nodes: Sequence[NodeRecord]) -> str:
    """Return how many updates failed, at which nodes and why; "" if none did."""
    if not (failures := result["failures"]):
        return ""
    worst = sorted((n for n in nodes if n.failures), key=lambda node: -node.failures)
    told, reason = [], ""
    for node in worst[:3]:
        before, reason = reason, one_line(node.reason, 60)
        told.append(f"{node.failures:g} of {node.label}" + f", {reason}" * (reason != before))
    more = f" and {len(worst) - 3} more nodes" if len(worst) > 3 else ""
    text = f"{failures:,g} of {failures + result['client_updates']:,g} updates"
    return f"{text}: {'; '.join(told)}{more}" if told else text


def _slow(slow: Sequence[NodeRecord], nodes: Sequence[NodeRecord]) -> str:
    if not slow:
        return ""
    first, known = slow[0], [s for node in nodes if (s := node.count("samples")) is not None]
    text = f"{first.label}: {human_seconds(first.lag)} a reply, {times(first.times or 0)} times"
    text += " the usual"
    usual, own = median(known) if known else 0, first.count("samples")
    if own is not None and own > 2 * usual:
        text += f"; {own:,g} samples, the median node has {usual:,g}"
    others = [node.label for node in slow[1:]]
    return f"{text}; also {listed(others, 3)}" if others else text
