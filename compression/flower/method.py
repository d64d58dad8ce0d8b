"""A codec by the name of its method, as one says it in a line of an app."""

from __future__ import annotations

from typing import Any

from ..codec import Codec
from ..make import make_codec
from ..registry import names

STAGES = ("sparsifier", "quantizer", "coder")


def chosen(method: Codec | str, **options: Any) -> Codec:
    """Return a codec: the one given, or that of a sparsifier's, quantizer's or coder's name.

    `options`: as `make_codec`'s. Raises `TypeError` for what is neither, `ValueError` for a name
    that no method has or an option that does not go with it.
    """
    if isinstance(method, Codec):
        if options:
            raise TypeError(f"{', '.join(options)}: give options to make_codec, or a method's name")
        return method
    if not isinstance(method, str):
        raise TypeError(f'a codec or the name of a method is needed, "int8" say, not {method!r}')
    stage = next((stage for stage in STAGES if method in names(stage)), None)
    if stage is None:
        known = ", ".join(name for each in STAGES for name in names(each))
        raise ValueError(f"no method is called {method!r}; there are {known}")
    if stage in options:
        raise TypeError(f"{method!r} is a {stage}: {stage}={options[stage]!r} is another")
    return make_codec(**{stage: method, **options})
