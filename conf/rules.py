"""The combinations of options that are refused, one row each: the error's text, and the condition.

Bounds of one value are no rows, because they stand where the value is declared. Flower's own
classes declare none, so theirs are rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flwr.serverapp.strategy import Bulyan, FedAvg, FedProx, MultiKrum, QFedAvg, Strategy

from edgewire.compression.codec import Codec
from edgewire.compression.flower.server.statistics_averaging import ROBUST, wrapped
from edgewire.compression.quantizers.grid import SummableQuantizer
from edgewire.compression.validation import FOREVER
from edgewire.conf.privacy import SAMPLE
from edgewire.conf.schema import Config, ConfigError

if TYPE_CHECKING:  # these modules import torch
    from edgewire.task.local import LocalAlgorithm
    from edgewire.task.objectives import Objective

# With f malicious nodes, the proof for Krum needs 2 f + 3 nodes (Blanchard et al. 2017, proposition
# 4.2), and the proof for Bulyan needs 4 f + 3 nodes (El Mhamdi et al. 2018, section 4).
KRUM, BULYAN, MORE = 2, 4, 3
LEAST = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")  # Flower waits for these
CROWD = 1000  # the fewest nodes of which privacy=node hides one without `privacy.anyway`
MEDIAN = 3  # the fewest updates of which a median leaves some out
ENTROPY = "give compression.coder=entropy downlink.coder=entropy"
Rows = dict[str, Any]  # by the error's text, a condition that is true if the choice is refused


@dataclass(frozen=True)
class Choice:
    """What a run has chosen.

    `strategy`, `local`, `objective`: the objects that the configuration names. `codecs`: the
    `Codecs` of a run. `gradients`: the codec of a cut model's gradients.
    """

    config: Config
    strategy: Any
    codecs: Any
    gradients: Codec
    local: LocalAlgorithm
    objective: Objective


def check(choice: Choice) -> None:
    """Raise `ConfigError` for the first row whose condition the choice meets.

    A strategy with `_partial_` in its YAML file is one of EdgeWire's, or one of the user's that
    compresses messages itself. Its own `check_config` is called too.
    """
    config, strategy = choice.config, choice.strategy
    _expect(_methods(choice))
    if config.strategy.get("_partial_"):
        for name, rows in OWN.items():
            if hasattr(strategy, name):
                _expect(rows(choice, strategy))
        needs = "a strategy whose file says _partial_: true needs it"
        lacks = f"{type(strategy).__name__} has no check_config(config): {needs}"
        _expect({lacks: not hasattr(strategy, "check_config")})
        strategy.check_config(config)
    else:
        check_flower(strategy, config)
    _check_receivers(choice)
    _expect(_messages(choice))
    if config.privacy.on:
        _expect(_private(choice) | (_sample if config.privacy.unit == SAMPLE else _node)(choice))


def check_flower(strategy: Strategy, config: Config) -> None:
    """Raise `ConfigError` for options that a Flower strategy ignores, or waits with for ever.

    These rows need no torch. A strategy may wrap others, whose options are checked too.
    """
    _expect(
        {
            "network.crash and network.join_seconds need a strategy that stands them: "
            "strategy=asynchronous or sparse_averaging": config.network.crash
            or config.network.join_seconds
        }
    )
    for each in wrapped(strategy):
        _expect(_flower(each, config.nodes))


def _expect(rows: Rows) -> None:
    for text, refused in rows.items():
        if refused:
            raise ConfigError(text)


def _cures(says: str, wrong: Rows) -> Rows:
    """Return the rows of what cures something: by the cure, whether it is needed."""
    return {f"{says}: give {cure}": needed for cure, needed in wrong.items()}


def _is_local(config: Config) -> bool:
    return str(config.engine["_target_"]).endswith(".run_local")


def evaluates(strategy: Strategy) -> bool:
    """Return whether a strategy, or one that it wraps, asks the nodes to evaluate the model."""
    return any(getattr(each, "fraction_evaluate", 0) > 0 for each in wrapped(strategy))


def _within(name: str, value: float, low: int, high: int) -> Rows:
    outside = not low <= value <= high
    return {f"strategy.{name} must be from {low} to {high}, not {value:g}": outside}


def _trained(nodes: int, among: Any) -> Rows:
    """Return the rows of how many nodes train in a round; `among`: has FedAvg's options."""
    nobody = f"not one of nodes={nodes} would train: give a larger strategy.fraction_train"
    return {
        **_within("fraction_train", among.fraction_train, 0, 1),
        **_within("min_train_nodes", among.min_train_nodes, 0, nodes),
        nobody: drawn(nodes, among) < 1,
    }


