"""What is valid but odd works over a link as it does without."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.run import Run

from compression import PayloadError
from compression.flower import Link, Traffic, Uplink
from simulation.grid import LocalGrid
from simulation.guest.grid import GuestGrid
from simulation.host import HostSpec
from simulation.workers import make_pool
from tests.compression.flower.federation import SHAPES, initial, linked, node_app, run

NODES = 3
HALF_UP, HALF_DOWN = ("conv.weight", "conv.bias"), ("scale", "fc.weight")


def moving(train, mod=None, evaluate=None):
    """Return an app that answers with what `train` makes of the named values, and its state."""
    app = ClientApp(mods=[mod] if mod else [])

    def answer(function, message, context):
        values = {name: a.numpy() for name, a in message.content["arrays"].items()}
        made = function(context.node_config["partition-id"], values, context.state)
        content = {
            key: ArrayRecord({n: Array(np.asarray(v)) for n, v in record.items()})
            for key, record in made.items()
        }
        content["metrics"] = MetricRecord({"num-examples": 2, "loss": 1.0})
        return Message(RecordDict(content), reply_to=message)

    app.train()(lambda message, context: answer(train, message, context))
    if evaluate:
        app.evaluate()(lambda message, context: answer(evaluate, message, context))
    return app


def to_targets(node, values, state):
    """Go a tenth of the way to the node's own target."""
    moved = {
        name: value + 0.1 * (np.full(value.shape, node + len(name)) - value).astype(value.dtype)
        for name, value in values.items()
    }
    return {"arrays": moved}


def grid_of(app, nodes=NODES):
    return LocalGrid(make_pool(HostSpec(app, nodes, 1, {}), 1), nodes)


def ask(grid, arrays, kind="train", nodes=None, **config):
    content = RecordDict({"arrays": arrays, "config": ConfigRecord(config)})
    nodes = nodes or grid.get_node_ids()
    return [Message(content, node, kind, group_id="1") for node in nodes]


def values_of(arrays):
    return {name: array.numpy() for name, array in arrays.items()}


def part(arrays, names):
    return ArrayRecord({name: arrays[name] for name in names})


@pytest.mark.parametrize("options", [{"downlink": "int8"}, {}])
def test_an_app_sees_nothing_of_ours_in_its_state_and_may_clear_it(options):
    """Not even after rounds in which the link has kept a memory, and a copy of the model, there."""
    seen = []

    def train(node, values, state):
        seen.append(sorted(state))
        state.clear()
        state["own"] = ConfigRecord({"x": 1})
        return to_targets(node, values, state)

    app = moving(train, Uplink("topk", density=0.5))
    _, traffic = linked(FedAvg(fraction_evaluate=0), app, NODES, rounds=4, **options)
    assert seen == [[]] * NODES + [["own"]] * 3 * NODES
    assert (traffic.client_updates, traffic.failures) == (4 * NODES, 0)


def test_a_nodes_error_leaves_its_memory_where_it_was():
    given = np.zeros(36 * 5 + 36 + 4 + 1)

    def train(node, values, state):
        if not state:
            state["times"] = ConfigRecord({"n": 0})
        state["times"]["n"] += 1
        if state["times"]["n"] == 2:
            raise RuntimeError("no power")
        made = to_targets(node, values, state)
        given[:] += np.concatenate(
            [(made["arrays"][n] - values[n]).reshape(-1).astype(np.float64) for n in SHAPES]
        )
        return made

    uplink = Uplink("topk", density=0.2)
    start, rounds = initial(), 60
    app = moving(train, uplink)
    one = {"min_train_nodes": 1, "min_available_nodes": 1, "fraction_evaluate": 0}
    model, traffic = linked(FedAvg(**one), app, 1, arrays=start, rounds=rounds, patience=2)
    assert (traffic.failures, traffic.client_updates) == (1, rounds - 1)
    moved = np.concatenate([(model[n] - start[n].numpy()).reshape(-1) for n in SHAPES])
    unsent = np.abs(given - moved).max()
    assert unsent < 0.5 * np.abs(given).max()  # nothing is counted twice, little is kept back


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("method", ["topk", "int8", "powersgd"])
def test_an_update_that_was_taken_is_not_put_back_whatever_the_models_type(method, kind):
    """Else it would count again and again: a model that moves by 1 each round runs away."""
    options = {"topk": {"density": 1.0}, "int8": {"feedback": True}}.get(method, {})

    def train(node, values, state):
        return {"arrays": {n: value + np.asarray(1, value.dtype) for n, value in values.items()}}

    start = ArrayRecord({"w": Array(np.zeros((6, 6), kind)), "b": Array(np.zeros(4, kind))})
    app = moving(train, Uplink(method, **options))
    model, _ = linked(FedAvg(fraction_evaluate=0), app, NODES, arrays=start, rounds=6)
    for value in model.values():
        np.testing.assert_allclose(value, 6, rtol=1e-2)
        assert value.dtype == kind


