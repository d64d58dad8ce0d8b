"""What a user may hand over by mistake, refused at once."""

from __future__ import annotations

from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from ..codec import Codec
from ..statistics import exact_tensors, expect_matches
from .form import Form
from .mixing import wrapped_by

PRIVATE = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)


def expect_types(strategy: object, downlink: object, exact: object) -> None:
    """Raise `TypeError` unless these are a strategy, a codec or None, a list of patterns."""
    if isinstance(strategy, type):
        name = strategy.__name__
        raise TypeError(f"Compressed wraps a strategy, not its class: Compressed({name}())")
    if not isinstance(strategy, Strategy):
        old = type(strategy).__module__.startswith(("flwr.server.", "flwr.compat."))
        why = "; it is of Flower's old API" if old else ""
        raise TypeError(
            "Compressed wraps a strategy of Flower's message API (flwr.serverapp.strategy), "
            f"not {strategy!r}{why}"
        )
    if downlink is not None and not isinstance(downlink, Codec):
        raise TypeError(
            f'downlink must be a codec, not {downlink!r}: make_codec(quantizer="int8"), say'
        )
    if not isinstance(exact, list | tuple) or not all(isinstance(each, str) for each in exact):
        raise TypeError(f"exact must be a list of patterns of names, not {exact!r}")


def expect_model(strategy: Strategy, form: Form, exact: tuple[str, ...], flat: bool) -> None:
    """Raise `ValueError` for a model that does not go with the strategy or the options."""
    if flat and form.beside:
        raise ValueError("flat=True goes with models of float32 alone, and no exact=")
    beside = form.beside or exact_tensors(form.layout)
    if beside and any(isinstance(each, PRIVATE) for each in wrapped_by(strategy)):
        raise ValueError(
            "differential privacy covers what the strategy sees, and not BatchNorm's running "
            "statistics, integers or exact tensors: take a model without (GroupNorm, LayerNorm)"
        )
    expect_matches(form.whole, exact)
