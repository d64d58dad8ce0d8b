"""The configuration: Hydra's groups (YAML), their types (`schema`), and checks."""

from edgewire.conf.load import load_config, run_config
from edgewire.conf.option_group import OptionGroup
from edgewire.conf.schema import Config, ConfigError

__all__ = ["Config", "ConfigError", "OptionGroup", "load_config", "run_config"]