def test_a_lossless_method_changes_no_bit_of_float64():
    rng = np.random.default_rng(1)
    start = ArrayRecord({n: Array(rng.normal(size=shape)) for n, shape in SHAPES.items()})

    def train(node, values, state):
        return {"arrays": {n: np.sin(value + node) for n, value in values.items()}}

    plain = run(FedAvg(fraction_evaluate=0), moving(train), NODES, arrays=start)
    found, _ = linked(
        FedAvg(fraction_evaluate=0), moving(train, Uplink("dense")), NODES, arrays=start
    )
    for name, value in plain.items():
        np.testing.assert_array_equal(found[name], value)


def test_arrays_in_the_answer_to_an_evaluation_travel_as_they_are(caplog):
    """They are no model: they are not rounded, and a memory knows nothing of them."""
    matrix = np.random.default_rng(2).normal(size=(3, 3)).astype(np.float32)
    seen = []

    class Seeing(FedAvg):
        def aggregate_evaluate(self, server_round, replies):
            seen.extend(reply.content.pop("confusion")["counts"].numpy() for reply in replies)
            return None

    def evaluate(node, values, state):
        return {"confusion": {"counts": matrix}}

    app = moving(to_targets, Uplink("topk", density=0.3, quantizer="int8"), evaluate)
    _, traffic = linked(Seeing(fraction_evaluate=1), app, NODES, rounds=2)
    assert len(seen) == 2 * NODES
    for found in seen:
        np.testing.assert_array_equal(found, matrix)
    assert traffic.failures == 0
    assert not [each for each in caplog.records if each.name == "edgewire"]


def test_replies_without_arrays_come_as_they_are_if_none_has_any():
    app = moving(lambda node, values, state: {}, Uplink("int8"))
    link = Link(grid_of(app))
    replies = link.send_and_receive(ask(link, initial()))
    assert [dict(r.content["metrics"]) for r in replies] == [
        {"num-examples": 2, "loss": 1.0}
    ] * NODES
    assert link.traffic.failures == 0


def test_a_reply_without_arrays_among_others_is_left_out():
    def train(node, values, state):
        return to_targets(node, values, state) if node == 1 else {}

    link = Link(grid_of(moving(train, Uplink("int8"))))
    replies = link.send_and_receive(ask(link, initial()))
    assert sorted(reply.has_error() for reply in replies) == [False, True, True]
    assert link.traffic.failures == 2


def test_two_records_of_metrics_are_for_the_strategy_to_take():
    def with_more(reply):
        reply.content["timings"] = MetricRecord({"seconds": 1.0})
        return reply

    app = node_app(Uplink("int8"))
    link = Link(grid_of(lambda message, context: with_more(app(message, context))))
    replies = link.send_and_receive(ask(link, initial()))
    assert {frozenset(r.content) for r in replies} == {frozenset({"arrays", "metrics", "timings"})}


@pytest.mark.parametrize("uneven", [True, False])
def test_nodes_that_answer_with_other_layers_each(uneven):
    """As in training by parts: who asks for it gets all of them, and the values are right."""
    names = (HALF_UP, HALF_DOWN, ("conv.bias",))

    def train(node, values, state):
        moved = to_targets(node, values, state)["arrays"]
        return {"arrays": {name: moved[name] for name in names[node]}}

    link = Link(grid_of(moving(train, Uplink("dense"))), uneven=uneven)
    replies = link.send_and_receive(ask(link, initial()))
    assert link.traffic.failures == (0 if uneven else NODES - 1)
    for reply in replies:
        if uneven:
            node, arrays = reply.metadata.src_node_id - 1, values_of(reply.content["arrays"])
            assert tuple(arrays) == names[node]
            expected = to_targets(node, values_of(initial()), None)["arrays"]
            for name, value in arrays.items():
                np.testing.assert_array_equal(value, expected[name].astype(np.float32))


def test_nodes_that_are_sent_other_layers_each():
    """What differs because the messages did is no mistake."""
    link = Link(grid_of(moving(to_targets, Uplink("int8"))), downlink="int8")
    for _ in range(3):
        messages = [
            *ask(link, part(initial(), HALF_UP), nodes=[1]),
            *ask(link, part(initial(), HALF_DOWN), nodes=[2, 3]),
        ]
        replies = link.send_and_receive(messages)
        found = {r.metadata.src_node_id: tuple(r.content["arrays"]) for r in replies}
        assert found == {1: HALF_UP, 2: HALF_DOWN, 3: HALF_DOWN}


