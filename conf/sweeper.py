"""A Hydra sweeper for experiments whose jobs are a list of cases, not only a product."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback

from edgewire.conf.schema import ConfigError

# Before the import below: the search for plugins executes that module again, with a new class.
Plugins.instance()

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper  # noqa: E402


class Cases(BasicSweeper):
    """Runs every case with every combination of the params, case after case.

    A case is a string of overrides ("algorithm=esgd compression.drop=0.25"). If the command line,
    the case or the params set the same key, the first of them in this order wins. Equal jobs run
    only once.
    """

    def __init__(
        self,
        max_batch_size: int | None,
        params: dict[str, str] | None = None,
        cases: Sequence[str] = (),
    ) -> None:
        super().__init__(max_batch_size, params)
        self.cases = cases

    def split_arguments(  # type: ignore[override]  # a static method there: it knows no cases
        self, overrides: list[Override], max_batch_size: int | None
    ) -> list[list[list[str]]]:
        """Return batches of jobs; each job is a list of overrides. Raises like `jobs_of`.

        `overrides`: the overrides from `self.params`, and after them those of the command line.
        """
        loader = None if self.hydra_context is None else self.hydra_context.config_loader
        sweeper = {"params": self.params, "cases": self.cases}
        jobs = jobs_of(sweeper, overrides[len(self.params) :], loader)
        return list(self.split_overrides_to_chunks(jobs, max_batch_size))


def jobs_of(
    sweeper: Mapping[str, Any], line: list[Override], loader: ConfigLoader | None = None
) -> list[list[str]]:
    """Return the jobs of a sweeper's cases, its params and a command line, as overrides.

    Raises `ConfigError`, or an error of Hydra's, for cases or params that cannot be parsed.
    """
    parse = OverridesParser.create(config_loader=loader).parse_overrides
    params = parse([f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()])
    cases = sweeper.get("cases") or ()
    if isinstance(cases, str) or not isinstance(cases, Sequence):
        raise ConfigError(f"hydra.sweeper.cases must be a list of strings, not {cases!r}")
    jobs: list[list[str]] = []
    for case in [parse(split_case(case)) for case in cases] or [[]]:
        fixed = {word.key_or_group for word in case}
        free = [word for word in params if word.key_or_group not in fixed]
        # If several overrides set the same key, BasicSweeper keeps the last one.
        jobs += BasicSweeper.split_arguments([*case, *free, *line], None)[0]
    return [list(job) for job in dict.fromkeys(map(tuple, jobs))]


def split_case(case: object) -> list[str]:
    """Return a case's overrides, split as in a shell. Raises `ConfigError` if it cannot be."""
    try:
        if isinstance(case, str):
            return shlex.split(case)
    except ValueError as error:
        raise ConfigError(f"hydra.sweeper.cases: {case!r}: {error}") from error
    raise ConfigError(f"hydra.sweeper.cases: {case!r} is not a string of overrides")


class Register(Callback):
    """Registers `Cases` with Hydra, which finds plugins in the package `hydra_plugins` only.

    Hydra makes the callbacks in hydra/sweeper/cases.yaml before it looks up its sweeper.
    """

    def __init__(self) -> None:
        Plugins.instance().class_name_to_class["hydra_plugins.edgewire.Cases"] = Cases
