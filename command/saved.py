"""A saved configuration: `--config-path RUN/.hydra --config-name config` runs it again."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from conf import Config, ConfigError
from conf.load import HERE as CONF
from conf.load import compose_config

# What conf/config.yaml says of Hydra itself; the file that Hydra saves has none of it.
SETTINGS = (
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
    "+hydra.callbacks.sweep_end._target_=command.sweep.SweepEnd",
)


def command_line(words: list[str]) -> list[str]:
    """Return Hydra's command line for the user's.

    A relative `--config-path` starts in the working directory, as a person expects; Hydra's own
    starts at the module that it calls.
    """
    given = get_args_parser().parse_args(words)
    if given.config_path is None or "://" in given.config_path:
        return words
    folder = Path(given.config_path).absolute()
    if not (folder / f"{given.config_name or 'config'}.yaml").is_file():
        raise ConfigError(f"there is no {folder / (given.config_name or 'config')}.yaml")
    saved = (folder / "overrides.yaml").is_file() and (folder / "hydra.yaml").is_file()
    return [*words, *(SETTINGS if saved else ()), "--config-path", str(folder)]


def completed(composed: DictConfig) -> DictConfig:
    """Return a configuration with its types; of a saved one, with what is chosen anew in it.

    Hydra knows no groups there: `network=adsl` has put the word where the group's keys were.
    """
    if OmegaConf.get_type(composed) is Config:
        return composed
    for word in HydraConfig.get().overrides.task:
        if word.lstrip("+").startswith(("algorithm=", "experiment=")):
            raise ConfigError(f"{word} would change all of a saved one: drop --config-path")
    for group in (path.name for path in CONF.iterdir() if path.is_dir()):
        choice = composed.get(group)
        if isinstance(choice, str) and group != "algorithm":
            chosen = OmegaConf.to_container(compose_config([f"{group}={choice}"])[group])
            with open_dict(composed):
                composed[group] = chosen
    return cast(DictConfig, OmegaConf.merge(OmegaConf.structured(Config), composed))
