"""The ClientApp: a node stores its training losses and its optimiser's momenta between rounds."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from advancedexample.task import Net, load_data, waves
from advancedexample.task import test as test_fn
from advancedexample.task import train as train_fn

app = ClientApp()


def load_model(msg: Message):
    """Return a network with the parameters from a message."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    return model


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""
    state = context.state
    if len(state) == 0:  # the first message to this node
        state["momenta"], state["history"] = ArrayRecord(), ConfigRecord({"losses": []})
    model, partition = load_model(msg), context.node_config["partition-id"]
    loader = load_data(partition, context.run_config["batch-size"])
    momenta = [array.clone() for array in state["momenta"].to_torch_state_dict().values()]
    loss, momenta = train_fn(model, loader, msg.content["config"]["lr"], momenta)
    state["momenta"] = ArrayRecord({str(i): each for i, each in enumerate(momenta)})
    state["history"]["losses"] = [*state["history"]["losses"], loss]
    metrics = {"train_loss": loss, "num-examples": 128, "times": len(state["history"]["losses"])}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Test the model on local data; reply with metrics and a confusion matrix."""
    model, data = load_model(msg), waves(64, 1001 + context.node_config["partition-id"])
    loss, accuracy = test_fn(model, data)
    x, kinds = data.tensors
    with torch.no_grad():
        found = torch.zeros(4, 4).index_put_(
            (kinds, model(x).argmax(1)), torch.ones(len(kinds)), accumulate=True
        )
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(kinds)}
    content = {"metrics": MetricRecord(metrics), "confusion": ArrayRecord({"counts": found})}
    return Message(content=RecordDict({**content}), reply_to=msg)
