"""Methods register themselves, and their options are known by name."""

import math
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import pytest

from edgewire.compression import registry
from edgewire.compression.base import PayloadError, ResidualSparsifier, Selection, Sparsifier
from edgewire.compression.coders.zstd import Zstd
from edgewire.compression.decoder import decode
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.registry import (
    STAGES,
    by_id,
    get,
    names,
    option_fields,
    register,
)


def unregister(stage, name):
    del vars(registry)["_registered"][stage][name]
    by_id.cache_clear()


METHODS = [(stage, name) for stage in STAGES for name in names(stage)]
# Stored payloads contain a method's id, its position here, so these never change.
IDS = {
    "sparsifier": "dense topk threshold gradient_dropping randomk selective esgd cesgd dgc "
    "ef21 energy",
    "quantizer": "float32 float16 int8 bfloat16 int4 qsgd ternary sign powersgd drive lloyd eden",
    "coder": "raw zip zstd entropy",
}


def test_ids_never_change():
    for stage, methods in IDS.items():
        for number, name in enumerate(methods.split()):
            assert get(stage, name).id == number


@pytest.mark.parametrize(("stage", "name"), METHODS)
def test_every_id_finds_its_method(stage, name):
    method = get(stage, name)
    assert by_id(stage, method.id) is method
    assert method.name == name
    assert issubclass(method, STAGES[stage])
    assert method() == method(), "methods are values"


@pytest.mark.parametrize("stage", STAGES)
def test_an_unknown_id_is_a_payload_error(stage):
    with pytest.raises(PayloadError, match=f"{stage} 255"):
        by_id(stage, 255)


@pytest.mark.parametrize("stage", STAGES)
def test_an_unknown_name_lists_the_names(stage):
    with pytest.raises(ValueError, match="nonsense") as error:
        make_codec(**{stage: "nonsense"})
    assert all(name in str(error.value) for name in names(stage))


def test_options_reach_their_method():
    assert make_codec(coder="zstd", level=7).coder == Zstd(level=7)
    assert make_codec(coder="zstd", level=None).coder == Zstd()


def test_an_unknown_option_gives_one_line():
    with pytest.raises(ValueError, match="option level does not go with") as error:
        make_codec("dense", "int8", "raw", level=3)
    message = str(error.value)
    assert all(word in message for word in ("dense", "int8", "raw", "none"))
    assert "\n" not in message
    make_codec("dense", "int8", "raw", level=None)


WRONG = {  # by method and option
    "topk": {"density": (0.0, 1.1, math.nan), "scope": ("layer",)},
    "threshold": {"threshold": (-1.0, 0.0), "sent": ("half",)},
    "gradient_dropping": {"drop": (1.0, 1.5), "cut": ("rough",)},
    "randomk": {"density": (-0.1,)},
    "selective": {"pick": ("best",), "threshold": (0.1,)},
    "esgd": {"drop": (1.0, 2.0), "residual": ("sum",), "beta": (1.5,), "cap": (-1.0,)},
    "cesgd": {"operator": ("both",), "gain": (math.inf,), "speculative": (2.0,), "decay": (1.1,),
              "keep": ("always",), "scope": ("layer",)},
    "dgc": {"sparsity": (1.0,), "layers": ("fc",), "workers": (-1,), "warmup_steps": (-1,),
            "clip_norm": (-1.0,), "momentum": (1.1,)},
    "energy": {"energy": (0.0, 1.1), "last_energy": (math.nan,), "last_share": (1.0,),
               "total_steps": (-1,), "fidelity_power": (-0.1, 1.1),
               "fidelity": ("lots", "0", "-1", "nan", "inf", "")},
    "int4": {"block": (15, 65537)},
    "qsgd": {"levels": (0, 128), "bucket": (0,), "norm": ("l1",)},
    "ternary": {"clip": (-1.0, math.nan)},
    "sign": {"means": ("row",)},
    "drive": {"scale": ("best",)},
    "powersgd": {"rank": (0, 65)},
    "zstd": {"level": ("3", 3.0, True, 0, 20, -1)},
}  # fmt: skip
SAID = {
    ("topk", "density", 1.1): "must be a number above 0 and at most 1, not 1.1",
    ("esgd", "drop", 1.0): "must be a number of at least 0 and below 1, not 1.0",
    ("int4", "block", 15): "must be a number of at least 16 and at most 65536, not 15",
    ("ternary", "clip", -1.0): "must be a number of at least 0, not -1.0",
    ("qsgd", "norm", "l1"): "must be one of max, l2, not 'l1'",
    ("energy", "fidelity", "lots"): "above 0 or one of low, medium, high, not 'lots'",
    ("zstd", "level", "3"): "must be int, not '3'",
}


@pytest.mark.parametrize(
    ("method", "option", "value"),
    [(m, o, value) for m, options in WRONG.items() for o, v in options.items() for value in v],
)
def test_a_wrong_value_is_refused_in_one_line(method, option, value):
    (stage,) = (stage for stage in STAGES if method in names(stage))
    with pytest.raises(ValueError, match=f"^option {option} of {method} [^\n]*$") as error:
        make_codec(**{stage: method, option: value})
    assert str(error.value).endswith(SAID.get((method, option, value), ""))