def drawn(nodes: int, among: Any) -> int:
    """Return how many of `nodes` nodes FedAvg draws; `among`: has its options."""
    share = among.fraction_train
    return max(int(nodes * share), among.min_train_nodes) if 0 < share <= 1 else 0


def _flower(s: Strategy, nodes: int) -> Rows:
    rows = Rows()
    if isinstance(s, FedAvg):
        rows |= _trained(nodes, s) | _within("fraction_evaluate", s.fraction_evaluate, 0, 1)
        for name in LEAST:
            rows |= _within(name, getattr(s, name), 0, nodes)
    if isinstance(s, FedProx):
        mu = s.proximal_mu
        rows[f"strategy.proximal_mu must be at least 0, not {mu:g}"] = mu < 0
    if isinstance(s, MultiKrum):  # Krum is a subclass
        rows |= _within("num_nodes_to_select", s.num_nodes_to_select, 1, nodes)
    if isinstance(s, MultiKrum | Bulyan):
        bad, there = s.num_malicious_nodes, drawn(nodes, s)
        needed = (BULYAN if isinstance(s, Bulyan) else KRUM) * bad + MORE
        rows |= _within("num_malicious_nodes", bad, 0, nodes) | {
            f"strategy.num_malicious_nodes={bad} needs {needed} nodes a round with "
            f"{type(s).__name__}, there are {there}": bad and there < needed
        }
    return rows


def _methods(c: Choice) -> Rows:
    s, local, objective = c.strategy, c.local, c.objective
    robust = isinstance(s, ROBUST) or c.config.strategy.get("mean") in ("median", "trimmed")
    return {
        f"local={type(local).__name__.lower()} adds up changes of which the nodes' mean is "
        "needed, and a robust strategy takes no mean: give local=plain, or another "
        "strategy": robust and local.over_all_nodes,
        "strategy=qfedavg weights nodes by their losses, which must not be below 0; "
        f"those of {type(objective).__name__} may be": isinstance(s, QFedAvg)
        and objective.least < 0,
    }


def _private(c: Choice) -> Rows:
    """Return the rows of what would give away values of the samples that no noise covers."""
    schedule, says = c.config.schedule, f"privacy={c.config.privacy.unit}: "
    plateau = str(schedule["_target_"]).endswith(".ReduceOnPlateau")
    return {
        f"{says}nodes would send exact metrics of their samples: give "
        "strategy.fraction_evaluate=0": evaluates(c.strategy),
        f"{says}the training loss is not told, so it cannot set the learning rate: give another "
        "schedule.metric=": plateau and schedule.get("metric", "train_loss") == "train_loss",
    }


def _sample(c: Choice) -> Rows:
    """Return the rows of what a node would send without the noise of its samples' gradients."""
    s, local, sparsifier, name = c.strategy, c.local, c.codecs.uplink.sparsifier, type(c.local)
    plain: Any = next(each for each in name.__mro__ if each.__name__ == "LocalAlgorithm")
    rows = {
        "a node of a cut model sends what its layers make of samples, without noise: choose a "
        "strategy that sends models": not getattr(s, "sends_models", True),
        "strategy=qfedavg weights nodes by their losses, which are not sent: choose another "
        "strategy": any(isinstance(each, QFedAvg) for each in wrapped(s)),
        f"the sparsifier {sparsifier.name} chooses by the loss, which has no noise: choose another "
        "compression=": sparsifier.repeats and getattr(sparsifier, "keep", "") != "random",
        f"{name.__name__} has a train() or loss() of its own, to which no noise is added: override "
        "begin, correct and end": (name.train, name.loss) != (plain.train, plain.loss),
        "the scale of float16 depends on the samples: give local.autocast=bfloat16 or null": (
            local.autocast == "float16"
        ),
        f"the loss of {type(c.objective).__name__} is one of whole mini-batches, so a sample has "
        "no gradient of its own: choose another objective=": c.objective.batch_loss,
        "objective.class_weights weights the samples of a mini-batch against each other: drop it": (
            c.config.objective.get("class_weights")
        ),
    }
    return {f"privacy=sample: {text}": refused for text, refused in rows.items()}


