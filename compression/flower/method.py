"""Makes a codec from the name of a single sparsifier, quantizer or coder, such as "int8"."""

from __future__ import annotations

from typing import Any

from ..codec import Codec
from ..make import make_codec
from ..registry import STAGES, names


def chosen(method: Codec | str, **options: Any) -> Codec:
    """Return the given codec, or make a codec from the name of a sparsifier, quantizer or coder.

    `options`: the options of `make_codec`. Raises `TypeError` if `method` is neither a codec nor a
    string, or if `method` is a codec and there are options. Raises `ValueError` for an unknown
    name, and for an option that does not fit the method.
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
