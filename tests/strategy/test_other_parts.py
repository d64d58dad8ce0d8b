"""A reply is left out if a tensor is in the wrong part of its payload; other replies count.

A payload has two parts: one vector of all float32 tensors, and other tensors in their own type.
"""

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from compression import decode_update, describe, make_codec
from compression.wire_natives import NativeTensor
from tests.hostile import app_with, payload
from tests.local_runs import local_run
from tests.runs import result_of

SHORT = ["dataset=digits", "model=mlp", "nodes=3", "rounds=2", "eval_every=2", "lr=0.1"]
PUSHES = ["strategy.pushes=9", "strategy.record_every=9", "eval_every=9"]


def first_beside(payload):
    """Encode a payload again by its own methods; the first tensor leaves the float32 vector."""
    update, said = decode_update(payload), describe(payload)
    codec = make_codec(quantizer=said.quantizer, coder=said.coder)
    name, shape = update.layout.names[0], update.layout.shapes[0]
    own = [NativeTensor(0, name, np.ones(shape, np.float32))]
    rest = update.layout.without((0,))
    made = bytearray(codec.encode(np.ones(rest.size, np.float32), rest, own=own))
    made[4] = payload[4]  # the sparsifier's id
    return bytes(made[:-8]) + xxh3_64_intdigest(made[:-8]).to_bytes(8, "little")


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm=sgd"],
        ["algorithm=esgd"],
        ["algorithm=powersgd"],
        ["algorithm=fedavg_topk"],
        ["algorithm=sgd", "strategy.mean=median"],
        ["algorithm=adacomp", *PUSHES],
    ],
    ids=" ".join,
)
def test_a_reply_with_its_first_tensor_beside_the_vector_is_left_out(tmp_path, words, caplog):
    local_run(tmp_path, *SHORT, *words, client_app=app_with(payload(first_beside)))
    result = result_of(tmp_path)
    assert result["ended"] == "finished"
    assert result["failures"] >= 2
    assert result["client_updates"] >= 4
    assert "must travel in the vector, not in its own type" in caplog.text