def _node(c: Choice) -> Rows:
    """Return the rows of a sum that changes by at most `privacy.clip` without one of its nodes."""
    s, config, kind = c.strategy, c.config, "edgewire.strategy.synchronous.SparseAveraging"
    if config.strategy["_target_"] != kind:
        return {"privacy=node is for strategy=sparse_averaging, which adds the noise": True}
    share, others = s.participation.fraction_train, s.participation.min_train_nodes > 1
    differs, repeats = s.follow == "differences", c.codecs.uplink.sparsifier.repeats
    sums, waits = s.optimizer.incremental, config.timeout >= FOREVER and not _is_local(config)
    wrong = {
        **_alike(c, s),
        "secure=none, because the server has to clip each update": config.secure.mode != "none",
        "strategy.min_train_nodes=1, because each node is drawn by itself": others,
        f"privacy.rate={share:g}, which is strategy.fraction_train": config.privacy.rate != share,
        "strategy.follow=steps or weights: the number of a difference tells who took part": differs
        and c.codecs.downlink,
        "another compression=: the server keeps this one's indices as long as all fit": repeats,
        "another strategy/optimizer=, which does not add up all that it gets": sums,
        "timeout=600, say: otherwise a slow node lets the server wait longer for others": waits,
    }
    return {
        **_cures("privacy=node hides one node in a sum", wrong),
        f"privacy=node hides one of nodes={config.nodes}, and below {CROWD:,} the noise ruins most "
        "models: give privacy=sample, or privacy.anyway=true": config.nodes < CROWD
        and not config.privacy.anyway,
    }


def _recorded(c: Choice, s: Any) -> Rows:
    every, records = c.config.eval_every, s.record_every
    text = f"eval_every={every} must be a multiple of strategy.record_every={records}"
    return {text: every % records}


def _updates(c: Choice, s: Any) -> Rows:
    """Return the rows of servers to which nodes send updates."""
    config, optimizer, gradients = c.config, c.config.optimizer, s.update == "gradient"
    sends = "strategy.update=delta; with strategy.update=gradient a node sends the gradient of one"
    heeded = not (optimizer.get("weight_decay") or optimizer.get("nesterov"))
    sgd = str(optimizer["_target_"]).endswith(".SGD") and heeded
    return {
        **_recorded(c, s),
        f"personal= goes with {sends} mini-batch": gradients and config.personal,
        f"local_steps goes with {sends} mini-batch": gradients and config.local_steps is not None,
        f"local_epochs goes with {sends} mini-batch": gradients and config.local_epochs != 1,
        "optimizer= is for steps at the nodes, and with strategy.update=gradient they take none: "
        f"{s.no_steps}, or give strategy.update=delta": gradients and not sgd,
    }


def _averaging(c: Choice, s: Any) -> Rows:
    among, mask, follow, down = s.participation, s.mask_received, s.follow, c.codecs.downlink
    exact = down is None or down.exact  # nodes get the server's model without an error
    return {
        "strategy: mask_received goes with compression=cesgd or esgd, downlink=average": mask
        and (down is None or not c.codecs.uplink.sparsifier.repeats),
        "strategy: mask_received goes with follow=steps": mask and follow != "steps",
        "strategy: mask_received does not go with compression.exact=": mask
        and c.codecs.uplink.exact_names,
        "strategy: mask_received lets each node have a model of its own: drop "
        "strategy.fraction_evaluate= and personal=": mask
        and (among.fraction_evaluate or c.config.personal),
        **_trained(c.config.nodes, among),
        **_updates(c, s),
        **_deadline(c, s, s.planning),
        **_robust(c, s),
        **_sums(c, s),
        **_momenta(c, s),
        **_secure(c, s),
        "coder=context is for nodes whose model is the server's: with "
        f"strategy.mask_received=true, {ENTROPY}": mask and c.codecs.contextual,
        f"strategy.follow={follow} needs a lossy downlink, because a lossless one sends whole "
        "models: choose one such as downlink=topk": follow != "steps" and exact,
        "coder=context is for changes of the model: with strategy.follow=weights, "
        f"{ENTROPY}": follow == "weights" and c.codecs.contextual,
        "strategy.follow=weights sends the model in every round, also before training: "
        "give downlink.from_seed=false": follow == "weights" and c.config.downlink.from_seed,
    }


