"""Reads runs from the folders of sweeps, and groups the runs that differ in the seed only.

The folder of a run has `result.json`, `history.jsonl` and Hydra's `.hydra/overrides.yaml`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any

from edgewire.report.estimate import Estimate, estimate
from edgewire.report.format import one_line
from edgewire.report.reader import ResultsError, read_json, read_yaml, readable, refuse, rows_in
from edgewire.report.reader import folders as folders_below
from edgewire.task.metric import ACCURACY, LOSS, Metric, fit_to_show, main_of

RESULT, HISTORY = "result.json", "history.jsonl"
HYDRA = Path(".hydra")
OVERRIDES, CONFIG = HYDRA / "overrides.yaml", HYDRA / "config.yaml"
PATH = HYDRA / "python_path.yaml"  # the folders in which Python looked up the user's packages
FAILED = "failed.json"  # a failed job of a sweep has written its exit code and line there
REFERENCE = re.compile(r"\$\{([\w.]+)\}")  # the value of another key of a configuration
GAVE_UP = "no update could be used"  # `stopped` begins with this in a result
# overrides that do not change what a run computes, and the seed
WITHOUT_EFFECT = re.compile(
    r"seed|verbose|stop_on_failure|checkpoint_every|dataset\.(root|download)|(engine|hydra|logger)([./].*)?"
)
# numbers that every run has
SURE = (
    *("seed", "client_updates", "failures", "seconds"),
    *("uplink_bytes", "downlink_bytes", "uplink_bytes_float32", "downlink_bytes_float32"),
)
# the bytes beside the payloads; runs that were stored earlier lack them
BESIDE = tuple(
    f"{way}_{what}_bytes" for way in ("uplink", "downlink") for what in ("other", "header")
)
# numbers that a run may lack
NUMBERS = (
    *("rounds", "accuracy", "best_accuracy", "top5", "loss", "uplink_bytes", "downlink_bytes"),
    *("uplink_bytes_float32", "downlink_bytes_float32", "client_updates", "failures"),
    *("seconds", "virtual_seconds", "sparsity", "evaluations"),
)
MOST_SETTINGS = 5000  # keys of one configuration
MOST_WORDS, MOST_LETTERS = 1000, 100_000  # of a run's overrides
PARSED = 5000  # letters of a run's overrides above which Hydra's slow parser would take seconds
NOT_FINISHED = "not finished"  # a key of unfinished runs: no finished run is in their group
# before the run has a result, these names tell that a value is a share of which more is better
SHARES = (
    *("accuracy", "top5", "auroc", "iou", "balanced_accuracy", "f1", "precision", "recall"),
    "average_precision",
)
LARGEST = 1e150  # the sum of squares of such numbers is finite
Row = dict[str, Any]
# a number of a run: a key of its result, or a function of its result; None if the run lacks it
Measure = str | Callable[[Row], float | None]


def own_numbers(metric: Metric) -> tuple[str, ...]:
    """Return the names of numbers that a run has for its main metric: the last and the best one."""
    return metric.name, f"best_{metric.name}"


@dataclass(frozen=True)
class Run:
    """A finished run.

    `overrides`: the command-line overrides that affect the result, by their keys, without the seed.
    `result`: the keys of `result.json`; an archive stores only a part of them. `history`: returns
    the rows of `history.jsonl`, one per round; an archive stores only evaluations, and of many only
    a part. `folder`: None for a run from an archive.
    """

    overrides: Mapping[str, str]
    result: dict[str, Any]
    history: Callable[[], list[Row]]
    folder: Path | None = None

    @property
    def seed(self) -> int:
        """The seed of all random numbers."""
        return int(self.result["seed"])

    @property
    def diverged(self) -> bool:
        """Whether the run failed: its model diverged, or no update could be used any more.

        Tables include such a run like any other. Without it they would show only successful runs.
        """
        stopped = self.result.get("stopped") or ""
        return bool(self.result.get("diverged")) or stopped.startswith(GAVE_UP)

    @property
    def metric(self) -> Metric:
        """The run's main metric."""
        return main_of(self.result)

    @cached_property
    def settings(self) -> str:
        """The overrides as one line of text, sorted by their keys."""
        return in_order(self.overrides)

    @cached_property
    def configuration(self) -> dict[str, str]:
        """What `read_settings` returns; {} for a run from an archive."""
        return {} if self.folder is None else read_settings(self.folder)

    @property
    def key(self) -> tuple[str, int]:
        """The run's settings and seed; of several runs with the same key only the last counts."""
        return self.settings, self.seed

    def evaluations(self) -> list[Row]:
        """Return the rows of the history with an evaluation.

        Raises `ResultsError` if the archive does not store all of them.
        """
        rows = [row for row in self.history() if row.get(self.metric.name) is not None]
        if (self.result.get("evaluations") or 0) > len(rows):
            raise ResultsError(f"{self.settings}: of its evaluations {len(rows)} are kept")
        return rows


