"""The results of runs as Python objects, for scripts and notebooks (`edgewire.train`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from html import escape
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from omegaconf import DictConfig

from edgewire.command.exit import RunFailed, mistakes_fail
from edgewire.command.use import exported, load_model
from edgewire.conf.load import literal
from edgewire.conf.network import Network, network_named
from edgewire.report.comparison import LINK, comparison, table_of
from edgewire.report.curves import evenly, legend
from edgewire.report.link_time import seconds_over
from edgewire.report.notebook_card import card, curve_svg
from edgewire.report.reader import ResultsError, folders, read_json, read_yaml, readable, reading
from edgewire.report.runs import (
    CONFIG,
    FAILED,
    REFERENCE,
    Run,
    failed_line,
    find_runs,
    group_runs,
    number,
    read_overrides,
    run_with_result,
    whole_bytes,
)
from edgewire.report.summary import answers, interval_of, is_plain, screen, trained

if TYPE_CHECKING:  # they take seconds to import, and are imported where they are needed
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import Tensor

    from edgewire.task.predictor import Predictor

NOT_BEGUN = "not_begun"  # in the folder of a job that was not begun
NEXT = 'predict(FILE), export("onnx"), plot(), show()'
POINTS = 400  # of a card's curve
MOST_CELLS = 20_000_000  # of a table of the history; 250,000 rounds with 40 values have half


class Traffic(NamedTuple):
    """The bytes of a run, everything in its messages included.

    `uplink`: from the nodes to the server. `downlink`: from the server to the nodes. `..._plain`:
    what Flower would have sent without compression.
    """

    uplink: int
    downlink: int
    uplink_plain: int
    downlink_plain: int


class Shown:
    """The report of the folder of a run or a sweep, and curves of its runs, for notebooks."""

    folder: Path

    @property
    def _runs(self) -> list[Run]:
        found = self if isinstance(self, SweepResult) else [self]
        return [each.run for each in cast(list[RunResult], found)]

    def show(self, height: int = 700) -> Frame:
        """Write the report, and show its page in a notebook, `height` pixels high."""
        from edgewire.report.__main__ import FOLDER
        from edgewire.report.html.html_report import PAGE, write_report

        write_report([self.folder], self.folder / FOLDER)
        return Frame(self.folder / FOLDER / PAGE, height)

    def plot(self, y: str | None = None, x: str = "round", *, log_x: bool = False) -> Figure:
        """Draw a column of the histories: a curve for the runs that differ in the seed only.

        `y`: None: the main metric. `x`: as in `report.curves`. `log_x`: whether the x axis is
        logarithmic. Raises `ResultsError` if there is no run, or the histories lack a column.
        """
        from edgewire.report.curves import X, draw

        if not (runs := self._runs):
            raise ResultsError("there is no run to draw")
        if x not in X:
            raise ResultsError(f"x must be one of {', '.join(X)}, not {x!r}")
        return draw(group_runs(runs), x, y or runs[0].metric.name, log_x=log_x)


class RunResult(Shown):
    """The result of a run in a folder: metrics, bytes, history, model.

    `folder`: the run's folder (docs/run-files.md). `modules`: the modules with the user's own
    classes, which `load_model` may import. `values`: the content of `result.json`. `run`: the run
    as the programs of `report` read it. Raises `ResultsError` for a folder without a result.
    """

    def __init__(self, folder: Path | str, modules: Iterable[str] = ()) -> None:
        self.folder, self._packages = Path(folder), {name.partition(".")[0] for name in modules}
        try:
            self.run = run_with_result(self.folder)
        except (OSError, ValueError) as error:
            raise ResultsError(f"{self.folder} holds no result of a run: {error}") from error
        self.values = self.run.result

    @property
    def metrics(self) -> dict[str, float | None]:
        """The loss and the metrics of the last evaluation, by name; the main metric is first."""
        others = self.values.get("metrics") or {}
        names = dict.fromkeys((self.run.metric.name, *others, "loss"))
        return {name: self.values.get(name) for name in names}

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the model's outputs; () without classes."""
        return tuple(map(str, self.values.get("class_names") or ()))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The accuracy's 95 % interval by the number of test samples; None for another metric."""
        return interval_of(self.values)

    @property
    def traffic(self) -> Traffic:
        """The bytes of the run in both directions, and without compression."""
        up, down = (whole_bytes(self.values, way) for way in ("uplink", "downlink"))
        return Traffic(int(up[0]), int(down[0]), int(up[1]), int(down[1]))

    @property
    def diverged(self) -> bool:
        """Whether the model has diverged."""
        return bool(self.values.get("diverged"))

    @property
    def config(self) -> DictConfig:
        """The run's configuration.

        `${KEY}` is the value of another key, as in the run. Any other `${...}` stays text: in the
        folder of somebody else it could read this machine's environment. Raises `ResultsError`.
        """
        with reading(self.folder):
            found = read_yaml(self.folder / CONFIG)
            return DictConfig(literal(found, REFERENCE.fullmatch))

    @property
    def overrides(self) -> dict[str, str]:
        """The run's overrides, by their keys."""
        with reading(self.folder):
            return read_overrides(self.folder)

    @cached_property
    def history(self) -> pd.DataFrame:
        """One row a round: the keys of `history.jsonl`. Missing values are NaN."""
        import pandas as pd

        with reading(self.folder):
            rows = self.run.history()
            if len(rows) * len(set().union(*rows)) > MOST_CELLS:
                raise ValueError("its rows have too many different keys for a table")
            return pd.DataFrame(rows)

    @cached_property
    def nodes(self) -> pd.DataFrame:
        """One row a node: the keys of `nodes.json`; empty if the run has written none."""
        import pandas as pd

        file = self.folder / "nodes.json"
        with reading(self.folder):
            return pd.DataFrame(read_json(file)["nodes"] if file.exists() else [])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the trained model's tensors, by name; for `module.load_state_dict`."""
        from safetensors.torch import load_file

        return load_file(self.folder / "model.safetensors")

    def load_model(self, packages: Iterable[str] = ()) -> Predictor:
        """Return the trained model for use, as `edgewire.load_model`; raises `RunFailed`.

        `packages`: installed packages that the model may name, such as `["torchvision"]`.
        """
        with mistakes_fail():
            return load_model(self.folder, [*packages, *self._packages])

    def predict(self, x: Any) -> pd.DataFrame:
        """Return the model's predictions for raw samples, a row each, as `Predictor.predict`.

        Raises `RunFailed`.
        """
        with mistakes_fail():
            return self._model.predict(x)

    @cached_property
    def _model(self) -> Predictor:
        return self.load_model()

    def export(self, kind: str = "onnx", out: Path | str | None = None) -> Path:
        """Write the model in another format, after a check against PyTorch; return its file.

        `kind`: onnx, pte or torch. `out`: the file; None: one in the run's folder. Raises
        `RunFailed`.
        """
        with mistakes_fail():
            return exported(self._model, self.folder, kind, out=out)

    def __repr__(self) -> str:
        with reading(self.folder):
            return "\n".join(screen(self.folder))

    def _repr_html_(self) -> str:
        main, rows = self.run.metric, readable(self.run.evaluations) or []
        points = evenly([(row["round"], row[main.name]) for row in rows], POINTS)
        with reading(self.folder):
            told = {**answers(self.run), "next": NEXT}
            return card(trained(self.run), curve_svg(points, main), told)