def _deadline(c: Choice, s: Any, plans: Any) -> Rows:
    """Return the rows of `strategy.deadline=`, and of the bounds of its plans."""
    if plans.deadline is None:
        return {
            "strategy.least_factor=, most_factor= and most_bits= bound the plans for a deadline: "
            "give strategy.deadline= too": plans != type(plans)()
        }
    timeout, scalable = c.config.timeout, c.codecs.uplink.sparsifier.scalable
    return {
        f"strategy.deadline={plans.deadline:g} is later than the end of a round: give timeout= a "
        f"larger value than {timeout:g}": plans.deadline > timeout,
        "strategy.most_bits= is for a quantizer that can take more bits: give "
        "compression.quantizer=lloyd or eden, with fewer bits than the most": plans.most_bits
        and not c.codecs.uplink.quantizer.finer_by(1),
        "strategy.deadline= plans local steps and densities: give strategy.update=delta "
        "or compression=topk": s.update == "gradient" and not (scalable or plans.most_bits),
        "strategy.most_factor= is for a density: give compression=topk": plans.most_factor > 1
        and not scalable,
    }


def _robust(c: Choice, s: Any) -> Rows:
    how = s.aggregation
    used = s.participation.needed(s.participation.drawn(c.config.nodes))
    left_out = int(used * how.trim) if how.mean == "trimmed" else (used - 1) // 2
    larger = "trim" if used >= MEDIAN else "number of nodes"
    return {
        f"strategy.mean={how.mean} of {used} updates a round leaves none out: give a larger "
        f"{larger}, or strategy.mean=mean": how.kind != "mean" and not left_out
    }


def _sums(c: Choice, s: Any) -> Rows:
    """Return the rows of an optimiser that adds up the nodes' changes.

    The sums are right only if the server uses the changes of all nodes as they sent them, each with
    the same weight in every round, and the nodes get the whole mean in the end.
    """
    among, how, follow = s.participation, s.aggregation, s.follow
    forgets = c.codecs.downlink is not None and not c.codecs.downlink.sends_all
    wrong = {
        "strategy.fraction_train=1": among.fraction_train != 1,
        "strategy.quorum=1": among.quorum != 1,
        "strategy.mean=mean": how.mean != "mean",
        "strategy.sender_exponent=0": how.sender_exponent != 0,
        "strategy.weighted_by_key=null": how.weighted_by_key is not None,
        "screen.clip=null": c.config.screen.clip is not None,
        "downlink=average": follow == "steps" and forgets,
        "strategy.follow=steps": follow == "weights",
    }
    ef21 = "strategy/optimizer=ef21 adds up the changes of all nodes, as the nodes sent them"
    return _cures(ef21, wrong) if s.optimizer.incremental else {}