def by_seed(runs: Iterable[Run], measure: Measure, scale: float = 1) -> dict[int, float]:
    """Return a number of each run that has it, times `scale`: seed -> number."""
    read = (lambda result: number(result.get(measure))) if isinstance(measure, str) else measure
    found = {run.seed: read(run.result) for run in runs}
    return {seed: value * scale for seed, value in found.items() if value is not None}


@dataclass(frozen=True)
class Group:
    """Runs that a table shows in a row: they differ only in the seed, and share the overrides."""

    overrides: Mapping[str, str]
    runs: Sequence[Run]

    @property
    def metric(self) -> Metric:
        """The main metric of the first run; the accuracy if there is no run."""
        return main_metric(self.runs)

    @property
    def first(self) -> Row:
        """The result of the first run."""
        return self.runs[0].result

    def estimate(self, measure: Measure, scale: float = 1) -> Estimate | None:
        """Return the estimate of a number over the runs that have it; None if no run has it."""
        return estimate(by_seed(self.runs, measure, scale).values())

    def mean(self, measure: Measure) -> float | None:
        """Return the mean of a number over the runs that have it; None if no run has it."""
        found = self.estimate(measure)
        return None if found is None else found.mean

    def ratio(self, above: Measure, below: Measure) -> float | None:
        """Return the sum of a number over the runs, divided by that of another; None if unknown."""
        top, bottom = (sum(by_seed(self.runs, each).values()) for each in (above, below))
        return top / bottom if top and bottom else None


def main_metric(runs: Iterable[Run]) -> Metric:
    """Return the main metric of the first run; the accuracy if there is no run."""
    return next((run.metric for run in runs), ACCURACY)


def first_at(rows: Iterable[Row], bound: float, metric: Metric = ACCURACY) -> Row | None:
    """Return the first row that reaches a bound of the metric; or None."""
    return next((row for row in rows if metric.reaches(row[metric.name], bound)), None)


def whole_bytes(result: dict[str, Any], way: str) -> tuple[float, float]:
    """Return a run's bytes in a direction, and the bytes if Flower had sent them uncompressed.

    `way`: "uplink" or "downlink". Both numbers include everything in the messages.
    In results of earlier versions both numbers count payloads only.
    """
    other, header = (result.get(f"{way}_{what}_bytes") or 0 for what in ("other", "header"))
    return result[f"{way}_bytes"] + other + header, result[f"{way}_bytes_float32"] + other


def sent_bytes(row: dict[str, Any], way: str) -> float | None:
    """Return all bytes that a run had sent at a row of its history; None if the row lacks them.

    `way`: as in `whole_bytes`. The row may be damaged.
    """
    payload = number(row.get(f"{way}_bytes"))
    if payload is None:
        return None
    return payload + sum(number(row.get(f"{way}_{w}_bytes")) or 0 for w in ("other", "header"))


def read_runs(folders: Sequence[Path]) -> tuple[list[Run], dict[Path, str]]:
    """Return what `find_runs` returns. Raises `ResultsError` if no run has finished."""
    runs, unfinished = find_runs(folders)
    if not runs:
        count = f"; {len(unfinished)} unfinished" if unfinished else ""
        raise ResultsError(f"no finished run in {', '.join(map(str, folders))}{count}")
    return runs, unfinished


def find_runs(folders: Iterable[Path]) -> tuple[list[Run], dict[Path, str]]:
    """Return the finished runs below `folders`, by job number, and why the others are not finished.

    A run whose files are damaged counts as unfinished. Raises `ResultsError` for a missing folder.
    """
    jobs: dict[Path, Path] = {}  # `folders` may name a folder and also a folder inside it
    for top in folders:
        if not top.is_dir():
            raise ResultsError(f"{top}: no such folder")
        below = (each for each, _ in folders_below(top) if (each / OVERRIDES).exists())
        for folder in sorted(below, key=_numbers_as_numbers):
            jobs.setdefault(folder.resolve(), folder)
    runs, unfinished = list[Run](), dict[Path, str]()
    for folder in jobs.values():
        try:
            runs.append(read_run(folder))
        except ResultsError as error:
            line = failed_line(folder)
            unfinished[folder] = one_line(str(error) if line is None else f"failed: {line}")
    return runs, unfinished


