"""What `compare` and its searches share: the words of the task, methods with rates, their runs."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from edgewire.command.python_api import run_sweep
from edgewire.command.run_lock import new_folder
from edgewire.command.run_result import RunResult
from edgewire.command.saved_config import options_first, quoted
from edgewire.conf.load import HERE, compose_config
from edgewire.conf.schema import Config, ConfigError
from edgewire.conf.words import explained
from edgewire.report.format import human_seconds
from edgewire.report.metric import MainMetric, main_of
from edgewire.report.reader import readable
from edgewire.report.runs import failed_line, read_result

UNCOMPRESSED, FEW_BYTES = "fedavg", "edgewire"
NAMES = {UNCOMPRESSED: "uncompressed", "fedavg_f2i_both": "int8", FEW_BYTES: "few bytes"}
OPTIONS = ("config_path", "config_name", "config_dir")  # of Hydra, which are passed on
ASKED = ("algorithm", "seed", "goal", "minutes", "bytes")  # words that Hydra does not get
CASE = ("nodes", "rounds", "lr", "eval_every")  # words of which each run gets its own
SEEDS = 3
FACTORS = (0.3, 1.0, 3.0)  # of a method's rate, in a search of rates
LEAST_ROUNDS = 2
VALIDATE = "dataset.validate=0.1"
BETWEEN = 20.0  # seconds between two lines of a search
LINK = re.compile(r"network=([0-9.eE+-]+)/([0-9.eE+-]+)")  # Mbit/s down and up


@dataclass(frozen=True)
class Method:
    """A preset with its learning rate as text, and further overrides, such as `fidelity=0.3`.

    `pushes`: whether it is asynchronous: the length of its runs is a number of replies.
    """

    name: str
    lr: str = ""
    words: tuple[str, ...] = ()
    pushes: bool = False

    def __str__(self) -> str:
        shown = f"{NAMES[self.name]} ({self.name})" if self.name in NAMES else self.name
        return " ".join([shown, *self.words])


@dataclass(frozen=True)
class Case:
    """A run to make: a method with a seed for some rounds.

    `words`: further overrides. `every`: rounds between two evaluations; 0: as in the task.
    """

    method: Method
    seed: int
    rounds: int
    words: tuple[str, ...] = ()
    every: int = 0


@dataclass(frozen=True)
class Asked:
    """What the words of the command line ask for.

    `options`: Hydra's. `task`: overrides of the task. `network`: overrides of the link. `given`:
    the values of `ASKED` and `CASE`, by key.
    """

    options: Mapping[str, str]
    task: tuple[str, ...]
    network: tuple[str, ...]
    given: Mapping[str, str]
    link: str = ""  # the link's name

    @cached_property
    def base(self) -> DictConfig:
        """The configuration of `FEW_BYTES`, whose nodes and rounds all methods have."""
        fixed = [f"{key}={self.given[key]}" for key in CASE if key in self.given]
        return self.compose(f"algorithm={FEW_BYTES}", *fixed)

    @property
    def words(self) -> list[str]:
        """The words of the task and its options, for a command line."""
        pairs = [(f"--{key.replace('_', '-')}", value) for key, value in self.options.items()]
        return [*(word for pair in pairs for word in pair), *self.task]

    @property
    def rounds(self) -> int:
        """The rounds of a whole run."""
        return int(self.base.rounds)

    def names(self, default: Iterable[str]) -> list[str]:
        """Return the names of the methods to compare; the uncompressed one comes first."""
        chosen = (
            self.given.get("algorithm", "").split(",") if "algorithm" in self.given else default
        )
        return list(dict.fromkeys([UNCOMPRESSED, *chosen]))

    @property
    def seeds(self) -> list[int]:
        """The seeds. Raises `ConfigError` for a text that is no list of numbers."""
        text = self.given.get("seed", ",".join(map(str, range(SEEDS))))
        if not re.fullmatch(r"\d+(,\d+)*", text):
            raise ConfigError(f"seed={text}: give numbers with commas between them: seed=0,1,2")
        return list(dict.fromkeys(map(int, text.split(","))))

    def compose(self, *words: str, task: bool = True) -> DictConfig:
        """Return the configuration of the words. Raises `ConfigError`.

        `task`: whether it has the words of the task and the link.
        """
        own = [*self.task, *self.network] if task else []
        place = Path(self.options.get("config_path", HERE)).absolute()
        search = []
        if "config_dir" in self.options:
            folder = Path(self.options["config_dir"]).absolute()
            search = [f"hydra.searchpath=[{quoted(f'file://{folder}')}]"]
        try:
            return compose_config(
                [*own, *words, *search],
                folder=place,
                name=self.options.get("config_name", "config"),
            )
        except (HydraException, OmegaConfBaseException) as error:
            line = explained(error, [*replace(self, task=()).words, *own, *words])
            raise ConfigError(line) from error


def asked_for(words: Sequence[str]) -> Asked:
    """Return what the words ask for. Raises `ConfigError`."""
    parsed, argv = options_first(list(words))
    options = {key: value for key in OPTIONS if (value := getattr(parsed, key)) is not None}
    count = len(argv) - len(parsed.overrides)
    if others := [
        k for k, value in vars(parsed).items() if value and k not in (*OPTIONS, "overrides")
    ]:
        raise ConfigError(f"compare has no option --{others[0]}: {' '.join(argv[:count])}")
    given: dict[str, str] = {}
    task, network, link = [], [], ""
    for word in parsed.overrides:
        key, equals, value = word.partition("=")
        if not equals and not word.startswith("~"):
            raise ConfigError(f"{word!r} is no override: give KEY=VALUE, such as rounds=20")
        if key in (*ASKED, *CASE):
            given[key] = value
        elif key.partition(".")[0] == "network":
            link = value if key == "network" else link or "the network"
            pair = LINK.fullmatch(word)
            network += _link(*pair.groups()) if pair else [word]
        else:
            task.append(word)
    for word in (*task, *network):
        if _several(word):
            raise ConfigError(f"{word} has several values, and compare takes one task: give one")
    asked = Asked(options, tuple(task), tuple(network), given, link)
    if OmegaConf.get_type(asked.base) is not Config:
        raise ConfigError("compare takes a task, and no saved configuration: give its overrides")
    return asked


def _link(down: str, up: str) -> list[str]:
    return ["network=ideal", f"network.down_mbps={down}", f"network.up_mbps={up}"]


def _several(word: str) -> bool:
    try:
        return OverridesParser.create().parse_override(word).is_sweep_override()
    except HydraException as error:
        raise ConfigError(explained(error, [word])) from error


def is_known(asked: Asked) -> bool:
    """Return whether the rates of the presets suit the task: it is ours, or `lr=` was given.

    Data from the user's files, and data or models of the user's code, are not ours.
    """
    if "lr" in asked.given:
        return True
    targets = [
        str(asked.base[group].get("_target_") or "edgewire.") for group in ("dataset", "model")
    ]
    return all(each.startswith("edgewire.") for each in targets) and not asked.base.dataset.root


def methods_of(asked: Asked, names: Iterable[str]) -> list[Method]:
    """Return presets with their rates: the preset's own one, else the task's; or the given one."""
    rate = asked.given.get("lr") or f"{asked.compose(f'algorithm={UNCOMPRESSED}').lr:.4g}"
    found = []
    for name in names:
        preset = asked.compose(f"algorithm={name}", task=False)
        own = OmegaConf.to_container(preset, resolve=False)["lr"]  # type: ignore[index,call-overload]
        has_own = isinstance(own, float) and "lr" not in asked.given
        pushes = any("pushes" in each.strategy for each in (preset, asked.base))
        found.append(Method(name, f"{own:.4g}" if has_own else rate, pushes=pushes))
    return found


def at_rates(asked: Asked, methods: Iterable[Method]) -> list[Method]:
    """Return each method at several rates; the few bytes' rule, and a given rate, stay alone."""
    return [
        replace(each, lr=f"{float(each.lr) * factor:.3g}") if factor != 1 else each
        for each in methods
        for factor in (FACTORS if each.name != FEW_BYTES and "lr" not in asked.given else (1.0,))
    ]