def _secure(c: Choice, s: Any) -> Rows:
    """Return the rows of a secure sum, of which the server sees no single update.

    Whatever the server does with a single update is refused: it would do nothing, or need what the
    sum is to hide.
    """
    mode, least, codec = c.config.secure.mode, c.config.secure.least, c.codecs.uplink
    if mode == "none":
        return {}
    from edgewire.compression.secure.terms import MOST_NODES  # few runs need the library

    summable = isinstance(codec.quantizer, SummableQuantizer) and not codec.sparsifier.selects
    wrong = {
        "compression=grid or lowrank, of which sums can be taken": not summable,
        "compression.coder=raw": codec.coder.name != "raw",
        "compression.exact_steps=0": codec.exact_steps > 0,
        "compression.exact=null": codec.exact_names,
        **_alike(c, s),
        "local=plain": c.local.vectors or not c.local.pending,
        "local.autocast=bfloat16": c.local.autocast == "float16",
        "strategy.follow=steps": s.follow != "steps" and c.codecs.downlink,
    }
    drawn_nodes = s.participation.drawn(c.config.nodes)
    return {
        **_cures(f"secure={mode} hides single updates", wrong),
        f"secure.least={least} nodes are needed for a round of secure={mode}, and {drawn_nodes} "
        "train in one: give more nodes=, or a larger strategy.fraction_train": drawn_nodes < least,
        f"secure={mode} takes at most {MOST_NODES} nodes a round, and {drawn_nodes} train in one: "
        "give a smaller strategy.fraction_train": drawn_nodes > MOST_NODES,
    }


def _alike(c: Choice, s: Any) -> Rows:
    """Return the cures, and whether each is needed, of a sum in which all nodes count alike."""
    among, how, screen = s.participation, s.aggregation, c.config.screen
    return {
        "strategy.mean=mean": how.mean != "mean",
        "strategy.weighted_by_key=null": how.weighted_by_key is not None,
        "strategy.sender_exponent=0": how.sender_exponent != 0,
        "strategy.quorum=1": among.quorum != 1,
        "strategy.fraction_evaluate=0": among.fraction_evaluate > 0,
        "strategy.mask_received=false": s.mask_received,
        "strategy.deadline=null": s.planning.deadline is not None,
        "screen.refuse=null": screen.refuse is not None,
        "screen.clip=null": screen.clip is not None,
        "screen.statistics=null": screen.statistics is not None,
        "screen.weight=null": screen.weight is not None,
        "local=plain": c.local.vectors,
    }


def _momenta(c: Choice, s: Any) -> Rows:
    """Return the rows of an optimiser to which nodes send momenta."""
    wrong = {
        "strategy.update=gradient": s.update != "gradient",
        "a downlink= other than full": c.codecs.downlink is None,
        "strategy.follow=steps": s.follow != "steps",
        "strategy.mask_received=false": s.mask_received,
    }
    adam = "strategy/optimizer=one_bit_adam is for nodes that send gradients and repeat the"
    return _cures(f"{adam} server's steps", wrong) if s.optimizer.sends_momentum else {}


def _asynchronous(c: Choice, s: Any) -> Rows:
    p = s.pushing
    return {
        f"strategy: buffer={p.buffer} is never full with pushes={p.pushes}": p.buffer > p.pushes,
        "strategy: sender_exponent is from 0 to 1, and a value above 0 goes with a buffer above 1, "
        f"not {p.sender_exponent:g} with buffer={p.buffer}": p.sender_exponent and p.buffer == 1,
        "strategy: mix goes with update=delta, buffer=1 and a server_lr of at most 1": p.mix
        and (s.update != "delta" or p.buffer > 1 or s.server_lr > 1),
        "personal= needs rounds, after which the nodes evaluate the model: give "
        "strategy=sparse_averaging, or one of Flower's": c.config.personal,
        **_updates(c, s),
    }


