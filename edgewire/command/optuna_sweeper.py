"""A Hydra sweeper that searches with Optuna, for the front of accuracy against bytes.

The study is a journal file in the sweep's folder, so `continue=SWEEP` goes on with it.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from edgewire.command.saved_config import CONTINUE
from edgewire.command.sweep import STOPPED
from edgewire.conf.schema import ConfigError
from edgewire.report.format import human_bytes
from edgewire.report.metric import ACCURACY, LOSS
from edgewire.report.runs import Row, read_result, whole_bytes

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

JOURNAL, FRONT = "optuna.journal", "front.json"
STUDY = "edgewire"
SAMPLERS = ("tpe", "nsgaii", "random")
SENT = "sent_bytes"  # an objective that no key of a result has: all bytes, in both directions


class Optuna(Sweeper):
    """Runs jobs with the overrides that Optuna suggests.

    `params`: the search space, as on the command line: `choice(a,b)`, `range(1,5)`,
    `interval(0.1,1)`, `int(interval(1,9))`, and `tag(log,interval(0.001,1))` for a logarithmic
    scale. `maximize`, `minimize`: keys of `result.json`, or `sent_bytes`. `trials`: the number of
    jobs; `parallel`: how many of them run at the same time, with a launcher that can; `sampler`:
    tpe, nsgaii or random; `seed`: the sampler's.
    """

    def __init__(
        self,
        params: Mapping[str, str] | None = None,
        maximize: Sequence[str] = ("accuracy",),
        minimize: Sequence[str] = (SENT,),
        trials: int = 30,
        parallel: int = 1,
        sampler: str = "tpe",
        seed: int = 0,
    ) -> None:
        self._params = dict(params or {})
        self._objectives: dict[str, Literal["maximize", "minimize"]] = {}
        self._objectives.update(dict.fromkeys(maximize, "maximize"))
        self._objectives.update(dict.fromkeys(minimize, "minimize"))
        self._trials, self._parallel = trials, parallel
        self._sampler, self._seed = sampler, seed

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        """Store what Hydra gives, and make the launcher."""
        self.config, self.hydra_context = config, hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Run all trials and print the front. Raises `ConfigError` for wrong options."""
        assert self.config is not None  # Hydra calls setup() first
        self._check()
        fixed, space = self._space(arguments)
        self._top = Path(self.config.hydra.sweep.dir)
        if self.config.hydra.job.name != CONTINUE:
            (self._top / JOURNAL).unlink(missing_ok=True)
        OmegaConf.save(self.config, self._top / "multirun.yaml")
        study = self._study()
        waiting = {
            trial.number: words_of(fixed, trial.params)
            for trial in study.trials
            if not trial.state.is_finished()
        }  # jobs that were stopped or have failed
        while not (self._top / STOPPED).exists():
            while len(waiting) < self._parallel and len(study.trials) < self._trials:
                trial = study.ask(space)
                waiting[trial.number] = words_of(fixed, trial.params)
            if not waiting:
                break
            batch = list(waiting)[: self._parallel]
            self._run(study, {number: waiting.pop(number) for number in batch})
        self._show(study, fixed)

    def _check(self) -> None:
        if find_spec("optuna") is None:
            raise ConfigError(
                "hydra/sweeper=optuna needs the package optuna: pip install -e '.[optuna]'"
            )
        for key, value in (("trials", self._trials), ("parallel", self._parallel)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"hydra.sweeper.{key} must be at least 1, not {value}")
        if self._sampler not in SAMPLERS:
            raise ConfigError(
                f"hydra.sweeper.sampler must be one of {', '.join(SAMPLERS)}, not {self._sampler}"
            )
        if not self._objectives:
            raise ConfigError("hydra.sweeper.maximize and minimize name nothing to search for")

    def _space(self, arguments: list[str]) -> tuple[list[str], dict[str, BaseDistribution]]:
        """Return the overrides of every trial, and the search space by keys."""
        assert self.hydra_context is not None
        words = [*(f"{key}={value}" for key, value in self._params.items()), *arguments]
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        fixed: dict[str, str] = {}
        space: dict[str, BaseDistribution] = {}
        for override in parser.parse_overrides(words):
            key = override.get_key_element()
            fixed.pop(key, None)  # the last of several values wins
            space.pop(key, None)
            if override.is_sweep_override():
                space[key] = distribution_of(override)
            else:
                fixed[key] = f"{key}={override.get_value_element_as_str()}"
        if not space:
            raise ConfigError(
                "hydra/sweeper=optuna has nothing to search: give ranges, such as "
                "lr=interval(0.01,1) or compression=topk,int8"
            )
        return list(fixed.values()), space

    def _study(self) -> Study:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(logging.WARNING)
        with warnings.catch_warnings(action="ignore"):  # of what is experimental in a release
            storage = JournalStorage(JournalFileBackend(str(self._top / JOURNAL)))
            study = optuna.create_study(
                storage=storage,
                study_name=STUDY,
                directions=list(self._objectives.values()),
                load_if_exists=True,
            )
            # A continued study would draw the same numbers again with the same seed.
            study.sampler = self._new_sampler(self._seed + len(study.trials))
        return study

    def _new_sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import NSGAIISampler, RandomSampler, TPESampler

        if self._sampler == "tpe":
            return TPESampler(seed=seed)
        if self._sampler == "nsgaii":
            return NSGAIISampler(seed=seed, population_size=max(4, min(50, self._trials // 4)))
        return RandomSampler(seed=seed)

    def _run(self, study: Study, jobs: Mapping[int, list[str]]) -> None:
        """Run some trials, and tell the study their results. A failed job gets none."""
        from optuna.trial import TrialState

        assert self.launcher is not None
        self.validate_batch_is_legal(list(jobs.values()))
        for first, batch in consecutive(jobs):
            returned = self.launcher.launch(batch, initial_job_idx=first)
            for number, job in enumerate(returned, first):
                _ = job.return_value  # raises the exception of a job
                assert job.hydra_cfg is not None
                folder = Path(job.hydra_cfg.hydra.runtime.output_dir)
                try:
                    result = read_result(folder)
                except (OSError, ValueError):
                    continue  # the trial stays open: `continue=` runs the job again
                values = [value_of(result, key) for key in self._objectives]
                if None not in values:
                    study.tell(number, [value for value in values if value is not None])
                elif result.get("diverged"):
                    study.tell(number, state=TrialState.FAIL)
                elif not result.get("stopped"):
                    raise ConfigError(self._missing(result, values))

    def _missing(self, result: Row, values: Sequence[float | None]) -> str:
        key = list(self._objectives)[values.index(None)]
        known = [name for name in result if value_of(result, name) is not None]
        return f"hydra.sweeper: runs have no number {key}; they have {', '.join([*known, SENT])}"

    def _show(self, study: Study, fixed: Sequence[str]) -> None:
        """Print the front as a table, and write it to a file."""
        # Jobs with equal values, such as those of equal overrides, are one point of the front.
        points = {tuple(trial.values): trial for trial in reversed(study.best_trials)}
        front = [points[values] for values in sorted(points)]
        keys = list(self._objectives)
        rows = [
            {
                "job": trial.number,
                "overrides": words_of(fixed, trial.params),
                **dict(zip(keys, trial.values, strict=True)),
            }
            for trial in front
        ]
        (self._top / FRONT).write_text(json.dumps(rows, indent=2) + "\n")
        if not front:
            return
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        names = list(dict.fromkeys(name for trial in front for name in trial.params))
        table.add_column("job", justify="right")
        for name in [*names, *keys]:
            table.add_column(name.rpartition(".")[2], justify="right", overflow="fold")
        for trial in front:
            params = [_short(trial.params.get(name, "-")) for name in names]
            values = [_shown(k, value) for k, value in zip(keys, trial.values, strict=True)]
            table.add_row(str(trial.number), *params, *values)
        console = Console(highlight=False)
        console.print(f"\nThe front, {len(front)} of {len(study.trials)} jobs:", table, sep="\n")


def distribution_of(override: Override) -> BaseDistribution:
    """Return Optuna's distribution of an override with several values.

    Raises `ConfigError` for a sweep that has none.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value: Any = override.value()
    log = "log" in getattr(value, "tags", ())
    try:
        if isinstance(value, IntervalSweep):
            low, high = value.start, value.end
            if isinstance(low, int) and isinstance(high, int):
                return IntDistribution(low, high, log=log)
            return FloatDistribution(float(str(low)), float(str(high)), log=log)
        values = list(override.sweep_string_iterator())
        if override.is_range_sweep() and all(each.lstrip("-").isdecimal() for each in values):
            numbers = sorted(map(int, values))
            step = 1 if log or len(numbers) < 2 else numbers[1] - numbers[0]
            return IntDistribution(numbers[0], numbers[-1], log=log, step=step)
        return CategoricalDistribution(values)
    except (ValueError, IndexError) as error:
        raise ConfigError(f"{override.input_line}: {error}") from error


def words_of(fixed: Sequence[str], params: Mapping[str, Any]) -> list[str]:
    """Return the overrides of a trial: those of every trial, and what Optuna suggested."""
    return [*fixed, *(f"{key}={value}" for key, value in params.items())]


def consecutive(jobs: Mapping[int, list[str]]) -> list[tuple[int, list[list[str]]]]:
    """Return jobs in groups of consecutive numbers, each with its first number."""
    groups: list[tuple[int, list[list[str]]]] = []
    for number in sorted(jobs):
        if groups and number == groups[-1][0] + len(groups[-1][1]):
            groups[-1][1].append(jobs[number])
        else:
            groups.append((number, [jobs[number]]))
    return groups


def value_of(result: Row, key: str) -> float | None:
    """Return an objective's value for a run's result; None if the run has none."""
    if key == SENT:
        return float(sum(whole_bytes(result, way)[0] for way in ("uplink", "downlink")))
    value = result.get(key)
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if numeric and value is not None else None


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _shown(key: str, value: float) -> str:
    if key.endswith("_bytes"):
        return human_bytes(value)
    return (ACCURACY if key.endswith("accuracy") else LOSS).text(value)
