"""What `compare` and its searches share: the words of the task, methods with rates, their runs."""

from __future__ import annotations

import json
import logging
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table

from edgewire.command.python_api import run_sweep
from edgewire.command.run_lock import new_folder
from edgewire.command.run_result import RunResult
from edgewire.command.saved_config import options_first, quoted
from edgewire.conf.load import HERE, compose_config
from edgewire.conf.schema import Config, ConfigError
from edgewire.conf.words import explained
from edgewire.report.format import human_seconds
from edgewire.report.metric import main_of
from edgewire.report.reader import ResultsError, readable
from edgewire.report.runs import failed_line, read_result

UNCOMPRESSED, FEW_BYTES = "fedavg", "edgewire"
NAMES = {UNCOMPRESSED: "uncompressed", "fedavg_f2i_both": "int8", FEW_BYTES: "few bytes"}
OPTIONS = ("config_path", "config_name", "config_dir")  # of Hydra, which are passed on
ASKED = ("algorithm", "seed", "goal", "minutes", "bytes")  # words that Hydra does not get
OWN = ("nodes", "rounds", "lr", "eval_every")  # words of which each run gets its own
FACTORS = (0.3, 1.0, 3.0)  # of a method's rate, in a search of rates
VALIDATE = ("dataset.validate=0.1",)  # a part of the training set is the test set
BETWEEN = 20.0  # seconds between two lines about short runs
LINK = re.compile(r"network=([0-9.]+)/([0-9.]+)")  # Mbit/s down and up


@dataclass(frozen=True)
class Method:
    """A preset with its learning rate as text, and runs of it.

    `words`: further overrides. `pushes`: whether it is asynchronous. `rounds`: of a run. `every`:
    rounds between two evaluations.
    """

    name: str
    lr: str = ""
    words: tuple[str, ...] = ()
    pushes: bool = False
    rounds: int = 1
    every: int = 1

    def __str__(self) -> str:
        shown = f"{NAMES[self.name]} ({self.name})" if self.name in NAMES else self.name
        return " ".join([shown, *(word for word in self.words if "validate" not in word)])

    def overrides(self, nodes: int, seed: int) -> list[str]:
        """Return the overrides of a run."""
        unit, length = (nodes, "strategy.pushes") if self.pushes else (1, "rounds")
        return [
            *(f"algorithm={self.name}", *self.words, f"lr={self.lr}", f"nodes={nodes}"),
            *(f"{length}={self.rounds * unit}", f"eval_every={self.every * unit}", f"seed={seed}"),
        ]


class Asked:
    """What the words of the command line ask for. Raises `ConfigError`.

    `options`: Hydra's. `task`: overrides of the task. `network`: overrides of the link, `link`: its
    name. `given`: the values of `ASKED` and `OWN`, by key. `seeds`: of a method's runs.
    """

    def __init__(self, words: Sequence[str]) -> None:
        parsed, _ = options_first(list(words))
        taken = (*OPTIONS, "overrides")
        if others := [key for key, each in vars(parsed).items() if each and key not in taken]:
            raise ConfigError(f"compare has no option --{others[0]}: --help lists what it has")
        pairs = [(f"--{key.replace('_', '-')}", getattr(parsed, key)) for key in OPTIONS]
        self.options = [word for pair in pairs if pair[1] is not None for word in pair]
        self._folders = parsed
        self.task, self.network, self.link = list[str](), list[str](), ""
        self.given: dict[str, str] = {}
        try:
            found = OverridesParser.create().parse_overrides(parsed.overrides)
        except HydraException as error:
            raise ConfigError(explained(error, parsed.overrides)) from error
        for each in found:
            word, key = str(each.input_line), each.key_or_group
            value = word.partition("=")[2]
            if key in (*ASKED, *OWN):
                self.given[key] = value
            elif key.partition(".")[0] == "network":
                self.link = value if key == "network" else self.link or "the network"
                self.network.append(word)
                if pair := LINK.fullmatch(word):
                    down, up = (f"network.{way}_mbps=" for way in ("down", "up"))
                    self.network[-1:] = ["network=ideal", down + pair[1], up + pair[2]]
            else:
                self.task.append(word)
            if each.is_sweep_override() and key not in ASKED:
                raise ConfigError(f"{word} has several values: compare takes one task")
        seeds = self.given.get("seed", "0,1,2")
        if not re.fullmatch(r"\d+(,\d+)*", seeds):
            raise ConfigError(f"seed={seeds}: give numbers with commas between them: seed=0,1,2")
        self.seeds = list(dict.fromkeys(map(int, seeds.split(","))))
        if OmegaConf.get_type(self.base) is not Config:
            raise ConfigError("compare takes a task, not a saved configuration: give its words")

    def compose(self, *words: str, task: bool = True) -> DictConfig:
        """Return the configuration of words, and of the task and the link. Raises `ConfigError`."""
        own, folders = [*self.task, *self.network] if task else [], self._folders
        search = []
        if folders.config_dir is not None:
            place = quoted(f"file://{Path(folders.config_dir).absolute()}")
            search = [f"hydra.searchpath=[{place}]"]
        try:
            return compose_config(
                [*own, *words, *search],
                folder=Path(folders.config_path or HERE).absolute(),
                name=folders.config_name or "config",
            )
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(explained(error, [*self.options, *own, *words])) from error

    @cached_property
    def base(self) -> DictConfig:
        """The configuration of `FEW_BYTES`; all methods have its nodes and rounds."""
        own = [f"{key}={self.given[key]}" for key in OWN if key in self.given]
        return self.compose(f"algorithm={FEW_BYTES}", *own)

    @property
    def is_known(self) -> bool:
        """Whether the presets' rates suit the task: it is ours, or `lr=` was given.

        Data from the user's files, and data or models of the user's code, are not ours.
        """
        base, ours = self.base, "edgewire."
        targets = [str(base[group].get("_target_") or ours) for group in ("dataset", "model")]
        own = base.dataset.root or not all(each.startswith(ours) for each in targets)
        return "lr" in self.given or not own

    def methods(self, default: Iterable[str]) -> list[Method]:
        """Return the presets to compare, the uncompressed one first, with their rates.

        A rate is the given one, else the preset's own, else the task's.
        """
        chosen = self.given["algorithm"].split(",") if "algorithm" in self.given else default
        rate = self.given.get("lr") or f"{self.compose(f'algorithm={UNCOMPRESSED}').lr:.4g}"
        found = []
        for name in dict.fromkeys([UNCOMPRESSED, *chosen]):
            preset = self.compose(f"algorithm={name}", task=False)
            own = cast(dict[str, Any], OmegaConf.to_container(preset))["lr"]
            lr = f"{own:.4g}" if isinstance(own, float) and "lr" not in self.given else rate
            pushes = any("pushes" in each.strategy for each in (preset, self.base))
            lengths = int(self.base.rounds), int(self.base.eval_every)
            found.append(Method(name, lr, (), pushes, *lengths))
        return found

    def at_rates(self, methods: Iterable[Method]) -> list[Method]:
        """Return each method at several rates; the few bytes' rule and a given rate stay alone."""
        return [
            replace(each, lr=each.lr if factor == 1 else f"{float(each.lr) * factor:.3g}")
            for each in methods
            for factor in FACTORS
            if factor == 1 or (each.name != FEW_BYTES and "lr" not in self.given)
        ]