def _pipeline(c: Choice, s: Any) -> Rows:
    config, flow, modules, back = c.config, s.flow, s.modules, not s.synthetic
    several, each, crash = flow.micro_batches > 1, flow.batches_per_message, config.network.crash
    plain = {
        "trainable": config.trainable is None,
        "adapter": config.adapter["_target_"] == "edgewire.task.finetuning.Adapter",
        "personal": config.personal is None,
        "local": config.local["_target_"] == "edgewire.task.local.LocalAlgorithm",
        "model.file": config.model.file is None,
        "model.dtype": config.model.dtype == "float32",
    }
    whole = "does not go with a cut model, which is trained whole: drop it"
    return {
        "strategy: trained_by=loss needs the labels: drop conditioned=false": not (
            modules.conditioned or modules.trained_by != "loss"
        ),
        "strategy: batches_per_message does not go with micro_batches": each > 1 and several,
        f"strategy: eval_every={s.record_every} must be a multiple of "
        f"batches_per_message={each}": s.record_every % each,
        "strategy: micro_batches goes with synthetic=false (algorithm=split_backprop)": several
        and s.synthetic,
        "strategy: module, hidden, trained_by and conditioned go with synthetic gradients "
        "alone": back and modules != type(modules)(),
        "strategy: schedule=async goes with synthetic gradients alone": back
        and flow.schedule == "async",
        "strategy: micro_batches goes with schedule=pipeline": several
        and flow.schedule == "sequential",
        "strategy: activations go down as they came up: downlink=full": c.codecs.downlink,
        **_recorded(c, s),
        "a cut model's nodes step with each mini-batch: drop local_steps= and local_epochs=": (
            config.local_steps is not None or config.local_epochs != 1
        ),
        **{f"{key}= {whole}": not fits for key, fits in plain.items()},
        f"network.crash={crash:g} needs a timeout= here, the virtual seconds after which another "
        "node takes a segment over": crash and config.timeout >= FOREVER,
    }


# The rows of strategies that compress messages themselves, by an attribute that such a kind has.
OWN: dict[str, Callable[[Choice, Any], Rows]] = {
    "aggregation": _averaging,
    "pushing": _asynchronous,
    "cutting": _pipeline,
}


def _check_receivers(c: Choice) -> None:
    """Raise `ConfigError` for a method that is wrong for what receives its payloads.

    With strategy.follow=steps the downlink's payloads are updates, otherwise differences of models.
    """
    optimizer = getattr(c.strategy, "optimizer", None)
    momentum = getattr(optimizer, "momentum", 0) or getattr(optimizer, "sends_momentum", False)
    sums = getattr(optimizer, "incremental", False)
    gradients = getattr(c.strategy, "update", "") == "gradient" and not (momentum or sums)
    updates = "gradients" if gradients else "models"
    known = getattr(c.strategy, "knows_context", False)
    steps = getattr(c.strategy, "follow", "") == "steps"
    for group, codec, receiver in (
        ("compression", c.codecs.uplink, "sums" if sums else updates),
        ("downlink", c.codecs.downlink, updates if steps else "differences"),
        ("gradients", c.gradients, "gradients"),
    ):
        try:
            if codec is not None:
                codec.expect_receiver(receiver, contextual=known and group != "gradients")
        except ValueError as error:
            raise ConfigError(f"{group}: {error}") from error


def _messages(c: Choice) -> Rows:
    """Return the rows of every run, after those of its strategy."""
    cut = not getattr(c.strategy, "sends_models", True)
    steps = getattr(c.strategy, "follow", "") == "steps"  # nodes repeat the server's steps
    secure = c.config.secure
    averages = hasattr(c.strategy, "aggregation") and c.config.strategy.get("_partial_")
    personal, local = c.config.personal, type(c.local).__name__.lower()
    measured = c.config.dataset.holdout and evaluates(c.strategy)
    hidden = secure.mode != "none" or c.config.privacy.on  # exact metrics are not sent
    return {
        f"secure={secure.mode} is for strategy=sparse_averaging: with another strategy the server "
        "sees each update": secure.mode != "none" and not averages,
        "secure.masks=false hides nothing: it is for engine=local": not secure.masks
        and not _is_local(c.config),
        f"local={local} sends vectors of the whole model, and personal= keeps a part of it at the "
        "node: give local=plain": personal and c.local.vectors,
        "personal= keeps layers at the nodes, so only they can evaluate the model: give "
        "dataset.holdout=0.2 strategy.fraction_evaluate=1": personal and not (measured or hidden),
        "compact_records=true is for messages with models: give compact_records=false with a "
        "model that is cut over nodes": cut and c.config.compact_records,
        "coder=context is for a downlink that sends changes, because they make the context: "
        f"choose one such as downlink=topk, or {ENTROPY}": c.codecs.contextual
        and (c.codecs.downlink is None or (c.codecs.downlink.exact and not steps)),
        "gradients= is for activations' gradients, of a model that is cut over nodes: "
        "it goes with strategy=synthetic_gradients or split_backprop": not cut
        and not c.gradients.exact,
    }