def test_layers_that_take_turns_are_not_mistaken_for_each_other():
    """Of the same size, so that only their names tell: a difference would leave most of one out."""
    rng, seen = np.random.default_rng(3), []

    def train(node, values, state):
        seen.append(values)
        return {"arrays": values}

    link = Link(grid_of(moving(train, Uplink("dense")), 1), downlink="topk")
    layers = {name: rng.normal(size=100).astype(np.float32) for name in ("first", "second")}
    for number in range(4):
        name = ("first", "second")[number % 2]
        arrays = ArrayRecord({name: Array(layers[name])})
        (reply,) = link.send_and_receive(ask(link, arrays))
        assert not reply.has_error()
        assert list(seen[-1]) == [name]
        np.testing.assert_array_equal(seen[-1][name], layers[name])


def test_what_is_exact_stays_so_in_an_answer_with_a_layer_less():
    def train(node, values, state):
        moved = to_targets(node, values, state)["arrays"]
        del moved["scale"]
        return {"arrays": moved}

    link = Link(grid_of(moving(train, Uplink("int8"))), exact=["fc.*"])
    for reply in link.send_and_receive(ask(link, initial())):
        node, values = reply.metadata.src_node_id - 1, values_of(reply.content["arrays"])
        expected = to_targets(node, values_of(initial()), None)["arrays"]["fc.weight"]
        np.testing.assert_array_equal(values["fc.weight"], expected.astype(np.float32))
        assert "scale" not in values


def test_one_of_two_models_that_did_not_change_is_not_the_other():
    """Two groups of nodes, each with a model: what one did not take is put back, and only that."""

    def train(node, values, state):
        return {"arrays": {name: value + 1 for name, value in values.items()}}

    link = Link(grid_of(moving(train, Uplink("topk", density=1.0)), 2))
    models = [ArrayRecord({"w": Array(np.full(8, 10.0 * g, np.float32))}) for g in (1, 2)]
    first = []
    for _ in range(3):
        messages = [m for g in (0, 1) for m in ask(link, models[g], nodes=[g + 1])]
        replies = {r.metadata.src_node_id: r.content["arrays"] for r in
                   link.send_and_receive(messages)}  # fmt: skip
        first.append([replies[n]["w"].numpy()[0] for n in (1, 2)])
        models[1] = replies[2]  # the first group's is never taken
    np.testing.assert_allclose(first, [[11, 21], [12, 22], [13, 23]])


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("method", ["int8", "topk", "dgc", "powersgd"])
def test_few_nodes_of_which_a_part_is_asked_and_one_fails_at_times(method, nodes):
    def train(node, values, state):
        state["n"] = ConfigRecord({"n": state["n"]["n"] + 1 if "n" in state else 1})
        if node == 0 and state["n"]["n"] % 3 == 0:
            raise RuntimeError("no power")
        moved = to_targets(node, values, state)["arrays"]
        del moved["conv.bias"]  # a layer less
        return {"arrays": moved}

    class Body(FedAvg):
        def aggregate_train(self, server_round, replies):
            mean, metrics = super().aggregate_train(server_round, replies)
            return mean and ArrayRecord({**initial(), **mean}), metrics

    strategy = Body(fraction_train=0.5, min_train_nodes=1, min_available_nodes=1,
                    fraction_evaluate=0)  # fmt: skip
    app = moving(train, Uplink(method))
    model, traffic = linked(strategy, app, nodes, rounds=8, downlink="int8", patience=2)
    assert traffic.failures in (1, 2)
    assert traffic.client_updates + traffic.failures == 8
    assert tuple(model) == tuple(SHAPES)
    assert all(np.isfinite(value).all() for value in model.values())
    np.testing.assert_array_equal(model["conv.bias"], initial()["conv.bias"].numpy())