class Runs:
    """Makes runs of methods in a new folder, and prints lines about them.

    `title`: the end of the line that says what is trained. `failed`: a line for each failed run.
    """

    def __init__(self, asked: Asked, console: Console, title: str = "") -> None:
        self.asked, self.console, self.title = asked, console, title
        self.folder, self.failed = Path(new_folder("multirun")), list[str]()

    def print(self, *lines: object) -> None:
        """Print texts as they are, and tables."""
        for line in lines:
            self.console.print(line, markup=False, soft_wrap=not isinstance(line, Table))

    def make(
        self, name: str, methods: Iterable[Method], seeds: Sequence[int], every: float = BETWEEN
    ) -> dict[Method, list[RunResult]]:
        """Make the runs; return those that have finished or diverged, in the order of the seeds.

        `name`: of their folder. `every`: seconds between two lines. Raises `ResultsError` if all
        runs fail, and `RunFailed` if none begins.
        """
        asked, began = self.asked, time.monotonic()
        jobs = list(product(seeds, dict.fromkeys(methods)))
        cases = [shlex.join(method.overrides(int(asked.base.nodes), seed)) for seed, method in jobs]
        done, last = 0, began

        def ended(folder: Path) -> None:
            nonlocal done, last
            seed, method = jobs[int(folder.name)]
            done, now = done + 1, time.monotonic()
            result = readable(read_result, folder) or {}
            if result and self.title and not {*VALIDATE} & {*method.words}:
                self.print(f"{trained(result)}{self.title}")
                self.title = ""
            if now - last < every:
                return
            last, left = now, round((now - began) / done * (len(jobs) - done))
            metric = main_of(result)
            value = metric.text(result.get(metric.name)) if result else failed_line(folder)
            rest = f" (about {human_seconds(left)} left)" if done < len(jobs) else ""
            self.print(f"run {done} of {len(jobs)} is done: {method}, seed {seed}: {value}{rest}")

        words = [*asked.options, "hydra/sweeper=cases", *asked.task, *asked.network]
        words += [f"hydra.sweep.dir={quoted(str(self.folder / name))}"]
        logging.disable(logging.WARNING)  # a rate that is too high has many
        try:
            found = run_sweep([*words, f"hydra.sweeper.cases={json.dumps(cases)}"], ended=ended)
        finally:
            logging.disable(logging.NOTSET)
        results: dict[Method, list[RunResult]] = {}
        for run in found:
            results.setdefault(jobs[int(run.folder.name)][1], []).append(run)
        if not found and found.failed:
            raise ResultsError(next(iter(found.failed.values())))
        for folder, line in found.failed.items():
            if folder.name.isdecimal() and not any(run.folder == folder for run in found):
                seed, method = jobs[int(folder.name)]
                self.failed.append(f"{method}, seed {seed}: {line}")
        return results

    def with_best_rates(self, methods: Sequence[Method]) -> list[Method]:
        """Return the methods, each with the best of several rates after a third of the rounds.

        Of equal rates it is the middle one. A method without a value stays as it is.
        """
        self.print("the learning rates are searched first, in short runs")
        rates = self.asked.at_rates(each for each in methods if each.name != FEW_BYTES)
        short = [replace(each, words=VALIDATE, rounds=max(2, each.rounds // 3)) for each in rates]
        values: dict[tuple[str, str], float] = {}
        for method, (run,) in self.make("rates", short, self.asked.seeds[:1]).items():
            metric = main_of(run.values)
            value = run.values.get(metric.name)
            if value is not None and not run.diverged:
                values[method.name, method.lr] = value * (-1 if metric.higher else 1)
        best = []
        for each in methods:
            found = [lr for name, lr in values if name == each.name]
            ranked = sorted(found, key=lambda lr: (values[each.name, lr], lr != each.lr))
            best.append(replace(each, lr=next(iter(ranked), each.lr)))
        return best


def trained(result: Mapping[str, Any]) -> str:
    """Return what is trained, for the first line of a screen."""
    return f"{result['dataset']} · {result['model']} · {result['nodes']} nodes"
