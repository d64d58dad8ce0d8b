"""Writes docs/which-method.md from the stored runs of `experiment=advise`.

The last section shows docs/results/runs/benchmarks/advice.json, which `benchmarks/advice.py` makes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from report.advise.candidates import Measured, archived_runs, choose
from report.advise.energy import RADIOS, joules
from report.advise.link_time import parse_link
from report.advise.ranking import Goal, Ranked, default_goal, rank
from report.errors import ResultsError
from report.format import NOTHING, human_bytes, human_seconds, markdown_table, wrap
from report.measured import measured_file, read_measured
from report.runs import parse_overrides

EXPERIMENT, BENCHMARK = "advise", "advice"
PAGE = Path("docs/which-method.md")
LINKS = ("lora", "lte", "adsl", "wifi", "fibre", "satellite")
TASKS = ("digits", "keywords", "sensor_table")
LENGTH = ("rounds", "eval_every", "engine.workers")  # left out of the page's commands
HEAD = "<!-- Written by `python -m report.advise --write-page` from the stored runs. -->"


def task_runs(root: Path, task: str) -> list[Measured]:
    """Return the stored runs of `experiment=advise` for a task. Raises `ResultsError`."""
    runs = [run for run in archived_runs(root) if run.experiment == EXPERIMENT]
    return choose(runs, task, None).runs


def page(root: Path) -> str:
    """Return the page's text. Raises `ResultsError` without stored runs."""
    template = (Path(__file__).parent / "which_method.md").read_text(encoding="utf-8")
    runs = {task: task_runs(root, task) for task in TASKS}
    goals = {task: default_goal(runs[task]) for task in TASKS}
    ranked = {
        (task, link): rank(runs[task], goals[task], parse_link(link))
        for task in TASKS
        for link in LINKS
    }
    parts = {
        "links": _links(),
        "goals": _goals(runs, goals),
        "choices": "\n\n".join(_choices(task, goals[task], ranked) for task in TASKS),
        "commands": _commands(ranked),
        "energy": _energy(ranked),
        "never": _never(ranked),
        "benchmark": _benchmark(root),
    }
    for name, text in parts.items():
        template = template.replace(f"<{name}>", text)
    return f"{HEAD}\n\n{template}"


def write_page(root: Path) -> Path:
    """Write the page; return its file."""
    file = root / PAGE
    file.write_text(page(root), encoding="utf-8")
    return file


def _links() -> str:
    rows = []
    for name in LINKS:
        network = parse_link(name)
        shared = "shared by all" if network.server_mbps else "for each device"
        rows.append(
            [
                f"`{name}`",
                f"{network.down_mbps:g}",
                f"{network.up_mbps:g}",
                shared,
                f"{network.latency_ms:g} ms",
            ]
        )
    return markdown_table(["link", "Mbit/s down", "Mbit/s up", "speed", "latency"], rows, 1)


def _goals(runs: Mapping[str, Sequence[Measured]], goals: Mapping[str, Goal]) -> str:
    rows = [
        [
            f"`{task}`",
            f"{runs[task][0].model}, {runs[task][0].parameters:,.0f}",
            goal.metric.name,
            goal.metric.text(goal.bound),
            str(runs[task][0].nodes),
        ]
        for task, goal in goals.items()
    ]
    return markdown_table(["task", "model, parameters", "metric", "goal", "devices"], rows, 1)


def _choices(task: str, goal: Goal, ranked: Mapping[tuple[str, str], Sequence[Ranked]]) -> str:
    rows = []
    for link in LINKS:
        every = ranked[task, link]
        best = every[0]
        plain = next((each for each in every if _is_uncompressed(each) and each.always), None)
        rows.append(
            [
                f"`{link}`",
                f"`{best.name}`" if best.always else "none",
                human_seconds(best.seconds) if best.always else NOTHING,
                human_bytes(best.up) if best.always else NOTHING,
                human_bytes(best.down) if best.always else NOTHING,
                human_seconds(plain.seconds) if plain else NOTHING,
            ]
        )
    heads = ["link", "settings", "time", "up", "down", "time without compression"]
    return f"### `{task}`: {goal.text}\n\n{markdown_table(heads, rows, 4)}"


