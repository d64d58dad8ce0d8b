"""Makes runs, and the folders that runs and sweeps write."""

import json
import math
from html.parser import HTMLParser
from pathlib import Path

from edgewire.report.runs import Run

SCREENS = Path(__file__).parent / "screens"  # what a terminal shows of some runs
RESULT = {
    "accuracy": 0.98,
    "best_accuracy": 0.99,
    "loss": 0.1,
    "uplink_bytes": 1_000_000,
    "downlink_bytes": 4_000_000,
    "uplink_bytes_float32": 4_000_000,
    "downlink_bytes_float32": 4_000_000,
    "client_updates": 50,
    "failures": 0,
    "seconds": 12.0,
    "seed": 0,
}


def add_job(folder, overrides, history=(), finished=True, **result):
    """Write the files of a job; its seed is taken from its overrides `overrides`."""
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text(json.dumps(overrides.split()))
    seeds = [int(word[5:]) for word in overrides.split() if word.startswith("seed=")]
    if finished:
        full = RESULT | {"seed": seeds[0] if seeds else 0} | result
        (folder / "result.json").write_text(json.dumps(full))
    (folder / "history.jsonl").write_text(lines(history))


ACCURACIES = [0.1, 0.5, 0.9, 0.7, 0.8]


def made(accuracies=ACCURACIES, seed=0, curve=(), **result):
    """Return a run with an evaluation every 10 rounds; a round takes 1 MB up and 3 MB down."""
    rounds = [10.0 * at for at in range(len(accuracies))]
    columns = {
        "round": rounds,
        "accuracy": list(accuracies),
        "uplink_bytes": [1e6 * at for at in rounds],
        "downlink_bytes": [3e6 * at for at in rounds],
        **dict(curve),
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    measured = {
        "seed": seed,
        "accuracy": accuracies[-1],
        "best_accuracy": max(filter(None, accuracies), default=None),
        "evaluations": len(accuracies),
    }
    return Run({"lr": "1"}, RESULT | measured | result, lambda: rows)


def finals(*accuracies):
    """Return runs with the seeds 0, 1, ... and these accuracies at their ends."""
    return [made([accuracy], seed) for seed, accuracy in enumerate(accuracies)]


ROUNDS = 40


def row(number, rounds=ROUNDS, **more):
    """Return a row of the history of a run that goes on."""
    return {
        "round": number,
        "rounds": rounds,
        "loss": 2.3 * math.exp(-number / 10) + 0.1,
        "accuracy": 0.97 - 0.87 * math.exp(-number / 8),
        "uplink_bytes": 70_000 * number,
        "downlink_bytes": 90_000 * number,
        "seconds": 0.4 * number,
        **more,
    }


def lines(rows):
    return "".join(json.dumps(each) + "\n" for each in rows)


def write_history(folder, count, **more):
    """Write `count` rows of a run that goes on, from round 0 on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "history.jsonl").write_text(lines(row(number, **more) for number in range(count)))


def history(accuracies, up=1000, down=2000, name="accuracy", nodes=10, **more):
    """Return a history: in each round each of ten nodes sends `up` and receives `down` bytes."""
    return [
        {
            "round": at,
            "loss": 1.0,
            name: value,
            "train_loss": None if at == 0 else 1 / at,
            "uplink_bytes": at * nodes * up,
            "downlink_bytes": at * nodes * down,
            "uplink_bytes_float32": at * nodes * 10_000,
            "downlink_bytes_float32": at * nodes * 10_000,
            "uplink_other_bytes": 0,
            "downlink_other_bytes": 0,
            "uplink_header_bytes": 0,
            "downlink_header_bytes": 0,
            "uplink_entries": at * 10,
            "uplink_entries_whole": at * 1000,
            "client_updates": at * nodes,
            "failures": 0,
            "virtual_seconds": at * 0.5,
            "seconds": at * 0.1,
        }
        | more
        for at, value in enumerate(accuracies)
    ]


def add_run(folder, overrides, accuracies=(0.1, 0.5, 0.9), config=None, result=(), **options):
    """Write a finished run whose result is the last row of its history."""
    told = {key: options.pop(key) for key in ("metrics",) if key in options}
    rows = history(accuracies, **options)
    main = options.get("name", "accuracy")
    known = [value for value in accuracies if value is not None]
    last = rows[-1] | {f"best_{main}": max(known, default=None), "rounds": len(rows) - 1}
    about = {"algorithm": "fedavg", "dataset": "digits", "model": "mlp", "objective": "C",
             "nodes": options.get("nodes", 10), "stopped": None}  # fmt: skip
    add_job(folder, overrides, rows, **{**last, **about, **told, **dict(result)})
    if config is not None:
        (folder / ".hydra" / "config.yaml").write_text(config)


def node(place, **more):
    """Return an entry of `nodes.json`."""
    return {
        "node": 100 + place, "number": place + 1, "online": True, "messages": 10, "replies": 10,
        "failures": 0, "reason": None, "uplink_bytes": 100, "downlink_bytes": 200, "lag": 1.0,
        "mean_lag": 1.0, "samples": 20, "train_loss": 0.5, "accuracy": 0.9, "labels": [12, 8],
    } | more  # fmt: skip


def write_nodes(folder, nodes):
    """Write the file `nodes.json` of a run."""
    (folder / "nodes.json").write_text(json.dumps({"round": 2, "nodes": nodes}))


class Page(HTMLParser):
    """The text of a page, and how many pictures it has.

    `tables`: the cells of each table by its id. `text`: the text outside of tables. `handlers`: the
    attributes that are handlers of events.
    """

    def __init__(self, html):
        super().__init__()
        self.tables, self.text, self.svgs, self.handlers = {}, "", 0, []
        self._table, self._in_cell, self._raw = None, False, False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.handlers += [name for name in attrs if name.startswith("on")]
        if tag == "div" and (attrs.get("id") or "").startswith("table-"):
            self._table = self.tables.setdefault(attrs["id"].removeprefix("table-"), [])
        elif tag == "tr":
            self._table.append([])
        elif tag in ("td", "th"):
            self._table[-1].append("")
            self._in_cell = True
        elif tag == "figure":
            self.svgs += 1
        self._raw |= tag in ("style", "script")

    def handle_endtag(self, tag):
        self._in_cell &= tag not in ("td", "th")
        self._raw &= tag not in ("style", "script")

    def handle_data(self, data):
        if self._in_cell:
            self._table[-1][-1] += data
        elif not self._raw:
            self.text += data

    def column(self, table, head):
        """Return the texts of a table's column."""
        rows = self.tables[table]
        at = rows[0].index(head)
        return [row[at] for row in rows[1:]]
