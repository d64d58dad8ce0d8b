"""Combinations of options are refused in one line; the table holds a case for each row."""

import pytest
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedProx,
    Krum,
    MultiKrum,
)
from hypothesis import given
from hypothesis import strategies as st

from edgewire.conf.network import Network
from edgewire.conf.rules import check_flower
from edgewire.conf.schema import Config, ConfigError
from edgewire.strategy.factory import made
from edgewire.task.objectives.classification import Classification
from tests.runs import configured

ALL = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
CUT, SPLIT = "algorithm=synthetic_gradients", "algorithm=split_backprop"
ASYNC = "strategy=asynchronous downlink=full"
DELTA = f"{ASYNC} strategy.update=delta"
MASKED = "algorithm=cesgd strategy.mask_received=true"
EF21, ADAM = "algorithm=ef21_sgdm", "algorithm=one_bit_adam"
KEPT = "personal=batchnorm dataset.holdout=0.2 strategy.fraction_evaluate=1"
PLANNED = "algorithm=edgewire strategy.deadline=1"
PRIVATE = "privacy=sample privacy.noise=1"
NODE = (
    "strategy=sparse_averaging strategy.update=delta privacy=node privacy.noise=1 nodes=1000 "
    "compression=topk downlink=full"
)
REFUSED = [  # overrides, and a part of the error
    ("algorithm=esgd strategy.fraction_train=0", "not one of nodes=4 would train"),
    ("algorithm=esgd strategy.min_train_nodes=5", "strategy.min_train_nodes must be from 0 to"),
    ("algorithm=esgd local_steps=3", "local_steps goes with strategy.update=delta"),
    ("algorithm=asgd local_epochs=2", "local_epochs goes with strategy.update=delta"),
    ("algorithm=esgd optimizer=adam", "give strategy/optimizer=, or give strategy.update=delta"),
    ("algorithm=asgd optimizer=adam", "they take none: drop it, or give strategy.update=delta"),
    ("algorithm=asgd optimizer=sgd optimizer.weight_decay=1", "they take none: drop it"),
    ("algorithm=asgd optimizer=sgd optimizer.nesterov=true", "they take none: drop it"),
    ("algorithm=asgd strategy.record_every=7", "eval_every=1000 must be a multiple of strategy."),
    ("algorithm=esgd strategy.mask_received=true downlink=full", "compression=cesgd or esgd, down"),
    ("algorithm=sgd strategy.mask_received=true", "compression=cesgd or esgd, downlink=average"),
    (f"{MASKED} strategy.follow=differences", "mask_received goes with follow=steps"),
    (f"{MASKED} compression.exact=[bias]", "does not go with compression.exact="),
    (f"{MASKED} compression.coder=context", "with strategy.mask_received=true, give compression."),
    ("algorithm=esgd strategy.follow=weights downlink=average", "needs a lossy downlink"),
    ("algorithm=esgd strategy.follow=weights downlink=full", "needs a lossy downlink"),
    ("algorithm=flasc compression.coder=context", "coder=context is for changes"),
    ("algorithm=flasc downlink.from_seed=true", "from_seed=false"),
    ("algorithm=esgd nodes=2 strategy.mean=median", "of 2 updates a round leaves none out: give a "
     "larger number of nodes"),
    ("algorithm=esgd nodes=4 strategy.mean=trimmed", "of 4 updates a round leaves none out: give a "
     "larger trim"),
    ("algorithm=esgd nodes=10 strategy.mean=median strategy.quorum=0.2", "of 2 updates"),
    ("strategy=sparse_averaging strategy.update=delta strategy.mean=median local=scaffold",
     "a robust strategy takes no mean"),
    ("strategy=krum local=scaffold", "a robust strategy takes no mean"),
    ("algorithm=esgd strategy.deadline=1", "give strategy.update=delta or"),
    ("algorithm=diloco strategy.deadline=1 strategy.most_factor=2", "for a density: give compress"),
    ("algorithm=edgewire strategy.deadline=-1", "a number above 0"),
    ("algorithm=edgewire strategy.most_bits=1", "give strategy.deadline= too"),
    ("algorithm=edgewire strategy.most_factor=2", "give strategy.deadline= too"),
    (f"{PLANNED} compression.quantizer=int8 strategy.most_bits=1", "quantizer=lloyd or eden"),
    ("algorithm=edgewire strategy.deadline=9 timeout=8", "give timeout= a larger value than 8"),
    ("algorithm=sgd downlink=average compression=ef21", "adds up"),
    (f"{EF21} compression=topk", "adds up"),
    ("algorithm=fedavg compression=ef21", "adds up"),
    ("algorithm=fedbuff compression=ef21", "adds up"),
    (f"{CUT} compression=ef21", "adds up"),
    ("algorithm=sgd downlink=topk downlink.sparsifier=ef21", "choose topk"),
    (f"{EF21} strategy.fraction_train=0.5", "give strategy.fraction_train=1"),
    (f"{EF21} strategy.quorum=0.5", "give strategy.quorum=1"),
    (f"{EF21} strategy.mean=median", "give strategy.mean=mean"),
    (f"{EF21} strategy.sender_exponent=0.5", "give strategy.sender_exponent=0"),
    (f"{EF21} strategy.follow=weights downlink=topk", "give strategy.follow=steps"),
    (f"{EF21} strategy.weighted_by_key=num-steps", "give strategy.weighted_by_key=null"),
    (f"{EF21} screen.clip=2", "give screen.clip=null"),
    (f"{EF21} downlink=edgewire_fixed downlink.coder=entropy", "give downlink=average"),
    (f"{EF21} downlink=qsgd", "give downlink=average"),
    (f"{ADAM} strategy.update=delta optimizer=sgd", "give strategy.update=gradient"),
    (f"{ADAM} downlink=full downlink.exact_steps=null", "give a downlink= other than full"),
    (f"{ADAM} strategy.follow=differences", "give strategy.follow=steps"),
    (f"{ADAM} strategy.mask_received=true compression=cesgd downlink=average",
     "give strategy.mask_received=false"),
    (f"{ASYNC} strategy.pushes=4 strategy.buffer=5", "buffer=5 is never full with pushes=4"),
    (f"{ASYNC} strategy.sender_exponent=0.5", "a buffer above 1, not 0.5 with buffer=1"),
    (f"{ASYNC} strategy.mix=true", "mix goes with update=delta, buffer=1 and"),
    (f"{DELTA} strategy.mix=true strategy.buffer=2", "mix goes with"),
    (f"{DELTA} strategy.mix=true strategy.server_lr=1.5", "mix goes with"),
    (f"{ASYNC} strategy.proximal_mu=0.1 local=fedprox", "with strategy.update=gradient they take"),
    (f"{CUT} strategy.record_every=7", "eval_every=200 must be a multiple of"),
    (f"{CUT} eval_every=9 strategy.batches_per_message=2", "a multiple of batches_per_message=2"),
    (f"{CUT} local_steps=3", "step with each mini-batch: drop local_steps="),
    (f"{CUT} network.crash=0.1", "network.crash=0.1 needs a timeout= here"),
    (f"{CUT} strategy.micro_batches=2", "goes with synthetic=false"),
    (f"{CUT} strategy.module=gradient_of_loss strategy.trained_by=loss strategy.conditioned=false",
     "trained_by=loss needs the labels"),
    (f"{SPLIT} strategy.micro_batches=2 strategy.batches_per_message=2", "does not go with micro"),
    (f"{SPLIT} strategy.hidden=8", "go with synthetic gradients alone"),
    (f"{SPLIT} strategy.schedule=async", "schedule=async goes with synthetic gradients alone"),
    (f"{SPLIT} strategy.schedule=sequential strategy.micro_batches=2", "goes with schedule=pipel"),
    (f"{CUT} downlink=int8", "activations go down as they came up: downlink=full"),
    *((f"{CUT} {word}", "does not go with a cut model")
      for word in ("trainable=[a]", "personal=[a]", "adapter=lora", "model.file=x",
                   "model.dtype=float16")),
    ("algorithm=esgd personal=[a]", "personal= goes with strategy.update=delta"),
    (f"{ASYNC} personal=[a]", "personal= needs rounds, after which the nodes evaluate"),
    (f"{DELTA} personal=[a]", "personal= needs rounds, after which the nodes evaluate"),
    (f"{MASKED} personal=[a]", "drop strategy.fraction_evaluate= and personal="),
    (f"{MASKED} strategy.fraction_evaluate=1", "drop strategy.fraction_evaluate= and personal="),
    (f"algorithm=fedavg {KEPT} local=scaffold", "local=scaffold sends vectors of the whole model"),
    ("algorithm=edgewire personal=[a] dataset.holdout=0.2", "give dataset.holdout=0.2 strategy.fr"),
    ("personal=[a] strategy.fraction_evaluate=1", "give dataset.holdout=0.2 strategy.fraction_ev"),
    ("algorithm=edgewire strategy.fraction_evaluate=2", "fraction_evaluate must be a number of at"),
    (f"{CUT} {PRIVATE}", "a node of a cut model sends what its layers make of samples"),
    (f"{PRIVATE} strategy=fedavg strategy.fraction_evaluate=0.5", "strategy.fraction_evaluate=0"),
    (f"{PRIVATE} strategy=qfedavg", "weights nodes by their losses"),
    (f"{PRIVATE} algorithm=esgd", "the sparsifier esgd chooses by the loss"),
    (f"{PRIVATE} algorithm=cesgd", "the sparsifier cesgd chooses by the loss"),
    (f"{PRIVATE} schedule=plateau", "give another schedule.metric="),
    (f"{PRIVATE} local.autocast=float16", "give local.autocast=bfloat16 or null"),
    (f"{PRIVATE} objective.class_weights=[1,2]", "objective.class_weights weights the samples"),
    ("algorithm=fedavg privacy=node privacy.noise=1", "is for strategy=sparse_averaging, which"),
    (f"{ASYNC} privacy=node privacy.noise=1", "is for strategy=sparse_averaging, which"),
    (f"{CUT} privacy=node privacy.noise=1", "is for strategy=sparse_averaging, which"),
    (f"{NODE} nodes=999", "hides one of nodes=999, and below 1,000 the noise ruins most models: "
     "give privacy=sample, or privacy.anyway=true"),
    (f"{NODE} nodes=100 privacy.anyway=true secure=sum compression=grid",
     "give secure=none, because the server has to clip"),
    ("algorithm=fedavg_secure nodes=201", "takes at most 200 nodes a round, and 201 train in one"),
    (f"{NODE} schedule=plateau", "give another schedule.metric="),
    (f"{NODE} strategy.follow=differences downlink=int8", "the number of a difference tells who"),
    (f"{NODE} strategy/optimizer=ef21 compression=ef21 downlink=average", "another strategy/optim"),
    (f"{NODE} compression=esgd", "another compression=: the server keeps this one's indices"),
    (f"{NODE} engine=superlink", "give timeout=600, say: otherwise a slow node"),
    (f"{NODE} downlink=average compression=cesgd strategy.mask_received=true",
     "give strategy.mask_received=false"),
    *((f"{NODE} {word}={value}", f"give {word}={cure}") for word, value, cure in (
        ("strategy.mean", "median", "mean"), ("strategy.sender_exponent", 0.5, 0),
        ("strategy.weighted_by_key", "num-examples", "null"), ("strategy.quorum", 0.9, 1),
        ("strategy.deadline", 1, "null"), ("screen.refuse", 9, "null"), ("local", "scaffold",
        "plain"), ("screen.clip", 9, "null"), ("screen.weight", 9, "null"),
        ("screen.statistics", 9, "null"), ("strategy.min_train_nodes", 2, 1),
        ("strategy.fraction_evaluate", 0.1, 0), ("privacy.rate", 0.5, 1))),
    (f"{CUT} compact_records=true", "compact_records=true is for messages with models"),
    ("algorithm=fedavg compression@gradients=topk", "gradients= is for activations' gradients"),
    *((f"{words} {group}.coder=context", "coder=context is for") for words, group in (
        ("algorithm=fedavg", "compression"), ("algorithm=fedavg downlink=int8", "downlink"),
        ("algorithm=adacomp", "compression"), ("algorithm=esgd downlink=full", "compression"),
        ("algorithm=adacomp downlink=average", "compression"), (CUT, "compression"),
        (CUT, "gradients"))),
]  # fmt: skip