def _is_uncompressed(each: Ranked) -> bool:
    return all(run.uncompressed for run in each.runs)


def _commands(ranked: Mapping[tuple[str, str], Sequence[Ranked]]) -> str:
    """Return the commands of all settings that a table shows, in a code block."""
    chosen = {each[0].settings: each[0] for each in ranked.values() if each[0].always}
    lines = []
    for settings in sorted(chosen):
        kept = {k: v for k, v in parse_overrides(settings).items() if k not in LENGTH}
        words = [f"{key}={value}" for key, value in sorted(kept.items())]
        lines += _broken(["python", "run.py", *words])
    return "\n".join(["```bash", *lines, "```"])


def _broken(words: Sequence[str]) -> list[str]:
    """Return a command in lines of at most 100 characters."""
    lines, line = [], ""
    for word in map(shlex.quote, words):
        if len(line) + len(word) + 3 > 100:
            lines.append(f"{line} \\")
            line = f"  {word}"
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]


def _energy(ranked: Mapping[tuple[str, str], Sequence[Ranked]]) -> str:
    rows = []
    for link, radio in RADIOS.items():
        network = parse_link(link)
        for task in TASKS:
            every = [each for each in ranked[task, link] if each.always]
            plain = next((each for each in every if _is_uncompressed(each)), None)
            if not every:
                continue
            cells = []
            for each in (every[0], plain):
                if each is None:
                    cells.append(NOTHING)
                    continue
                spent = [joules(radio, network, hit.spent, hit.seconds) for hit in each.reached]
                cells.append(f"{sum(spent) / len(spent):.3g} J")
            rows.append([f"`{link}`", f"`{task}`", *cells])
    return markdown_table(["link and radio", "task", "settings above", "uncompressed"], rows, 2)


def _never(ranked: Mapping[tuple[str, str], Sequence[Ranked]]) -> str:
    """Return which settings do not reach the goal of each task."""
    items = []
    for task in TASKS:
        missed = sorted({f"`{each.name}`" for each in ranked[task, LINKS[0]] if not each.always})
        items += wrap(f"`{task}`: {', '.join(missed) or 'none'}", "* ", "  ")
    return "\n".join(items)


def _benchmark(root: Path) -> str:
    """Return the section about the benchmark; one sentence if it has not been run."""
    kept = read_measured(measured_file(root, BENCHMARK))
    if not isinstance(kept.result, dict):
        return "The benchmark has not been run."
    result: dict[str, Any] = kept.result
    try:
        rows = [
            [
                f"`{row['link']}`",
                f"`{row['task']}`",
                f"`{row['advised']}`",
                human_seconds(row["advised_seconds"]),
                human_seconds(row["best_seconds"]),
                NOTHING if row["ratio"] is None else f"{row['ratio']:.2f}",
            ]
            for row in result["cases"]
        ]
        text = (
            f"In {result['within']} of {result['count']} cases the advised settings need at most "
            f"{result['tolerance']:.0%} more time than the best settings. The largest ratio is "
            f"{result['largest_ratio']:.2f}."
        ).replace("%", " %")
        exact = (
            f"The largest difference between the computed time and the time of a real run on the "
            f"virtual clock was {100 * result['largest_error']:.2g} % in "
            f"{result['checked_runs']} runs of synchronous presets."
        )
    except (KeyError, TypeError) as error:
        raise ResultsError(f"the stored benchmark {BENCHMARK} lacks {error}") from error
    heads = ["link", "task", "advised", "its time", "best time", "ratio"]
    lines = [*wrap(text), "", markdown_table(heads, rows, 3), "", *wrap(exact), ""]
    command = f"Command: `{kept.command}`. Commit: `{kept.commit}`."
    return "\n".join([*lines, *wrap(command)])