class SweepResult(Shown, list[RunResult]):
    """The runs of a sweep, in the order of their jobs.

    `folder`: the sweep's folder. `jobs`: the folders of its jobs; None: all in the folder.
    `failed`: why jobs failed, by their folders; a run that has diverged is also among the runs.
    `not_begun`: the folders of jobs that were not begun after a failure (`stop_on_failure=true`).
    """

    def __init__(self, folder: Path | str, jobs: Sequence[Path] | None = None) -> None:
        self.folder = Path(folder)
        tops = [self.folder] if jobs is None else jobs
        super().__init__(RunResult(run.folder) for run in find_runs(tops)[0] if run.folder)
        found = sorted((each for top in tops for each in folders(top)), key=itemgetter(0))
        unknown = f"failed; {FAILED} does not say why"
        self.failed = {f: failed_line(f) or unknown for f, names in found if FAILED in names}
        self.not_begun = [folder for folder, names in found if NOT_BEGUN in names]

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a run: its overrides, metrics, bytes, and seconds."""
        import pandas as pd

        rows = []
        for run in self:
            traffic = run.traffic._asdict()
            sizes = {f"{way}_bytes": traffic[way] for way in ("uplink", "downlink")}
            times = {name: run.values.get(name) for name in ("virtual_seconds", "seconds")}
            head = {**run.overrides, "seed": run.values["seed"]}
            rows.append({**head, **run.metrics, **sizes, **times})
        return pd.DataFrame(rows)

    @cached_property
    def groups(self) -> dict[str, list[Run]]:
        """The runs by their settings beside the seed; the uncompressed ones come first."""
        made = group_runs(self._runs)
        made.sort(key=lambda group: not is_plain(group.first))
        names = [name.removeprefix("algorithm=") for name in legend(made)]
        return {name: [*group.runs] for name, group in zip(names, made, strict=True)}

    @property
    def comparison(self) -> pd.DataFrame:
        """One row of texts for the runs that differ in the seed only, as `compare` prints them."""
        import pandas as pd

        plain = next((k for k, runs in self.groups.items() if is_plain(runs[0].result)), None)
        table = comparison(self.groups, plain) if self else table_of()
        return pd.DataFrame({str(each.header): [*map(str, each.cells)] for each in table.columns})

    def best(self, goal: float | None = None, network: str = LINK) -> RunResult:
        """Return the run that reaches a goal soonest over a network, or that has the best value.

        `goal`: a value of the main metric, such as 0.9; None: the best value counts. `network`: the
        name of a choice of `network=`. Runs that differ in the seed only count as one: the one in
        the middle is returned. Raises `RunFailed` if no run reaches the goal.
        """
        try:
            link = network_named(network)
        except ValueError as error:
            raise RunFailed(str(error)) from None
        cost = partial(_cost, goal=goal, link=link)
        seeds = [sorted(runs, key=cost) for runs in self.groups.values()]
        run = min((each[len(each) // 2] for each in seeds), key=cost, default=None)
        if run is None or cost(run) == math.inf:
            reached = "" if goal is None else f" that reaches {goal:g} over {network}"
            raise RunFailed(f"no run has a value{reached}; .comparison lists the values")
        return next(each for each in self if each.folder == run.folder)

    def __repr__(self) -> str:
        rows = self.comparison.to_string(index=False) if self else "no run has finished"
        return "\n".join([rows, *self._ends()])

    def _repr_html_(self) -> str:
        ends = "".join(f"<div>{escape(line)}</div>" for line in self._ends())
        return (self.comparison.to_html(index=False) if self else "no run has finished") + ends

    def _ends(self) -> list[str]:
        lines = [f"{folder}: {line}" for folder, line in self.failed.items()]
        return [*lines, *(f"{folder}: not begun" for folder in self.not_begun)]


def _cost(run: Run, goal: float | None, link: Network) -> float:
    """Return the seconds until a goal over a link, or without a goal minus the value's worth.

    It is infinity for a run that has diverged, that does not reach the goal, or without a value.
    """
    metric = run.metric
    if run.diverged:
        return math.inf
    if goal is None:
        value = number(run.result.get(metric.name))
        return math.inf if value is None else -value if metric.higher else value
    rows = run.history()
    times = seconds_over(link, rows, run.result, run.configuration)
    for row, seconds in zip(rows, times, strict=True):
        value = number(row.get(metric.name))
        if value is not None and metric.reaches(value, goal) and row.get("round"):
            return math.inf if seconds is None else seconds
    return math.inf


class Frame(NamedTuple):
    """A page in a notebook's cell; it needs no server, and no file beside it."""

    page: Path
    height: int

    def _repr_html_(self) -> str:
        text = escape(self.page.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{text}" width="100%" height="{self.height}"></iframe>'
