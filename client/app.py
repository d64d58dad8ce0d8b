"""The ClientApp: for each message it trains or evaluates on the node's data, and replies."""

import re
from dataclasses import replace
from functools import cache
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from edgewire.client.node import Node, node_of
from edgewire.client.training import Metrics, Trainer, Vector, trainer_for
from edgewire.compression.base import PayloadError
from edgewire.compression.flower import filled, flat_record, to_vector, update_record
from edgewire.compression.flower.headers import SECONDS, TrainConfig
from edgewire.compression.flower.native_tensors import Arrays, natives_of, with_natives
from edgewire.compression.flower.node.secure import SecureMod, secret_of
from edgewire.compression.flower.records import content_of, reply_to, values_of
from edgewire.compression.flower.secure_messages import QUERIES
from edgewire.conf.build import table_options
from edgewire.conf.load import load_config
from edgewire.conf.schema import Config, ConfigError
from edgewire.conf.trust import is_local
from edgewire.pipeline.node.app import segments_for
from edgewire.task.errors import MissingOption


class LocalError(RuntimeError):
    """An error at this node. Its text is written only to this node's log."""

    one_line = True  # it is logged without a traceback


def discreet(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Hide from the server the text of errors that may name this node's folders, files or classes.

    Flower sends the text of an exception to the server, in the error reply. This function lets
    Flower send the text of errors about the server's own configuration and payloads, without what
    `ConfigError.for_others` leaves out. It replaces any other error by a `LocalError`, which names
    only the error's type. If the run was configured on this machine's own command line, it replaces
    no error.
    """
    try:
        return call_next(message, context)
    except (PayloadError, MissingOption):
        raise
    except Exception as error:
        if is_local(context.run_config):
            raise
        if isinstance(error, ConfigError):
            raise error.for_others() from error.__cause__
        raise LocalError(f"{type(error).__name__}; this node's own log says more") from error


app = ClientApp(mods=[discreet])
# What a node's owner may demand of runs by --node-config secure=: the modes that are allowed.
FLOOR = dict.fromkeys(("0", "false"), "none sum bare") | dict.fromkeys(("1", "true"), "sum bare")
FLOOR["sum"] = "sum"


def _read(message: Message) -> tuple[Vector, TrainConfig, Arrays]:
    """Return a message's model, float32 (n,), its settings, and the tensors of other dtypes."""
    content = values_of(content_of(message))
    arrays = content["arrays"]
    return to_vector(arrays), TrainConfig.of(values_of(content["config"])), natives_of(arrays)


def _reply(message: Message, arrays: ArrayRecord, metrics: Metrics) -> Message:
    """Return the reply; its metric `seconds` is 0 until `CompressionMod` sets the node's time."""
    measured = filled(MetricRecord, {**metrics, SECONDS: 0.0})
    content = filled(RecordDict, {"arrays": arrays, "metrics": measured})
    return reply_to(message, content)


def _known(context: Context, shows: str = "") -> tuple[Config, Node]:
    """Return the run's checked configuration, and the `Node`.

    `shows`: what the reply would tell of this node alone, which ends a run with a secure sum.
    """
    node = node_of(context)
    config = load_config(context.run_config, node.count, context.node_config)
    mode, given = config.secure.mode, context.node_config
    least, floor = given.get("secure-least", 0), given.get("secure", 0)
    used = mode if config.secure.masks else "none"
    _expect_allowed(str(least).lower(), str(floor).lower(), used, bool(config.personal))
    if shows and mode != "none":
        raise ConfigError(f"secure={mode} hides single nodes: {shows} is not sent")
    if secret := secret_of(context):
        node = replace(node, secret=secret)
    return config, node


@cache  # once a run, not once a message
def _expect_allowed(least: str, floor: str, used: str, personal: bool) -> None:
    """Raise `ConfigError` for a node's wrong options, and for a run that its owner forbids."""
    if not re.fullmatch("[0-9]{1,9}", least):
        raise ConfigError(f"--node-config secure-least={least}: this node needs a count of nodes")
    if floor not in FLOOR:
        raise ConfigError(f"--node-config secure={floor}: this node needs 0, 1 or sum")
    allowed = FLOOR[floor].split()
    if used not in allowed:
        modes = " and ".join(f"secure={each}" for each in allowed)
        raise ConfigError(f"this node's owner allows {modes} alone")
    if floor not in ("0", "false") and personal:
        raise ConfigError("this node's owner asks for a secure sum, which personal= would weaken")


def _trainer(context: Context, shows: str = "") -> tuple[Trainer, Node]:
    """Return the run's trainer, which is built once per process, and the `Node`."""
    config, node = _known(context, shows)
    return trainer_for(config, node.folder), node


def uplink(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Decode the message and encode the reply with the run's `CompressionMod` (a Flower mod)."""
    trainer, _ = _trainer(context)
    return trainer.uplink(message, context, call_next)


@app.train(mods=[uplink])
def train(message: Message, context: Context) -> Message:
    """Train the received model; reply with the new model (`CompressionMod` sends a delta)."""
    trainer, node = _trainer(context)
    vector, metrics = trainer.train(node, *_read(message), context.state)
    return _reply(message, with_natives(flat_record(vector), trainer.natives()), metrics)


@app.train("step", mods=[uplink])
def step(message: Message, context: Context) -> Message:
    """Reply to a strategy of EdgeWire with an update of the received model."""
    trainer, node = _trainer(context)
    update, metrics = trainer.update(node, *_read(message), context.state)
    return _reply(message, with_natives(update_record(update), trainer.natives()), metrics)


@app.train("segment")
def segment(message: Message, context: Context) -> Message:
    """Train this node's segment of a model that is cut into segments (`edgewire.pipeline.node`)."""
    config, node = _known(context, "what layers make of samples")
    return segments_for(config, node.folder).answer(message, context)


@app.query("columns")
def columns(message: Message, context: Context) -> Message:
    """Reply with what the node's rows say of a table's columns, unless its user has said no."""
    from edgewire.task.datasets.table import surveyed  # a device without tables has no pyarrow

    if str(context.node_config.get("survey", True)).lower() == "false":
        raise ConfigError("this node sends no survey: it was started with survey=false")
    config, node = _known(context, "a survey")
    survey = surveyed(node.index, node.count, **table_options(config, node.folder)).to_bytes()
    return reply_to(message, RecordDict({"columns": ConfigRecord({"survey": survey})}))


@app.evaluate(mods=[uplink])
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the received model on the node's held-back samples; on all if none are held back."""
    trainer, node = _trainer(context, "an evaluation")
    arrays = cast(ArrayRecord, message.content["arrays"])
    metrics = trainer.evaluate(node, to_vector(arrays), natives_of(arrays), context.state)
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def secure_answer(message: Message, context: Context) -> Message:
    """Answer a message about the keys or shares of a secure sum."""
    trainer, _ = _trainer(context)
    if not isinstance(trainer.uplink, SecureMod):
        raise ConfigError("this run has no secure sum: give secure=sum or secure=bare")
    return trainer.uplink.answer(message, context)


for name in QUERIES:
    app.query(name)(secure_answer)
