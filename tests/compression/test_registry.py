"""Methods register themselves, and their options are known by name."""

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import pytest

from edgewire.compression.base import Coder, PayloadError, ResidualSparsifier, Selection, Sparsifier
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
    unregister,
)

METHODS = [(stage, name) for stage in STAGES for name in names(stage)]
# Stored payloads contain a method's id, its position here, so these never change.
IDS = {
    "sparsifier": "dense topk threshold gradient_dropping randomk selective esgd cesgd dgc",
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


@pytest.mark.parametrize("level", ["3", 3.0, True, 0, 20, -1])
def test_a_wrong_value_is_refused(level):
    with pytest.raises(ValueError, match="option level of zstd must be"):
        make_codec(coder="zstd", level=level)


def test_option_fields_are_the_union_of_all_methods():
    found = {option: (kind, owners) for option, kind, owners in option_fields()}
    assert found["level"] == (int, ["zstd"])
    for stage, name in METHODS:
        for field in fields(get(stage, name)):
            assert name in found[field.name][1]


def test_no_two_methods_share_a_name_or_an_id():
    @dataclass(frozen=True)
    class Other(Zstd):
        name: ClassVar[str] = "other"

    @dataclass(frozen=True)
    class Same(Zstd):
        id: ClassVar[int] = 200

    for cls in (Other, Same):
        with pytest.raises(ValueError, match="taken by zstd"):
            register("coder")(cls)


def test_an_option_has_one_type():
    @dataclass(frozen=True)
    class Other(Zstd):
        name: ClassVar[str] = "other"
        id: ClassVar[int] = 200
        level: float = 1.0

    with pytest.raises(ValueError, match="option level of other has another type"):
        register("coder")(Other)


def test_a_method_belongs_to_its_stage():
    with pytest.raises(TypeError, match="no dataclass derived from Quantizer"):
        register("quantizer")(Zstd)
    assert issubclass(Zstd, Coder)


@dataclass(frozen=True)
class Own(Zstd):
    name: ClassVar[str] = "own"
    id: ClassVar[int] = 255


def other(**values):
    """Return a class of another package that differs from `Own` in some class variables."""
    return dataclass(frozen=True)(type("Other", (Own,), values))


@pytest.mark.parametrize("number", [-1, 100, 191, 256])
def test_another_package_has_the_ids_from_192(number):
    with pytest.raises(ValueError, match=f"own: its id is {number}; the ids 0 to 191 are those of"):
        register("coder")(other(id=number))


def test_this_package_has_none_of_the_other_ids():
    with pytest.raises(ValueError, match="own: its id is 192; the ids 0 to 191 are those of"):
        register("coder")(other(id=192, __module__="edgewire.compression.coders.own"))


@pytest.fixture
def registered():
    """Register `Own` for one test."""
    register("coder")(Own)
    yield
    unregister("coder", "own")


def test_two_other_packages_cannot_share_an_id(registered):
    with pytest.raises(ValueError, match=r"own2 \(id 255\): name or id is taken by own"):
        register("coder")(other(name="own2"))
    with pytest.raises(ValueError, match=r"own \(id 254\): name or id is taken by own"):
        register("coder")(other(id=254))


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


@pytest.mark.parametrize("number", ["192", 192.0, None, True])
def test_an_id_is_an_integer(number):
    with pytest.raises(TypeError, match=r"Other: its id is .*; give id: ClassVar\[int\] = 192"):
        register("coder")(other(id=number))


@pytest.mark.parametrize("key", ["name", "id"])
def test_a_method_has_a_name_and_an_id(key):
    values = {"name": "bare", "id": 200, "choose": lambda self, given, step: given}
    del values[key]
    bare = dataclass(frozen=True)(type("Bare", (ResidualSparsifier,), values))
    with pytest.raises(TypeError, match=f"sparsifier Bare: its {key} is missing; give {key}: "):
        register("sparsifier")(bare)


def test_a_stage_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"'sparsifer'.*give one of sparsifier, quantizer, coder"):
        register("sparsifer")


CHOSEN = {
    "none": None,
    "a list": [0, 2],
    "a mask": np.arange(9) < 3,
    "floats": np.array([0.0, 2.0]),
    "a matrix": np.array([[0, 2]], np.uint32),
    "twice": np.array([2, 2], np.uint32),
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
