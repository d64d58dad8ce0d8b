"""Finds the model in a strategy's message, and decides which tensors keep their own dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape
from logging import getLogger
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from ...base import PayloadError
from ...batchnorm import expect_matches, matches
from ...layout import Layout
from ..native_tensors import natives_of
from ..node.state import fingerprint
from ..records import layout_of, payload_of, records, to_vector
from ..tensor_split import (
    FLOATS,
    Model,
    TensorSplit,
    converted,
    form_of_models,
    form_of_updates,
    is_float,
)
from ..tied_weights import Ties, still_tied, ties_in
from ..traffic import flower_bytes, warn_of_no_names, warn_of_variances
from ..uncompressed_warning import holds_floats, old_api

log = getLogger("edgewire")


@dataclass
class SentModelsState:
    """State of `SentModels`; a fingerprint identifies a model's tensor names and shapes.

    `counts`: names of tensors that are not floats, or that held infinity in the first model.
    `led_below`: True if a running variance has been negative. `tied`: by fingerprint, the tensors
    that were copies of others in all models so far. `seen`: the fingerprints of all models so far.
    """

    counts: set[str] = field(default_factory=set)
    led_below: bool = False
    tied: dict[bytes, Ties] = field(default_factory=dict)
    seen: set[bytes] = field(default_factory=set)


class FoundModel(NamedTuple):
    """A model that `SentModels` found in a message.

    `form`: the `TensorSplit` for the model's changes. `plain_bytes`: the model's bytes without
    compression. `natives`, `ties`: as in `SentMessage`.
    """

    form: TensorSplit
    model: Model
    plain_bytes: int
    natives: Mapping[str, NDArray[Any]] = {}
    ties: Ties = ()


class SentModels:
    """Finds the model in a message's content; the model is the first ArrayRecord.

    `layout`: the layout of a model that is one flat vector, if the nodes know it; None for named
    arrays. `plain_bytes`: the bytes of the model with this layout without compression. `exact`:
    patterns of names; tensors with such a name are sent in their own dtype. `apart`: patterns of
    names; tensors with such a name are never treated as copies.
    """

    def __init__(
        self,
        layout: Layout | None,
        exact: Sequence[str],
        plain_bytes: int,
        state: SentModelsState,
        apart: tuple[str, ...] = (),
    ) -> None:
        self._layout, self._exact, self._plain_bytes = layout, tuple(exact), plain_bytes
        self._state, self._apart = state, apart

    def of(self, content: RecordDict, *, first: bool) -> FoundModel | None:
        """Find the model in a message's content; return None if there is no model to compress.

        `first`: True for the first model of the run. Raises `ValueError` for a message of Flower's
        old API, and for a pattern in `exact` that matches no tensor. Raises `PayloadError` if the
        first model holds NaN.
        """
        if line := old_api(content, "CompressedGrid"):
            raise ValueError(line)
        there = records(content, ArrayRecord)
        if not there or payload_of(content) is not None:
            return None
        if self._layout is None and there[0][1] and not holds_floats(there[0][1]):
            return None  # for example decision trees: the record is sent uncompressed
        found = self._in(there[0][1], first)
        if not self._state.led_below:
            vector = converted(found.model, form_of_models(found.form), found.form).vector
            self._state.led_below = warn_of_variances(found.form.layout, vector)
        return found

    def _in(self, arrays: ArrayRecord, first: bool) -> FoundModel:
        if self._layout is not None:
            form, model = form_of_updates(self._layout, self._exact), Model(to_vector(arrays))
            return FoundModel(form, model, self._plain_bytes, natives_of(arrays))
        layout = layout_of(arrays)
        form = form_of_updates(layout, self._patterns(arrays, layout, first))
        model = form_of_models(form).model(arrays)
        return FoundModel(form, model, flower_bytes(arrays), ties=self._ties(form, model))

    def _ties(self, form: TensorSplit, model: Model) -> Ties:
        """Return the tensors that were copies of another tensor in all models so far.

        A tensor that once differed is no copy again, because later equality is chance.
        """
        key = fingerprint(form.whole)
        if (ties := self._state.tied.get(key)) is None:
            ties = ties_in(form, model, self._apart)
        self._state.tied[key] = ties = still_tied(ties, form_of_models(form), model)
        return ties

    def _patterns(self, arrays: ArrayRecord, layout: Layout, first: bool) -> tuple[str, ...]:
        """Return patterns for the names of the tensors that are sent in their own dtype.

        They include tensors that were integers in an earlier model, because a strategy's mean turns
        integers into float64. They also include tensors that hold infinity in the first model, such
        as an attention mask. Infinity that appears later means that the training diverges.
        """
        if first:
            expect_matches(layout, self._exact)
        if (key := fingerprint(layout)) not in self._state.seen:
            self._state.seen.add(key)
            self._note_infinite(arrays, layout)
            if not self._exact and not self._apart:
                warn_of_no_names(layout.names)
        floats = dict(zip(layout.names, map(is_float, layout.dtypes), strict=True))
        self._state.counts |= {name for name, float_ in floats.items() if not float_}
        made = sorted(escape(name) for name in self._state.counts if floats.get(name))
        return (*self._exact, *made)

    def _note_infinite(self, arrays: ArrayRecord, layout: Layout) -> None:
        """Note the tensors that hold infinity, to be sent exactly; raise `PayloadError` for NaN."""
        found = set[str]()
        for name, dtype in zip(layout.names, layout.dtypes, strict=True):
            if dtype in FLOATS and not np.isfinite(values := arrays[name].numpy()).all():
                if np.isnan(values).any():
                    raise PayloadError(
                        f"the first model holds NaN in {name!r}, which no payload carries: keep "
                        "that tensor at the nodes, or let infinity stand for it"
                    )
                found.add(name)
        unasked = sorted(n for n in found - self._state.counts if not matches(n, self._exact))
        if unasked:
            log.warning(
                "the first model holds infinity in %s: it goes exactly, uncompressed",
                ", ".join(map(repr, unasked)),
            )
        self._state.counts |= found