def read_run(folder: Path) -> Run:
    """Return the finished run in a folder. Raises `ResultsError`, which says why it is none."""
    try:
        run = run_with_result(folder, read_overrides(folder))
    except FileNotFoundError:
        raise ResultsError(f"no {RESULT}: it still runs, or was killed") from None
    except (OSError, ValueError):
        raise ResultsError(f"{RESULT} is damaged") from None
    if run.result.get("stopped") and not run.diverged:
        raise ResultsError(f"stopped: {run.result['stopped']}")
    return run


def run_with_result(folder: Path, overrides: Mapping[str, str] | None = None) -> Run:
    """Return the run in a folder, which may have been stopped; `overrides`: as in `run_of`.

    Raises `FileNotFoundError` without a result, `ValueError` for a damaged one.
    """
    result = read_result(folder)
    expect_result(result)
    return run_of(folder, result, overrides)


def run_of(folder: Path, result: Row, overrides: Mapping[str, str] | None = None) -> Run:
    """Return the run in a folder, whose result is known. Its history is read only when needed.

    `overrides`: all; None: those in the folder, none if they are damaged.
    """
    given = readable(read_overrides, folder) or {} if overrides is None else overrides
    return Run(with_effect(given), result, lambda: read_history(folder / HISTORY), folder)


def path_of(folder: Path) -> list[Path]:
    """Return the folders in which a run's packages were looked up; [] if it has not saved them."""
    found = readable(read_yaml, folder / PATH)
    return [Path(str(each)) for each in found] if isinstance(found, list) else []


def read_result(folder: Path) -> dict[str, Any]:
    """Return a run's result; null in place of NaN and infinity.

    Raises `FileNotFoundError` if the run has left none, `ValueError` for a damaged file.
    """
    result = read_json(folder / RESULT)
    if not isinstance(result, dict):
        raise ValueError(f"{folder / RESULT} holds no result")
    return result


def failed_line(folder: Path) -> str | None:
    """Return why a sweep's job has failed; None if its `failed.json` does not say."""
    note = readable(read_json, folder / FAILED) or {}
    return str(note["line"]) if isinstance(note, dict) and "line" in note else None


def read_history(file: Path) -> list[Row]:
    """Return the rows of a `history.jsonl`, one per round, without a truncated last line.

    Raises `ResultsError` for a line that cannot be read, or with a value that is no number.
    """
    rows: list[Row] = []
    try:
        for row in rows_in(file):
            if rows and not rows[-1]:
                raise ValueError("only the last line may be damaged")
            rows.append(row)
            if row:
                expect_numbers(row, ("round",), ())
            for key, each in row.items():
                fits = each is None or number(each) is not None
                if not fits and not key.endswith("_by_segment"):
                    raise ValueError(f"{key} is no number")
    except ValueError as error:
        line = f"{file}: line {len(rows)} cannot be read"
        raise ResultsError(line if rows else str(error)) from error
    return rows if rows and rows[-1] else rows[:-1]


# Unfinished runs


def run_so_far(folder: Path) -> Run | None:
    """Return what an unfinished run has done so far; None if it has no row.

    Its result is the last row of its history. The key `NOT_FINISHED` is among its overrides.
    Raises `OSError`, `ValueError` and `ResultsError` for damaged files.
    """
    overrides, rows = read_overrides(folder), read_history(folder / HISTORY)
    if not rows:
        return None
    result = read_result(folder) if (folder / RESULT).exists() else {}
    metric = main_of(result) if result else metric_in(rows[-1])
    known = next((r for r in reversed(rows) if r.get(metric.name) is not None), {})
    found = {
        **dict.fromkeys(SURE, 0),
        "seed": int(overrides.get("seed", 0)),
        "metrics": {metric.name: metric._asdict()} if metric != LOSS else {},
        **rows[-1],
        metric.name: known.get(metric.name),
        **result,
    }
    expect_result(found)
    return Run({**with_effect(overrides), NOT_FINISHED: "yes"}, found, lambda: rows, folder)


def metric_in(row: Row) -> Metric:
    """Return the main metric of a run without a result: the first name after `loss` in a row."""
    after = dropwhile("loss".__ne__, row)
    name = next(islice(after, 1, None), LOSS.name)
    if name == "train_loss" or not fit_to_show(name):
        return LOSS
    return Metric(name, name in SHARES, name in SHARES)


