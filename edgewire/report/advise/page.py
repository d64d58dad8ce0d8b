"""Writes docs/which-method.md from the stored runs of `experiment=advise`.

The last section shows papers/runs/benchmarks/advice.json, which `papers/benchmarks/advice.py`
makes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from edgewire.report.advise.candidates import Measured, archived_runs, choose
from edgewire.report.advise.energy import RADIOS, joules
from edgewire.report.advise.ranking import Goal, Ranked, default_goal, rank
from edgewire.report.errors import ResultsError
from edgewire.report.format import NOTHING, human_bytes, human_seconds, markdown_table, wrap
from edgewire.report.link_time import parse_link
from edgewire.report.runs import parse_overrides
from papers.make.measured import measured_file, read_measured

EXPERIMENT, BENCHMARK = "advise", "advice"
PAGE = Path("docs/which-method.md")
LINKS = ("lora", "lte", "adsl", "wifi", "fibre", "satellite")
TASKS = ("digits", "keywords", "sensor_table")
SHARES = (0.95, 0.98)  # of the best uncompressed value: the goals
TEMPLATE = "which_method.md.j2"
LENGTH = ("rounds", "eval_every", "engine.workers")  # left out of the page's commands
Results = Mapping[tuple[str, float, str], Sequence[Ranked]]  # by task, goal's share, and link
HEAD = "<!-- Written by `python -m edgewire.report.advise --write-page` from the stored runs. -->"


def task_runs(root: Path, task: str) -> list[Measured]:
    """Return the stored runs of `experiment=advise` for a task. Raises `ResultsError`."""
    runs = [run for run in archived_runs(root) if run.experiment == EXPERIMENT]
    return choose(runs, task, None).runs


def page(root: Path) -> str:
    """Return the page's text. Raises `ResultsError` without stored runs."""
    runs = {task: task_runs(root, task) for task in TASKS}
    goals = {(task, share): default_goal(runs[task], share) for task in TASKS for share in SHARES}
    ranked = {
        (*key, link): rank(runs[key[0]], goal, parse_link(link))
        for key, goal in goals.items()
        for link in LINKS
    }
    parts = {
        "links": _links(),
        "goals": _goals(runs, goals),
        "choices": "\n\n".join(_choices(*key, goal, ranked) for key, goal in goals.items()),
        "commands": _commands(ranked),
        "energy": _energy(ranked),
        "never": _never(ranked),
        "benchmark": _benchmark(root),
    }
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    return f"{HEAD}\n\n{environment.get_template(TEMPLATE).render(parts)}"


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


def _goals(runs: Mapping[str, Sequence[Measured]], goals: Mapping[tuple[str, float], Goal]) -> str:
    rows = [
        [
            f"`{task}`",
            f"{runs[task][0].model}, {human_bytes(4 * runs[task][0].parameters)}",
            goals[task, SHARES[0]].metric.name,
            *(goals[task, share].metric.text(goals[task, share].bound) for share in SHARES),
        ]
        for task in TASKS
    ]
    heads = ["task", "model, uncompressed", "metric", *(f"goal, {_percent(s)}" for s in SHARES)]
    return markdown_table(heads, rows, len(SHARES))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _choices(task: str, share: float, goal: Goal, ranked: Results) -> str:
    rows = []
    for link in LINKS:
        every = ranked[task, share, link]
        best = every[0]
        plain = next((each for each in every if _is_uncompressed(each) and each.always), None)
        rows.append(
            [
                f"`{link}`",
                f"`{best.name}`" if best.always else "none",
                *_cost(best),
                human_seconds(plain.seconds) if plain else NOTHING,
            ]
        )
    heads = ["link", "settings", "time", "up", "down", "uncompressed"]
    title = f"### `{task}`, goal {_percent(share)}: {goal.text}"
    return f"{title}\n\n{markdown_table(heads, rows, 4)}"


def _cost(each: Ranked) -> list[str]:
    """Return the time and a device's bytes up and down until the goal, as cells of a table."""
    if each.at is None or not each.always:
        return [NOTHING, NOTHING, NOTHING]
    spent = each.at.spent
    return [human_seconds(each.at.seconds), human_bytes(spent.up), human_bytes(spent.down)]


def _is_uncompressed(each: Ranked) -> bool:
    return all(run.uncompressed for run in each.runs)


def _commands(ranked: Results) -> str:
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


def _energy(ranked: Results) -> str:
    rows = []
    for link, radio in RADIOS.items():
        network = parse_link(link)
        for task in TASKS:
            every = [each for each in ranked[task, SHARES[0], link] if each.always]
            plain = next((each for each in every if _is_uncompressed(each)), None)
            if not every:
                continue
            cells = []
            for each in (every[0], plain):
                if each is None or each.at is None:
                    cells.append(NOTHING)
                    continue
                energy = joules(radio, network, each.at.spent, each.at.seconds)
                cells.append(f"{energy:.3g} J")
            rows.append([f"`{link}`", f"`{task}`", *cells])
    return markdown_table(["link and radio", "task", "settings above", "uncompressed"], rows, 2)


def _never(ranked: Results) -> str:
    """Return which settings do not reach the goals of each task."""
    items = []
    for task in TASKS:
        for share in SHARES:
            every = ranked[task, share, LINKS[0]]
            missed = sorted({f"`{each.name}`" for each in every if not each.always})
            names = ", ".join(missed) or "none"
            items += wrap(f"`{task}`, goal {_percent(share)}: {names}", "* ", "  ")
    return "\n".join(items)


def _names(names: Sequence[str]) -> str:
    """Return names for a cell of a table: the first one, and how many others there are."""
    others = f", or {len(names) - 1} more" if len(names) > 1 else ""
    return f"`{names[0]}`{others}"


def worst_case(result: Mapping[str, Any]) -> str:
    """Return a sentence about the worst advice: a missed goal is worse than any ratio."""
    missed, largest = result["missed"], result["largest_ratio"]
    if largest is None:
        return "In no case did all advised runs reach the goal."
    if not missed:
        return f"The largest ratio is {largest:.2f}."
    cases = "1 case (a row" if missed == 1 else f"{missed} cases (rows"
    return (
        f'In {cases} with "-") an advised run does not reach the goal, which is worse than any '
        f"ratio, and in the others the largest ratio is {largest:.2f}."
    )


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
                _percent(row["share"]),
                _names(row["advised"]),
                human_seconds(row["advised_seconds"]),
                human_seconds(row["best_seconds"]),
                NOTHING if row["ratio"] is None else f"{row['ratio']:.2f}",
            ]
            for row in result["cases"]
        ]
        text = (
            f"In {result['within']} of {result['count']} cases the advised settings need at most "
            f"{result['tolerance']:.0%} more time than the best settings. {worst_case(result)}"
        ).replace("%", " %")
        exact = (
            f"The largest difference between the computed time and the time of a real run on the "
            f"virtual clock was {100 * result['largest_error']:.2g} % in "
            f"{result['checked_runs']} runs of synchronous presets."
        )
    except (KeyError, TypeError) as error:
        raise ResultsError(f"the stored benchmark {BENCHMARK} lacks {error}") from error
    heads = ["link", "task", "goal", "advised", "its time", "best time", "ratio"]
    lines = [*wrap(text), "", markdown_table(heads, rows, 3), "", *wrap(exact), ""]
    command = f"Command: `{kept.command}`. Commit: `{kept.commit}`."
    return "\n".join([*lines, *wrap(command)])
