"""Says which settings reach a goal soonest on your link, from runs that have been measured.

    python -m edgewire.report.advise --link 10/1 --latency 40 --devices 20 --task digits --accuracy
    0.9 python -m edgewire.report.advise --link lte --task keywords --energy --runs
    multirun/DATE/TIME python -m edgewire.report.advise --link lora --try -- task=keywords nodes=20

The measured runs are those in your folders (`--runs`) and those in papers/runs. The time on
the link is computed from the bytes, rounds and local steps of a run. `--try` makes real runs of
your own task on a simulated link instead: the overrides after `--` are yours.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgewire.conf.network import Network
from edgewire.report.advise.candidates import (
    OWN,
    Found,
    NoRun,
    archived_runs,
    choose,
    nearest,
    own_runs,
)
from edgewire.report.advise.energy import RADIOS, Radio, own_radio, radio_named
from edgewire.report.advise.options import OneLineParser, devices, number
from edgewire.report.advise.page import write_page
from edgewire.report.advise.presets import description
from edgewire.report.advise.ranking import Goal, Ranked, asked_goal, default_goal, rank
from edgewire.report.advise.trial import try_settings
from edgewire.report.errors import ResultsError, mistakes_are_lines
from edgewire.report.format import human_bytes, human_seconds, whole
from edgewire.report.link_time import SPEEDS, network_of, parse_link
from papers.make.run_archive import ROOT

COMMAND = "python -m edgewire.report.advise"
SHOWN = 4  # the choice and three runners-up
UNITS = {"million": 1e6, "thousand": 1e3, "": 1.0}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = OneLineParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--link", metavar="DOWN/UP", help="Mbit/s, such as 10/1, or a name: adsl, lte, lora, wifi")
    add("--latency", type=number(0, 1e9), metavar="MS", help="ms in one direction (default: 0)")
    speed = number(*SPEEDS)
    add("--server-mbps", type=speed, metavar="MBPS", help="a link of the server that all share")
    step = number(0, 1e6)
    add("--seconds-per-step", type=step, metavar="S", help="of a device's local step (0.01)")
    add("--devices", type=devices, metavar="N", help="how many (default: as in the runs)")
    add("--task", metavar="NAME", help="a preset of task=, or a data set such as digits")
    add("--model", metavar="NAME", help="a model, such as resnet18")
    size = number(0, 1e12, above=True)
    add("--parameters", type=size, metavar="N", help="of a model that has not been measured")
    goal = made.add_mutually_exclusive_group()
    value = number(-1e300, 1e300)
    goal.add_argument("--accuracy", type=value, metavar="SHARE", help="the goal: 0.9, or 90")
    goal.add_argument("--loss", type=value, metavar="LOSS", help="the goal is a loss")
    goal.add_argument("--reach", type=value, metavar="VALUE", help="the goal, of the main metric")
    add("--runs", type=Path, nargs="+", default=[], metavar="FOLDER", help="your own runs")
    add("--energy", nargs="?", const="", metavar="RADIO", help=f"joules: {', '.join(RADIOS)}")
    add("--watts", metavar="UP/DOWN", help="joules, with your radio's own watts")
    add("--json", action="store_true", help="print JSON")
    add("--try", action="store_true", dest="trial", help="make runs with the overrides after --")
    add("--rounds", type=whole, metavar="N", help="with --try: rounds of the longest runs (40)")
    add("--presets", metavar="A,B", help="with --try: the algorithms to try")
    add("--out", type=Path, metavar="FOLDER", help="with --try: where the runs are written")
    add("--write-page", action="store_true", help="write docs/which-method.md")
    return made


def link_of(asked: argparse.Namespace) -> Network:
    """Return the network that the command line describes. Raises `ResultsError`."""
    if asked.link is None:
        raise ResultsError("say how fast the link is: --link DOWN/UP in Mbit/s, such as 10/1")
    given = {
        "latency_ms": asked.latency,
        "server_mbps": asked.server_mbps,
        "seconds_per_step": asked.seconds_per_step,
    }
    kept = {key: value for key, value in given.items() if value is not None}
    return network_of(parse_link(asked.link), **kept)


def radio_of(asked: argparse.Namespace) -> Radio | None:
    """Return the radio whose energy is asked for; None if none is. Raises `ResultsError`."""
    if asked.watts is not None:
        return own_radio(asked.watts)
    if asked.energy is None:
        return None
    return radio_named(asked.energy or (asked.link if "/" not in asked.link else ""))


def found_runs(asked: argparse.Namespace, root: Path) -> Found:
    """Return the runs that answer the question. Raises `ResultsError` if there are none."""
    own, unusable = own_runs(asked.runs)
    try:
        found = choose([*own, *archived_runs(root)], asked.task, asked.model)
    except NoRun as missing:
        size = asked.parameters or (parameters(asked.model) if asked.model else None)
        if size is None:
            raise
        found = nearest(missing, size)
    if unusable:
        found.notes.append(
            f"{unusable} of your runs are left out: they have no values, divide a model among "
            "nodes, or have a deadline or quorum"
        )
    return found


def parameters(model: str) -> float | None:
    """Return the number of parameters in the description of a model; None if it has none."""
    found = re.search(r"([\d.,]*\d) ?(million|thousand|) parameters", description("model", model))
    return float(found[1].replace(",", "")) * UNITS[found[2]] if found else None


def goal_of(asked: argparse.Namespace, found: Found) -> Goal:
    """Return the goal that is asked for, or a default one. Raises `ResultsError`."""
    for name in ("accuracy", "loss"):
        if (value := getattr(asked, name)) is not None:
            return asked_goal(found.runs, name, value)
    if asked.reach is not None:
        return asked_goal(found.runs, None, asked.reach)
    return default_goal(found.runs)


def unknown(asked: argparse.Namespace, found: Found, ranked: Sequence[Ranked]) -> list[str]:
    """Return what the advice does not know, one line each."""
    notes = list(found.notes)
    best, first = ranked[0], ranked[0].runs[0]
    if asked.devices and asked.devices != first.nodes:
        count = "updates that a device sends" if first.asynchronous else "rounds"
        notes.append(
            f"the runs have {first.nodes} devices, not {asked.devices}: the number of {count} with "
            f"{asked.devices} is not known, and is taken to be the same"
        )
    if not best.reached:
        notes.append("no run reaches the goal; the list shows the best values instead")
    elif not best.always:
        notes.append(f"only {len(best.reached)} of {best.count} runs of the choice reach the goal")
    if best.count == 1:
        notes.append("the choice has one run: another seed can need more or fewer rounds")
    if first.asynchronous:
        notes.append("the choice is asynchronous: the estimate ignores the order of the updates")
    if any(run.progress[-1].steps is None for run in best.runs):
        notes.append("the local steps of the choice are unknown: its time has only the link's part")
    if any(run.of == OWN for run in found.runs) and first.of != OWN:
        notes.append("the choice is from this project's runs, and not from yours")
    return notes


def as_rows(ranked: Sequence[Ranked], goal: Goal, devices: int | None) -> list[dict[str, Any]]:
    """Return the first settings as JSON objects; times in seconds, sizes in bytes."""
    rows = []
    for each in ranked[:SHOWN]:
        nodes = devices or each.runs[0].nodes
        at, asynchronous = each.at, each.runs[0].asynchronous
        rows.append(
            {
                "name": each.name,
                "overrides": each.settings,
                "source": each.runs[0].of,
                "devices": nodes,
                "asynchronous": asynchronous,
                "runs": each.count,
                "reached": len(each.reached),
                "best": each.best,
                "seconds": at and at.seconds,
                "by_mean_curve": at and at.by_mean_curve,
                "seconds_of_runs": [hit.seconds for hit in each.reached],
                # of an asynchronous run: the updates of all devices
                "rounds": at and (at.spent.cycles * nodes if asynchronous else at.rounds),
                "down_bytes_per_device": at and round(at.spent.down),
                "up_bytes_per_device": at and round(at.spent.up),
                "bytes": at and round((at.spent.down + at.spent.up) * nodes),
                "joules_per_device": each.joules,
            }
        )
    return rows


def as_text(rows: Sequence[dict[str, Any]], goal: Goal, radio: Radio | None) -> str:
    """Return the advice as text: the goal, the choice and the runners-up."""
    why = f" ({goal.why})" if goal.why else ""
    lines = [f"goal: {goal.text}{why}", ""]
    for place, row in enumerate(rows, 1):
        lines.append(f"{place}. {row['name']}   ({row['source']}, {row['runs']})")
        if row["reached"]:
            down, up = row["down_bytes_per_device"], row["up_bytes_per_device"]
            updates = f"updates of {row['devices']} devices"
            unit = updates if row["asynchronous"] else "rounds"
            lines.append(
                f"   {human_seconds(row['seconds'])}, {row['rounds']:.0f} {unit}; a device "
                f"receives {human_bytes(down)} and sends {human_bytes(up)}; "
                f"{human_bytes(row['bytes'])} for {row['devices']} devices"
            )
            if len(times := row["seconds_of_runs"]) > 1:
                first, last = human_seconds(min(times)), human_seconds(max(times))
                how = "the mean curve of these runs decides the time"
                if not row["by_mean_curve"]:
                    how = "the time is the mean of the runs that reach the goal"
                lines.append(f"   {how}; single runs: {first} to {last}")
            if row["joules_per_device"] is not None and radio is not None:
                lines.append(
                    f"   {row['joules_per_device']:.3g} J for a device's radio (a model: "
                    f"{radio.source})"
                )
        else:
            best = goal.metric.text(row["best"]) if row["best"] is not None else "no value"
            lines.append(f"   does not reach the goal; its best value is {best}")
        if row["reached"] < row["runs"]:
            lines.append(f"   {row['reached']} of {row['runs']} runs reach the goal")
        lines.append(f"   python run.py {row['overrides']}")
    return "\n".join(lines)


def advise(asked: argparse.Namespace, root: Path) -> int:
    """Print the advice from measured runs; return the exit code."""
    network, radio = link_of(asked), radio_of(asked)
    found = found_runs(asked, root)
    goal = goal_of(asked, found)
    ranked = rank(found.runs, goal, network, asked.devices, radio)
    if (at := ranked[0].at) is not None and at.rounds == 0:
        raise ResultsError(
            f"the untrained model already reaches the goal, {goal.text}: give a harder one"
        )
    rows, notes = as_rows(ranked, goal, asked.devices), unknown(asked, found, ranked)
    if asked.json:
        answer = {
            "metric": goal.metric.name,
            "goal": goal.bound,
            "link": {key: value for key, value in vars(network).items() if key != "classes"},
            "settings": rows,
            "unknown": notes,
            **({"radio": radio.source} if radio else {}),
        }
        print(json.dumps(answer, indent=1))
        return 0
    print(as_text(rows, goal, radio))
    if notes:
        print("\nnot known:")
        print("\n".join(f"* {note}" for note in notes))
    return 0


@mistakes_are_lines
def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Print advice, make trial runs, or write the page; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    at = words.index("--") if "--" in words else len(words)
    asked, overrides = parser().parse_args(words[:at]), words[at + 1 :]
    if asked.write_page:
        print(f"{write_page(root)} written")
        return 0
    if not asked.trial:
        if overrides:
            raise ResultsError("overrides after -- are for --try")
        return advise(asked, root)
    return try_settings(asked, link_of(asked), overrides)


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the command silently
    sys.exit(main())