def with_best_rates(asked: Asked, methods: Sequence[Method], runs: Runs) -> list[Method]:
    """Return the methods with the best of several rates, after a third of the rounds.

    A part of the training set is the test set.
    """
    rounds = max(LEAST_ROUNDS, asked.rounds // 3)
    several = [each for each in at_rates(asked, methods) if each.name != FEW_BYTES]
    cases = [Case(each, asked.seeds[0], rounds, (VALIDATE,)) for each in several]
    done = runs.make("rates", cases, BETWEEN)
    return [best_rate(each, done) for each in methods]


def best_rate(method: Method, done: Mapping[Case, RunResult]) -> Method:
    """Return the method with that rate of which the last value is best; of equals the middle one.

    A method of which no run has a value is returned as it is.
    """
    values: dict[Method, float] = {}
    for case, run in done.items():
        metric = run.as_run().metric
        value = run.metrics[metric.name]
        value = run.metrics["loss"] if value is None else value * (-1 if metric.higher else 1)
        same = replace(case.method, lr=method.lr) == method
        if same and value is not None and not run.diverged:
            values[case.method] = value
    return min(values, key=lambda each: (values[each], each != method), default=method)


class Runs:
    """Makes the runs of a comparison below a folder, and prints lines about them.

    `title`: what the line that says what is trained ends with. `folder`: the folder. `failed`: why
    runs have failed.
    """

    def __init__(self, asked: Asked, console: Console, title: str) -> None:
        self.asked, self.console, self.title = asked, console, title
        self.folder = Path(new_folder("multirun"))
        self.failed: dict[Case, str] = {}
        self._headed = False

    def make(self, name: str, cases: Sequence[Case], every: float = 0.0) -> dict[Case, RunResult]:
        """Make the runs; return those that have finished or diverged.

        `name`: of their folder. `every`: seconds between two lines.
        """
        cases = list(dict.fromkeys(cases))
        texts = [shlex.join(self.words(case)) for case in cases]
        began = last = time.monotonic()
        done = 0

        def ended(folder: Path) -> None:
            nonlocal done, last
            done, now, case = done + 1, time.monotonic(), cases[int(folder.name)]
            result = readable(read_result, folder)
            if result and VALIDATE not in case.words and not self._headed:
                self._print(f"{trained(result)}{self.title}")
                self._headed = True
            if now - last < every:
                return
            last = now
            metric = MainMetric("") if result is None else main_of(result)
            value = metric.text(result.get(metric.name)) if result else failed_line(folder)
            left = (now - began) / done * (len(cases) - done)
            rest = f" (about {human_seconds(round(left))} left)" if done < len(cases) else ""
            text = f"{case.method}, seed {case.seed}: {value}{rest}"
            self._print(f"run {done} of {len(cases)} is done: {text}")

        place = self.folder / name
        words = [
            "hydra/sweeper=cases", f"hydra.sweep.dir={quoted(str(place))}",
            f"hydra.sweeper.cases={json.dumps(texts)}",
        ]  # fmt: skip
        asked = self.asked
        found = run_sweep([*asked.words, *asked.network, *words], ended=ended)
        for folder, line in found.failed.items():
            if folder.name.isdecimal():
                self.failed[cases[int(folder.name)]] = line
        return {cases[int(run.folder.name)]: run for run in found}

    def words(self, case: Case) -> list[str]:
        """Return the overrides of a run, beside those of the task and the link."""
        asked, method = self.asked, case.method
        nodes = int(asked.base.nodes)
        unit = nodes if method.pushes else 1
        length = "strategy.pushes" if method.pushes else "rounds"
        every = case.every or int(asked.base.eval_every)
        return [
            f"algorithm={method.name}", *method.words, *case.words, f"lr={method.lr}", f"nodes={nodes}",
            f"{length}={case.rounds * unit}", f"eval_every={every * unit}", f"seed={case.seed}",
        ]  # fmt: skip

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)


def trained(result: Mapping[str, object]) -> str:
    """Return what is trained, for the first line of a screen."""
    return f"{result['dataset']} · {result['model']} · {result['nodes']} nodes"