@pytest.mark.few(41)
@pytest.mark.parametrize(("words", "part"), REFUSED)
def test_options_that_exclude_each_other_are_refused_in_one_line(words, part):
    with pytest.raises(ConfigError) as caught:
        made(configured(*words.split()))
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_losses_below_0_are_refused_as_weights(monkeypatch):
    monkeypatch.setattr(Classification, "least", -1.0)
    with pytest.raises(ConfigError, match="those of Classification may be"):
        made(configured("strategy=qfedavg"))


def refused(strategy, **config):
    """Return the error line that refuses a strategy; None if it is accepted."""
    try:
        check_flower(strategy, Config(**{"nodes": 10, **config}))
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("strategy", "line"),
    [
        (FedAvg(fraction_train=2), "fraction_train must be from 0 to 1, not 2"),
        (FedAvg(fraction_evaluate=-0.5), "fraction_evaluate must be from 0 to 1, not -0.5"),
        (FedAvg(fraction_train=float("nan")), "fraction_train must be from 0 to 1, not nan"),
        (FedAvg(min_train_nodes=11), "min_train_nodes must be from 0 to 10, not 11"),
        (FedAvg(min_evaluate_nodes=-1), "min_evaluate_nodes must be from 0 to 10"),
        (FedAvg(min_available_nodes=11), "min_available_nodes must be from 0 to 10"),
        (FedProx(proximal_mu=-1), "proximal_mu must be at least 0, not -1"),
        (MultiKrum(num_nodes_to_select=0), "num_nodes_to_select must be from 1 to 10, not 0"),
        (MultiKrum(num_nodes_to_select=11), "num_nodes_to_select must be from 1 to 10, not 11"),
        (Krum(num_malicious_nodes=-2), "num_malicious_nodes must be from 0 to 10, not -2"),
        (Bulyan(num_malicious_nodes=11), "num_malicious_nodes must be from 0 to 10, not 11"),
    ],
)
def test_impossible_numbers_are_named(strategy, line):
    assert refused(strategy).startswith(f"strategy.{line}")