def with_effect(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the overrides that change what a run computes."""
    return {key: value for key, value in overrides.items() if not WITHOUT_EFFECT.fullmatch(key)}


def read_overrides(folder: Path) -> dict[str, str]:
    """Return all command-line overrides of a run by their keys.

    Raises `OSError` for a file that cannot be read, `ValueError` for a damaged one.
    """
    words = read_yaml(folder / OVERRIDES)
    if not isinstance(words, list) or not all(isinstance(each, str) for each in words):
        refuse(folder / OVERRIDES, "holds no overrides")
    if len(words) > MOST_WORDS or sum(map(len, words)) > MOST_LETTERS:
        refuse(folder / OVERRIDES, f"has over {MOST_WORDS} words or {MOST_LETTERS} letters")
    return split_overrides(words)


def expect_result(result: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless a result has numbers where tables need them, and a text or null."""
    if not isinstance(result.get("stopped"), str | None):
        raise ValueError("the result does not say why the run stopped")
    expect_numbers(result, SURE, (*NUMBERS, *BESIDE, *own_numbers(main_of(result))))


def expect_numbers(values: Mapping[str, Any], sure: Sequence[str], may_miss: Iterable[str]) -> None:
    """Raise `ValueError` unless some keys hold a `number`; those in `may_miss` may hold None."""
    for key in (*sure, *may_miss):
        value = values.get(key)
        if number(value) is None and (value is not None or key in sure):
            raise ValueError(f"{str(value)[:40]!r} is out of place")


def number(value: Any) -> float | None:
    """Return a value if it is a finite number of usual size; else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= LARGEST else None  # False for NaN


def ended_early(result: Row) -> bool:
    """Return whether a run has ended before its planned rounds, or updates."""
    done, planned = number(result.get("round")), number(result.get("rounds"))
    return done is not None and planned is not None and done < planned


def split_overrides(overrides: Iterable[str]) -> dict[str, str]:
    """Return overrides such as `a=1` and `+b=2` as a dict: key -> value."""
    pairs = (word.lstrip("+").partition("=") for word in overrides)
    return {key: value for key, _, value in pairs}


def dotted(node: Any, between: str = ".", prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values inside a mapping with their joined keys; those of a list if joined by /.

    An empty mapping inside is a value.
    """
    for key, value in (node if isinstance(node, Mapping) else dict(enumerate(node))).items():
        name = f"{prefix}{key}"
        if (isinstance(value, Mapping) and value) or (isinstance(value, list) and between == "/"):
            yield from dotted(value, between, f"{name}{between}")
        else:
            yield name, value


def read_settings(folder: Path) -> dict[str, str]:
    """Return the configuration that a run has saved, flat: key -> text; empty if it is damaged.

    References to other keys are replaced. OmegaConf's other resolvers are not used: a folder that
    someone else has made could read environment variables with them.
    """
    content = readable(read_yaml, folder / CONFIG)
    pairs = islice(dotted(content if isinstance(content, dict) else {}), MOST_SETTINGS)
    flat = {one_line(key): one_line(as_text(value)) for key, value in pairs}
    for _ in range(5):  # a reference may lead to another one, or to itself
        leads = {key: REFERENCE.fullmatch(text) for key, text in flat.items()}
        flat |= {key: flat.get(to[1], flat[key]) for key, to in leads.items() if to}
    return flat


def as_text(value: Any) -> str:
    """Return a value as the command line takes it."""
    return "null" if value is None else str(value).lower() if value in (True, False) else str(value)


def in_order(overrides: Mapping[str, str]) -> str:
    """Return command-line overrides sorted by their keys, quoted as in a shell.

    Values are written as a sweep writes them: `true` as True, 1e-3 as 0.001. A value that Hydra
    cannot parse stays unchanged, and so do all values if they are long.
    """
    written = _as_in_sweeps if sum(map(len, overrides.values())) <= PARSED else str
    return shlex.join(f"{key}={written(value)}" for key, value in sorted(overrides.items()))


@cache
def _as_in_sweeps(value: str) -> str:
    # imported here: the parser takes 0.3 s to import, and `edgewire.report.table` does not need it
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        word = OverridesParser.create().parse_override(f"key={value}")
        return str(word.get_value_element_as_str())
    except (HydraException, RecursionError):
        return value


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Return the groups in the order of their first runs.

    Of several runs with the same overrides and seed only the last one is used. A repeated run has
    the same seed, and would make the spread over the seeds look smaller than it is.
    """
    groups: dict[frozenset[tuple[str, str]], dict[int, Run]] = {}
    for run in runs:
        groups.setdefault(frozenset(run.overrides.items()), {})[run.seed] = run
    runs_of = [list(seeds.values()) for seeds in groups.values()]
    return [Group(same[0].overrides, same) for same in runs_of]


def varying(groups: Sequence[Group]) -> list[str]:
    """Return the keys whose values differ between the groups, in the order of the overrides."""
    keys = dict.fromkeys(key for group in groups for key in group.overrides)
    return [key for key in keys if len({group.overrides.get(key) for group in groups}) > 1]


def _numbers_as_numbers(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that puts job 10 after job 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in path.parts]
