"""Finds the measured runs of a task or model, and groups those that differ in the seed only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgewire.report.advise.presets import effective, preset
from edgewire.report.errors import ResultsError
from edgewire.report.files.reader import read_yaml, readable
from edgewire.report.link_time import Progress, local_steps, network_from, progress_of
from edgewire.report.runs import CONFIG, Row, Run, in_order, read_archive, read_runs
from papers.make.run_archive import FOLDER, ROOT

# strategies that divide the layers of one model among the nodes
CUT = ("split_backprop", "synthetic_gradients")
# with these options of a strategy the link decides which replies are used
DECIDED_BY_LINK = ("edgewire.strategy.deadline", "strategy.quorum")
OF_THE_LINK = ("network", "experiment")
OWN, ARCHIVED = "your runs", "this project's runs"  # where runs are stored


@dataclass(frozen=True)
class Measured:
    """A measured run, and what is needed to estimate its time on another link.

    `overrides`: all of its overrides, with those of its experiment. `nodes`: all nodes;
    `replies`: those that take part in a round. `progress`: one entry per row of `rows`.
    `of`: where the run is stored. `experiment`: of which experiment, "" for the user's own runs.
    """

    run: Run
    overrides: Mapping[str, str]
    dataset: str
    model: str
    nodes: int
    replies: int
    asynchronous: bool
    rows: Sequence[Row]
    progress: Sequence[Progress]
    parameters: float
    of: str
    experiment: str

    @property
    def settings(self) -> str:
        """The overrides without those of the link, as in a shell."""
        kept = {k: v for k, v in self.overrides.items() if k.partition(".")[0] not in OF_THE_LINK}
        return in_order(kept)

    @property
    def key(self) -> tuple[str, str]:
        """What runs that differ in the seed only have in common."""
        return self.of, self.settings

    @property
    def uncompressed(self) -> bool:
        """Whether the payloads in both directions have at least 95 % of the uncompressed bytes."""
        result = self.run.result
        return all(
            (result.get(f"{way}_bytes") or 0) >= 0.95 * (result.get(f"{way}_bytes_float32") or 1)
            for way in ("uplink", "downlink")
        )


@dataclass(frozen=True)
class Found:
    """The runs that can answer a question, and a line for each thing that is not as asked."""

    runs: list[Measured]
    notes: list[str]


def plain(name: object) -> str:
    """Return a name as it is compared: SpectrogramCNN and spectrogram_cnn are the same."""
    return "".join(letter for letter in str(name).lower() if letter.isalnum())


def own_runs(folders: Sequence[Path]) -> tuple[list[Measured], int]:
    """Return the user's runs in some folders, and how many others cannot be used.

    Raises `ResultsError` for a folder without a finished run.
    """
    if not folders:
        return [], 0
    runs, _ = read_runs(folders)
    found = [each for run in runs if (each := measured(run, OWN, "")) is not None]
    return found, len(runs) - len(found)


def archived_runs(root: Path = ROOT) -> list[Measured]:
    """Return the runs that the repository stores, without those of searches."""
    found = [
        measured(run, ARCHIVED, file.stem)
        for file in sorted((root / FOLDER).glob("*.json"))
        # a search trains on a part of the training set, at many learning rates
        if not file.stem.endswith("_search")
        for run in read_archive(file)
    ]
    return [run for run in found if run is not None]


def measured(run: Run, of: str, experiment: str) -> Measured | None:
    """Return a run with what the estimate needs.

    None: the run has no curve, it divides a model among nodes, its link decides which replies are
    used, or its numbers do not fit together.
    """
    # the configuration in the run's folder
    saved = run.folder and readable(read_yaml, run.folder / CONFIG)
    saved = saved if isinstance(saved, dict) else {}
    values = effective(run.overrides, experiment)
    result = run.result
    strategies = {plain(each.get("strategy")) for each in (values, result)}
    if not strategies.isdisjoint(map(plain, CUT)):
        return None
    if any(values.get(key, "null") not in ("null", "None", "1", "1.0") for key in DECIDED_BY_LINK):
        return None
    try:
        rows = [row for row in run.history() if row.get(run.metric.name) is not None]
        network = network_from(values, saved.get("network"))
        nodes = int(result.get("nodes") or saved.get("nodes") or values.get("nodes") or 0)
    except (OSError, ValueError, TypeError, ResultsError):
        return None
    messages = (result.get("client_updates") or 0) + (result.get("failures") or 0)
    last = (rows[-1].get("round") or 0) if rows else 0
    total = max(last, result.get("round") or result.get("rounds") or 0)
    if not last or not messages or nodes < 1 or not total:
        return None
    if any(row.get("round") is None for row in rows):
        return None
    asynchronous = "asynchronous" in strategies
    replies = nodes if asynchronous else max(1, round(messages / total))
    progress = progress_of(rows, result, replies, nodes if asynchronous else 1)
    seconds = [row.get("virtual_seconds") for row in rows]
    steps = local_steps(progress, seconds, network, replies, asynchronous)
    if steps[-1] is None and (known := _steps_of_a_cycle(values)) is not None:
        steps = [row.cycles * known for row in progress]
    # runs of one experiment have its overrides in common
    swept = {} if experiment == "" else preset("experiment", experiment)
    overrides = {k: v for k, v in swept.items() if k not in OF_THE_LINK} | dict(run.overrides)
    uncompressed = (result.get("uplink_bytes_float32") or 0) / messages / 4
    return Measured(
        run, overrides, values.get("dataset", "") if _known(values) else str(result.get("dataset")),
        values.get("model", ""), nodes, replies, asynchronous, rows,
        [row._replace(steps=step) for row, step in zip(progress, steps, strict=True)],
        float(result.get("parameters") or uncompressed), of, experiment,
    )  # fmt: skip


def _steps_of_a_cycle(values: Mapping[str, str]) -> int | None:
    """Return the local steps of a node in a round; None if its number of samples decides."""
    defaults = preset("strategy", values.get("strategy", ""))
    if values.get("strategy.update", defaults.get("update")) == "gradient":
        return 1
    known = values.get("local_steps", "")
    return int(known) if known.isdecimal() else None


def _known(values: Mapping[str, str]) -> bool:
    return bool(preset("dataset", values.get("dataset", "")))


def choose(runs: Iterable[Measured], task: str | None, model: str | None) -> Found:
    """Return the runs of a task (or data set) and model; those of the nearest model if none is.

    Raises `ResultsError` if there is nothing to choose from.
    """
    known = list(runs)
    if task is None and model is None:
        raise ResultsError("say what is trained: --task NAME, or --model NAME")
    notes: list[str] = []
    values = preset("task", task) if task else {}
    dataset = values.get("dataset", task)
    wanted = model or values.get("model")
    if task and not model and not values:
        wanted = _default_model(task)
    fits = [r for r in known if dataset is None or plain(r.dataset) == plain(dataset)]
    exact = [r for r in fits if wanted is None or plain(r.model) == plain(wanted)]
    if exact:
        return Found(*_one_kind(exact, notes, dataset, wanted))
    if fits and model is None:
        return Found(*_one_kind(fits, notes, dataset, None))
    if not known:
        raise ResultsError("there is no measured run: give folders with --runs, or use --try")
    what = " and ".join(
        f"{name} {value}" for name, value in (("task", task), ("model", model)) if value
    )
    raise NoRun(what, fits or known)


def _default_model(dataset: str) -> str | None:
    """Return the model of a run without options, if it is on this data set; or None."""
    default = preset("", "config")
    return default["model"] if default["dataset"] == dataset else None


class NoRun(ResultsError):
    """No run is of the task and model; `others` are runs of other ones."""

    def __init__(self, what: str, others: Sequence[Measured]) -> None:
        super().__init__(f"no run of {what} has been measured: use --try, or --runs FOLDER")
        self.what = what
        self.others = list(others)


def nearest(missing: NoRun, parameters: float) -> Found:
    """Return the runs whose model has the number of parameters that is nearest to `parameters`."""

    def distance(run: Measured) -> float:
        sizes = sorted((max(run.parameters, 1.0), parameters))
        return sizes[1] / sizes[0]

    best = min(missing.others, key=distance)
    same = [r for r in missing.others if (r.dataset, r.model) == (best.dataset, best.model)]
    note = (
        f"no run of {missing.what} has been measured; this is a guess from {best.model} on "
        f"{best.dataset}, with bytes in proportion to the number of parameters"
    )
    runs, notes = _one_kind(same, [note], best.dataset, best.model)
    return Found([_scaled(run, parameters / max(run.parameters, 1.0)) for run in runs], notes)


def _scaled(run: Measured, factor: float) -> Measured:
    """Return a run as if all its messages were `factor` times as large."""
    progress = [row._replace(down=row.down * factor, up=row.up * factor) for row in run.progress]
    return replace(run, progress=progress)


def _one_kind(
    runs: Sequence[Measured], notes: list[str], dataset: str | None, model: str | None
) -> tuple[list[Measured], list[str]]:
    """Return the runs of one data set, model, metric and number of nodes, and notes on the choice.

    The user's own runs come first: they decide which kind it is.
    """
    own = [run for run in runs if run.of != ARCHIVED]

    def kind(run: Measured) -> tuple[str, str, str, int]:
        return plain(run.dataset), plain(run.model), run.run.metric.name, run.nodes

    evaluations: Counter[tuple[str, str, str, int]] = Counter()
    for run in own or runs:  # short runs, made to measure a time, have few evaluations
        evaluations[kind(run)] += len(run.rows)
    best = evaluations.most_common(1)[0][0]
    chosen = [run for run in runs if kind(run) == best]
    first = chosen[0]
    if dataset is None:
        notes.append(f"the runs are on {first.dataset}: on other data the accuracy differs")
    if model is None:
        notes.append(f"the runs are of the model {first.model}")
    return chosen, notes
