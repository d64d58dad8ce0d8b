"""The ClientApp: a node trains or tests the received model on its own images."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pytorchexample.task import Net, load_data
from pytorchexample.task import test as test_fn
from pytorchexample.task import train as train_fn

app = ClientApp()


def begin(msg: Message, context: Context):
    """Return a network with the parameters from a message, and this node's data."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    torch.manual_seed(context.node_config["partition-id"])
    return model, load_data(context.node_config["partition-id"], context.run_config["batch-size"])


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""
    model, (trainloader, _) = begin(msg, context)
    loss = train_fn(
        model, trainloader, context.run_config["local-epochs"], msg.content["config"]["lr"]
    )
    metrics = {"train_loss": loss, "num-examples": len(trainloader.dataset)}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Test the model on local data."""
    model, (_, testloader) = begin(msg, context)
    loss, accuracy = test_fn(model, testloader)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(testloader.dataset)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