def test_option_fields_are_the_union_of_all_methods():
    found = {option: (kind, owners) for option, kind, owners in option_fields()}
    assert found["level"] == (int, ["zstd"])
    for stage, name in METHODS:
        for field in fields(get(stage, name)):
            assert name in found[field.name][1]


@dataclass(frozen=True)
class Own(Zstd):
    name: ClassVar[str] = "own"
    id: ClassVar[int] = 255


def other(**values):
    """Return a class of another package that differs from `Own` in some class variables."""
    return dataclass(frozen=True)(type("Other", (Own,), values))


BARE = {"choose": lambda self, given, step: given, "__module__": __name__}
REFUSED = [
    ("sparsifer", Own, ValueError, "'sparsifer'.*there are sparsifier, quantizer, coder"),
    ("quantizer", Zstd, TypeError, "no dataclass derived from Quantizer"),
    ("coder", other(name="zstd", id=200), ValueError, "taken by zstd"),
    ("coder", other(name="other", id=2), ValueError, "taken by zstd"),
    ("coder", other(name="own2"), ValueError, r"own2 \(id 255\): name or id is taken by own"),
    ("coder", other(id=254), ValueError, r"own \(id 254\): name or id is taken by own"),
    ("coder", other(name="other", id=200, level=1.0, __annotations__={"level": float}), ValueError,
     "option level of other has another type"),
    *(("coder", other(name="mine", id=n), ValueError,
       f"mine: its id is {n}; the ids 0 to 191 are those of") for n in (-1, 100, 191, 256)),
    ("coder", other(name="mine", id=192, __module__="edgewire.compression.coders.own"), ValueError,
     "mine: its id is 192; the ids 0 to 191 are those of"),
    *(("coder", other(id=n), TypeError, r"Other: its id is .*; give id: ClassVar\[int\] = 192")
      for n in ("192", 192.0, None, True)),
    *(("sparsifier", dataclass(frozen=True)(type("Bare", (ResidualSparsifier,), {**BARE, **has})),
       TypeError, f"sparsifier Bare: its {key} is missing; give {key}: ")
      for key, has in (("name", {"id": 200}), ("id", {"name": "bare"}))),
]  # fmt: skip


@pytest.mark.parametrize(("stage", "cls", "error", "said"), REFUSED)
def test_a_class_that_cannot_be_registered_is_refused(registered, stage, cls, error, said):
    with pytest.raises(error, match=said):
        register(stage)(cls)


@pytest.fixture
def registered():
    """Register `Own` for one test."""
    register("coder")(Own)
    yield
    unregister("coder", "own")


def test_a_class_that_is_imported_again_takes_its_place(registered):
    assert by_id("coder", 255) is Own
    again = other(__module__=Own.__module__, __qualname__=Own.__qualname__)
    register("coder")(again)
    assert get("coder", "own") is by_id("coder", 255) is again
    register("coder")(Own)


def test_a_method_of_another_package_makes_payloads(registered):
    layout = Layout(("w",), ((40,),), ("float32",))
    update = np.arange(40, dtype=np.float32)
    payload = make_codec(coder="own", level=3).encode(update, layout)
    assert (decode(payload)[0] == update).all()
    unregister("coder", "own")
    with pytest.raises(PayloadError, match="coder 255, which this version does not have"):
        decode(payload)
    register("coder")(Own)


CHOSEN = {
    "none": None,
    "a list": [0, 2],
    "falling": np.array([4, 2], np.uint32),
    "negative": np.array([-1, 2]),
    "beyond": np.array([2, 9], np.uint32),
}


@pytest.mark.parametrize("case", CHOSEN)
@pytest.mark.parametrize("base", [Sparsifier, ResidualSparsifier])
def test_wrong_indices_of_ones_own_sparsifier_are_one_line(base, case):
    def select(self, update, step):
        return Selection(CHOSEN[case], np.zeros(2, np.float32))

    def choose(self, given, step):
        return CHOSEN[case]

    if base is Sparsifier and case == "none":
        pytest.skip("all entries are sent")
    ways = {"select": select, "memory_bytes": lambda self, layout: 0, "residual_key": None}
    ways = ways if base is Sparsifier else {"choose": choose}
    register("sparsifier")(
        dataclass(frozen=True)(type("Bad", (base,), {"name": "bad", "id": 200, **ways}))
    )
    try:
        codec = make_codec(sparsifier="bad")
        update = np.arange(9, dtype=np.float32)
        with pytest.raises(ValueError, match="sparsifier bad: strictly increasing ind") as caught:
            codec.encode(update, Layout(("w",), ((9,),), ("float32",)), memory={})
        assert "\n" not in str(caught.value)
    finally:
        unregister("sparsifier", "bad")
