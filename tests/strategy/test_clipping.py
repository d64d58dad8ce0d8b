"""DGC clips gradients to the norm clip_norm / sqrt(N), where N updates make a server's step."""

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from edgewire.compression.decoder import decode, decode_update
from edgewire.compression.flower import CompressionMod, layout_of, payload_of
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from tests.compression.flower.federation import compressed_run, initial, node_app
from tests.strategy.federation import LAYOUT, NODES, TRAINED, Federation, Trainer

CLIPPED = {"sparsifier": "dgc", "sparsity": 0.0, "momentum": 0.0, "clip_norm": 0.5}


def federation(update="gradient", **options):
    """Return a federation, and a list of the norms of its nodes' updates."""
    norms = []

    def reply(key, answer):
        sent = decode_update(payload_of(answer.content)[1], LAYOUT).dense()
        norms.append(float(np.linalg.norm(sent[:TRAINED])))
        return answer

    return Federation(Trainer(update, **CLIPPED, **options), reply=reply), norms


@pytest.mark.parametrize(
    ("options", "asked", "workers"),
    [
        ({}, NODES, NODES),
        ({"fraction_train": 0.5}, 2, 2),
        ({"quorum": 0.75}, NODES, 3),
        ({"fraction_train": 0.75, "quorum": 0.4}, 3, 2),
    ],
)
def test_in_a_round_n_is_the_number_of_averaged_updates(options, asked, workers):
    served, norms = federation()
    served.run(1, **options)
    assert norms == pytest.approx([0.5 * workers**-0.5] * len(norms), rel=1e-5)
    assert workers <= len(norms) <= asked


@pytest.mark.parametrize("buffer", [1, 3])
def test_in_asynchronous_training_n_is_the_buffer_size(buffer):
    served, norms = federation()
    served.push(6, buffer=buffer)
    assert norms == pytest.approx([0.5 * buffer**-0.5] * len(norms), rel=1e-5)


def test_a_given_n_is_used():
    served, norms = federation(workers=16)
    served.run(1)
    assert norms == pytest.approx([0.125] * NODES, rel=1e-5)


@pytest.mark.parametrize(("fraction", "workers"), [(1.0, 6), (0.5, 3)])
def test_for_flower_strategies_n_is_the_number_of_sampled_nodes(fraction, workers):
    norms = []

    def spy(message, context, call_next):
        reply = call_next(message, context)
        update, _ = decode(payload_of(reply.content)[1], layout)
        norms.append(float(np.linalg.norm(update)))
        return reply

    layout = layout_of(initial())
    mod = CompressionMod(make_codec(**CLIPPED))
    app = node_app(lambda *words: spy(*words[:2], lambda m, c: mod(m, c, words[2])))
    compressed_run(app, strategy=FedAvg(fraction_train=fraction, fraction_evaluate=0))
    assert len(norms) == 3 * workers
    assert norms == pytest.approx([0.5 * workers**-0.5] * len(norms), rel=1e-5)


def test_without_a_known_n_it_is_one():
    layout, g = Layout(("fc",), ((9, 9),), ("float32",)), np.ones(81, np.float32)
    for words, norm in [({}, 0.5), ({"workers": 4}, 0.25)]:
        payload = make_codec(**CLIPPED).encode(g, layout, **words)
        assert np.linalg.norm(decode(payload, layout)[0]) == pytest.approx(norm)