def test_a_strategy_that_would_wait_for_more_nodes_than_there_are_is_refused():
    """A strategy that needs two nodes, Flower's default, is refused with one node."""
    assert refused(FedAvg(), nodes=1).endswith("from 0 to 1, not 2")
    assert refused(FedAvg(), nodes=2) is None
    assert refused(FedAvg(**ALL), nodes=1) is None


def test_the_strategy_within_another_is_refused_too():
    wrapping = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 1)
    assert refused(wrapping, nodes=1).endswith("from 0 to 1, not 2")
    assert refused(wrapping, nodes=2) is None


@given(nodes=st.integers(1, 40), share=st.floats(0, 1), least=st.integers(0, 40))
def test_the_number_of_sampled_nodes_is_flowers(nodes, share, least):
    line = refused(FedAvg(**{**ALL, "min_train_nodes": least}, fraction_train=share), nodes=nodes)
    if least > nodes or not share or max(int(nodes * share), least) < 1:
        assert f"from 0 to {nodes}, not {least}" in line or f"nodes={nodes} would train" in line
    else:
        assert line is None


@pytest.mark.parametrize(("rule", "times"), [(Krum, 2), (MultiKrum, 2), (Bulyan, 4)])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_rule_accepts_as_many_malicious_nodes_as_its_proof(rule, times, share):
    for nodes in range(1, 40, 6):
        drawn = max(int(nodes * share), 1)
        most = max((drawn - 3) // times, 0)  # with 0 malicious nodes no run is refused
        lines = [
            refused(rule(num_malicious_nodes=n, fraction_train=share, **ALL), nodes=nodes)
            for n in range(nodes + 1)
        ]
        assert lines[: most + 1] == [None] * (most + 1)
        for malicious, line in list(enumerate(lines))[most + 1 :]:
            assert line == (
                f"strategy.num_malicious_nodes={malicious} needs {times * malicious + 3} nodes "
                f"a round with {rule.__name__}, there are {drawn}"
            )


@pytest.mark.parametrize("network", [{"crash": 0.1}, {"join_seconds": 3.0}])
def test_flower_strategies_refuse_networks_with_leaving_nodes(network):
    line = refused(FedAvg(), network=Network(**network))
    assert line.endswith("strategy=asynchronous or sparse_averaging")
