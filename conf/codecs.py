"""Builds a configuration's codecs without torch, so that errors show before its slow import."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from edgewire.compression.codec import Codec
from edgewire.compression.make import make_codec
from edgewire.conf.schema import Config, ConfigError


def codec_of(config: Config) -> Codec:
    """Return the nodes' codec. Raises `ConfigError` for unknown methods or options."""
    return _codec("compression", asdict(config.compression))


def gradients_of(config: Config) -> Codec:
    """Return the codec for the gradients of activations, if a model is divided among nodes.

    Raises `ConfigError` like `codec_of`.
    """
    return _codec("gradients", asdict(config.gradients))


def downlink_of(config: Config) -> Codec | None:
    """Return the codec of the server's updates; None if the server sends the whole model.

    Raises `ConfigError` like `codec_of`, and for codec options with `downlink=full`.
    """
    options = asdict(config.downlink)
    from_seed = options.pop("from_seed")
    if options.pop("changes"):
        return _codec("downlink", options)
    unset = asdict(type(config.downlink)())
    if from_seed or any(options[name] != unset[name] for name in options):
        raise ConfigError("downlink=full sends the model whole; choose another downlink= first")
    return None


def _codec(group: str, options: dict[str, Any]) -> Codec:
    try:
        return make_codec(**options)
    except ValueError as error:
        raise ConfigError(f"{group}: {error}") from error
