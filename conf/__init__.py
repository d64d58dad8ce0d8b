"""The configuration: Hydra's groups (YAML), their types (`schema`), and checks."""

from conf.load import load_config, run_config
from conf.option_group import OptionGroup
from conf.schema import Config, ConfigError

__all__ = ["Config", "ConfigError", "OptionGroup", "load_config", "run_config"]