@pytest.mark.parametrize("downlink", [None, "int8"])
@pytest.mark.parametrize("method", ["dense", "topk", "qsgd"])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_app_with_a_loop_of_its_own_that_does_not_wait(method, downlink, workers):
    """It pushes and pulls, mixes what has come into the model at once, and asks that node again."""
    options = {"density": 0.5} if method == "topk" else {}
    app = moving(to_targets, Uplink(method, **options))
    pool = make_pool(HostSpec(app, NODES, 1, {}), workers)
    try:
        grid = GuestGrid(LocalGrid(pool, NODES), Run.create_empty(1))
        link = Link(grid, downlink=downlink, traffic=Traffic())
        arrays, done = initial(), 0
        waiting = set(link.push_messages(ask(link, arrays)))
        while done < 60:
            replies = link.pull_messages(waiting)
            for reply in replies:
                assert not reply.has_error(), reply.error.reason
                waiting.discard(reply.metadata.reply_to_message_id)
                theirs, mine = reply.content["arrays"], arrays
                arrays = ArrayRecord({
                    n: Array(np.asarray((mine[n].numpy() + theirs[n].numpy()) / 2, np.float32))
                    for n in mine
                })  # fmt: skip
                done += 1
                waiting |= {
                    *link.push_messages(ask(link, arrays, nodes=[reply.metadata.src_node_id]))
                }
    finally:
        pool.close()
    assert link.traffic.client_updates == done
    assert link.traffic.failures == 0
    for name, array in arrays.items():
        target = len(name) + 1  # the nodes' mean
        assert (
            np.abs(array.numpy() - target).max()
            < np.abs(initial()[name].numpy() - target).max() / 2
        )


def test_a_message_to_a_node_that_is_gone_spoils_nothing():
    grid = GuestGrid(grid_of(moving(to_targets, Uplink("int8"))), Run.create_empty(1))
    link = Link(grid, downlink="int8")
    ids = link.push_messages(ask(link, initial(), nodes=[1, 77, 3]))
    assert len(ids) == 2
    replies = link.pull_messages(ids)
    while len(replies) < 2:
        replies += link.pull_messages(ids[len(replies) :])
    assert sorted(r.metadata.src_node_id for r in replies) == [1, 3]
    assert tuple(replies[0].content["arrays"]) == tuple(SHAPES)


def test_updates_of_a_loop_without_rounds_draw_differently():
    """A method that draws would else round each of a node's updates in the same direction."""

    def train(node, values, state):
        return {"arrays": {"w": np.linspace(0, 1, 50, dtype=np.float32)}}

    link = Link(grid_of(moving(train, Uplink("qsgd")), 1))
    start, seen = ArrayRecord({"w": Array(np.zeros(50, np.float32))}), []
    for _ in range(3):
        (reply,) = link.pull_messages(link.push_messages(ask(link, start)))
        seen.append(reply.content["arrays"]["w"].numpy())
    assert len({values.tobytes() for values in seen}) == 3


def only_of(node, function):
    """Apply `function` to one node's values; the others go to their targets."""

    def train(partition, values, state):
        made = to_targets(partition, values, state)
        return {"arrays": function(made["arrays"])} if partition == node else made

    return train


@pytest.mark.parametrize("method", ["dense", "int8"])
@pytest.mark.parametrize(
    "other",
    [
        lambda values: {**values, "scale": np.zeros(12, np.float32)},
        lambda values: {**values, "fc.weight": values["fc.weight"][None]},
        lambda values: {n: v for n, v in values.items() if n != "scale"},
        lambda values: {f"x{n}": v for n, v in values.items()},
        lambda values: {**values, "more": np.zeros(3)},
    ],
)
@pytest.mark.parametrize("nodes", [2, 3])
def test_tensors_other_than_those_sent_cost_that_reply_alone(method, other, nodes):
    """Also of two nodes: what is usual is what was asked, not what came first."""
    model, traffic = linked(
        FedAvg(fraction_evaluate=0), moving(only_of(0, other), Uplink(method)), nodes
    )
    assert traffic.failures == 3
    assert {name: value.shape for name, value in model.items()} == SHAPES


def test_integers_stay_exact_once_a_mean_has_made_floats_of_them():
    arrays = ArrayRecord({**initial(), "ids": Array(np.array([16777217, 3], np.int64))})

    def train(node, values, state):
        moved = to_targets(node, {n: v for n, v in values.items() if n != "ids"}, state)["arrays"]
        return {"arrays": {**moved, "ids": values["ids"]}}

    app = moving(train, Uplink("topk", density=0.1))
    model, traffic = linked(FedAvg(fraction_evaluate=0), app, NODES, arrays=arrays)
    assert model["ids"].tolist() == [16777217, 3]
    assert traffic.failures == 0


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_infinity_is_refused_in_every_type(dtype):
    arrays = ArrayRecord({"w": Array(np.zeros(4, dtype))})

    def blown(values):
        return {"w": np.full(4, np.inf, dtype)}

    app = moving(only_of(0, blown), Uplink("dense"))
    model, traffic = linked(FedAvg(fraction_evaluate=0), app, NODES, arrays=arrays)
    assert traffic.failures == 3
    assert np.isfinite(model["w"]).all()


