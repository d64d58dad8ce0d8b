"""Writes folders as a run writes them while it goes on, for tests of reports."""

import json
import math
import random

ROUNDS = 40


def row(number, rounds=ROUNDS, **more):
    """Return a row of a `history.jsonl`."""
    return {
        "round": number,
        "rounds": rounds,
        "loss": 2.3 * math.exp(-number / 10) + 0.1,
        "accuracy": 0.97 - 0.87 * math.exp(-number / 8),
        "top5": 1.0,
        "train_loss": 2.2 * math.exp(-number / 9) + 0.05 if number else None,
        "lr": 0.1,
        "uplink_bytes": 70_000 * number,
        "downlink_bytes": 90_000 * number,
        "uplink_bytes_float32": 389_520 * number,
        "downlink_bytes_float32": 389_520 * number,
        "uplink_entries": 961 * number,
        "uplink_entries_whole": 96_100 * number,
        "client_updates": 10 * number,
        "failures": number // 3,
        "uplink_other_bytes": 960 * number,
        "downlink_other_bytes": 540 * number,
        "uplink_header_bytes": 460 * number,
        "downlink_header_bytes": 850 * number,
        "virtual_seconds": 0.15 * number,
        "seconds": 0.4 * number,
        **more,
    }


def lines(rows):
    return "".join(json.dumps(each) + "\n" for each in rows)


def write_history(folder, count, rounds=ROUNDS, **more):
    """Write `count` rows from round 0 on."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row(number, rounds, **more) for number in range(count)]
    (folder / "history.jsonl").write_text(lines(rows))


def node(place, dice, **more):
    """Return a node of a `nodes.json`: some are slow, waiting, offline or fail."""
    lag = dice.uniform(0.5, 1.5)
    return {
        "node": 2**63 + 7919 * place,
        "partition": place,
        "online": place % 17 != 5,
        "messages": 10,
        "replies": 9,
        "failures": int(place % 13 == 4),
        "reason": "the update has a value that is not finite" if place % 13 == 4 else None,
        "uplink_bytes": 1234 * (place + 1),
        "downlink_bytes": 5678 * (place + 1),
        "sent": 11.0,
        "heard": 12.0,
        "lag": 20.0 + place if place % 19 == 3 else lag,
        "mean_lag": 20.0 + place if place % 19 == 3 else lag,
        "waiting": place % 7 == 2,
        "samples": 120 + place,
        "train_loss": dice.uniform(0.1, 0.9),
        "accuracy": dice.uniform(0.8, 1),
        "staleness": None,
        "density": 0.01,
        "labels": [dice.randrange(30) for _ in range(10)],
        **more,
    }


def write_nodes(folder, count, others=0, seed=0, reached=1, **more):
    """Write a `nodes.json` of `count` nodes in round `reached`; `more`: values of all nodes."""
    dice = random.Random(seed)
    content = {
        "round": reached,
        "seconds": 12.5,
        "virtual": True,
        "updated": 1764270000.0,
        "others": others,
        "nodes": [node(place, dice, **more) for place in range(count)],
    }
    partial = folder / "nodes.json.part"
    partial.write_text(json.dumps(content))
    partial.replace(folder / "nodes.json")
