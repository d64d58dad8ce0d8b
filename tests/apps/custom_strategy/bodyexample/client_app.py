"""The ClientApp: a node trains the body that it receives, and a head that it never sends."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from bodyexample.task import HEAD, Net, load_data
from bodyexample.task import test as test_fn
from bodyexample.task import train as train_fn

app = ClientApp()


def begin(msg: Message, context: Context):
    """Return the network to train or test, and the node's data.

    The network has the server's body. Its head is the node's own. It is the server's head while
    whole models are trained, or if the node has no head yet.
    """
    own, sent = context.state, msg.content["arrays"].to_torch_state_dict()
    model, together = Net(), msg.content["config"]["together"]
    if "head" in own.array_records and not together:
        sent |= own["head"].to_torch_state_dict()
    model.load_state_dict(sent)
    partition, size = context.node_config["partition-id"], context.run_config["batch-size"]
    return model, load_data(partition, size), together


@app.train()
def train(msg: Message, context: Context):
    """Train body and head; reply with the body, and with the head if the server asks for it."""
    model, (loader, _), together = begin(msg, context)
    loss = train_fn(model, loader, msg.content["config"]["lr"])
    state = model.state_dict()
    head = {name: state[name] for name in state if name.startswith(HEAD)}
    context.state["head"] = ArrayRecord(head)
    if not together:
        state = {name: value for name, value in state.items() if name not in head}
    metrics = {"train_loss": loss, "num-examples": len(loader.dataset)}
    content = {"arrays": ArrayRecord(state), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Test the server's body with this node's head."""
    model, (_, data), _ = begin(msg, context)
    metrics = {"eval_acc": test_fn(model, data), "num-examples": len(data)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
