"""Runs the words of a command line: Hydra composes a configuration and calls `command.job.job`."""

from __future__ import annotations

import signal
import sys
from contextlib import chdir
from pathlib import Path
from string import Template

import hydra
from omegaconf import OmegaConf, open_dict

from edgewire.command.exit import clear_errors
from edgewire.command.job import job
from edgewire.command.saved_config import command_line, composed_from, options_first, started_in
from edgewire.command.sweep import SWEEP, SweepEnd
from edgewire.conf.load import HERE as CONF
from edgewire.machine.processes import orderly_exit
from edgewire.machine.proxies import keep_loopback_direct

main = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)


def run_hydra(words: list[str]) -> None:
    """Let Hydra compose and run the words of a command line.

    Raises `SystemExit` if a run fails (`Failed`) or is stopped (`Stopped`); a failed run of a sweep
    sets `SweepEnd.code`.
    """
    SweepEnd.code = 0
    keep_loopback_direct()
    with clear_errors(), orderly_exit(), SWEEP:
        if {"-h", "--help"} & set(words):
            text = help_text(words)
            if hasattr(signal, "SIGPIPE"):
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the command silently
            print(text)
            return
        sys.argv = [sys.argv[0], *command_line(words)]
        with chdir(started_in(words)):
            main()


def help_text(words: list[str]) -> str:
    """Return the help: the groups with their choices, and the keys that the words give.

    Hydra's own `--help` reads all of conf/ once for each group, which takes seconds.
    """
    given = options_first(words)[0]
    folders = [CONF, *([Path(given.config_dir).absolute()] if given.config_dir else [])]
    config = composed_from(given, given.overrides, hydra=True)
    choices: dict[str, set[str]] = {}
    for folder in folders:  # a glob with ** would not enter conf/experiment, a link
        for file in (*folder.glob("*/*.yaml"), *folder.glob("*/*/*.yaml")):
            choices.setdefault(file.parent.relative_to(folder).as_posix(), set()).add(file.stem)
    lines = [f"{group}: {', '.join(sorted(names))}\n" for group, names in sorted(choices.items())]
    groups = "".join(line for line in lines if not line.startswith("hydra"))
    template = Template(config.hydra.help.template)
    with open_dict(config):
        del config["hydra"]
    return template.safe_substitute(APP_CONFIG_GROUPS=groups, CONFIG=OmegaConf.to_yaml(config))