def test_a_mask_of_infinities_goes_by_its_name():
    mask = np.array([0, -np.inf], np.float32)
    arrays = ArrayRecord({**initial(), "mask": Array(mask)})

    def train(node, values, state):
        moved = to_targets(node, {n: v for n, v in values.items() if n != "mask"}, state)["arrays"]
        return {"arrays": {**moved, "mask": mask}}

    app = moving(train, Uplink("int8"))
    with pytest.raises(PayloadError, match=r"goes by exact=\[its name\]"):
        linked(FedAvg(fraction_evaluate=0), app, NODES, arrays=arrays)
    model, traffic = linked(FedAvg(fraction_evaluate=0), app, NODES, arrays=arrays, exact=["mask"])
    assert traffic.failures == 0
    assert (model["mask"] == mask).all()


@pytest.mark.parametrize("name", ["update", "flat", "payload", "log_running_var"])
def test_tensors_may_have_any_name(name):
    arrays = ArrayRecord(
        {name: Array(np.full(4, -2.0, np.float32)), "b": Array(np.ones(2, np.float32))}
    )
    strategy = FedAvg(fraction_evaluate=0)
    plain = run(strategy, moving(to_targets), NODES, arrays=arrays)
    model, traffic = linked(strategy, moving(to_targets, Uplink("dense")), NODES, arrays=arrays)
    assert traffic.failures == 0
    for key, value in plain.items():
        assert np.array_equal(model[key], value)


def test_a_clipping_norm_of_the_apps_own_changes_nothing():
    """It is Flower's key for differential privacy; here nobody clips to it."""
    link = Link(grid_of(moving(to_targets, Uplink("int8"))))
    found = {}
    for norm in (1e-3, 1e9):
        replies = link.send_and_receive(ask(link, initial(), clipping_norm=norm))
        found[norm] = [values_of(reply.content["arrays"]) for reply in replies]
    for one, other in zip(*found.values(), strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_records_and_metrics_of_an_apps_own_are_left_alone():
    app = ClientApp(mods=[Uplink("int8")])

    @app.train()
    def train(message, context):
        metrics = MetricRecord({"num-examples": 2, "seconds": 12345.0})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    link = Link(grid_of(app))
    for reply in link.send_and_receive(ask(link, initial())):
        assert reply.content["metrics"]["seconds"] == 12345.0
    content = RecordDict({"arrays": initial(), "edgewire": ConfigRecord({"mine": 1})})
    with pytest.raises(ValueError, match="give yours another name"):
        link.send_and_receive([Message(content, 1, "train", group_id="1")])


@pytest.mark.parametrize("code", [3, 4, 5])
def test_a_round_in_which_nobody_was_reached_is_survived(code):
    class Away(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            error = Error(code, "Error: Node Unavailable")
            list(super().send_and_receive(messages))  # which gives them their ids
            return [Message(error, reply_to=message) for message in messages]

    grid = Away(make_pool(HostSpec(moving(to_targets, Uplink("int8")), NODES, 1, {}), 1), NODES)
    link = Link(grid)
    assert all(reply.has_error() for reply in link.send_and_receive(ask(link, initial())))
    assert link.traffic.failures == NODES


def test_messages_of_different_types_are_not_compared():
    app = ClientApp(mods=[Uplink("int8")])

    @app.query()
    def query(message, context):
        return Message(RecordDict({"m": MetricRecord({"num-examples": 0})}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        metrics = MetricRecord({"num-examples": 2, "loss": 1.0})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    link = Link(grid_of(app))
    kinds = ["evaluate", "evaluate", "query"]
    messages = [
        ask(link, initial(), kind, [node])[0]
        for kind, node in zip(kinds, link.get_node_ids(), strict=True)
    ]
    assert not any(reply.has_error() for reply in link.send_and_receive(messages))


def test_options_that_cannot_be_are_refused():
    grid = grid_of(moving(to_targets))
    with pytest.raises(TypeError, match="'topk' is a sparsifier: sparsifier='dense' is another"):
        Uplink("topk", sparsifier="dense")
    for seed in (-1, 1.5, "a"):
        with pytest.raises(ValueError, match="seed must be a whole number"):
            Uplink("qsgd", seed=seed)
        with pytest.raises(ValueError, match="seed must be a whole number"):
            Link(grid, seed=seed)
    link = Link(grid, exact=["embeding*"])
    with pytest.raises(ValueError, match="matches no tensor"):
        link.send_and_receive(ask(link, initial()))
