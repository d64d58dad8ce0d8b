"""The ClientApp: a node trains a linear classifier for a few iterations on its own digits."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

from sklearnexample.task import fit, get_params, load_data, make_model, set_params

app = ClientApp()


def begin(msg: Message, context: Context):
    """Return a classifier with the parameters from a message, and this node's data."""
    config, node = context.run_config, context.node_config
    model = make_model(config["model.penalty"], config["model.local-epochs"])
    set_params(model, msg.content["arrays"].to_numpy_ndarrays())
    return model, load_data(node["partition-id"], node["num-partitions"])


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""
    model, (x, y, _, _) = begin(msg, context)
    fit(model, x, y)
    metrics = {"train_logloss": log_loss(y, model.predict_proba(x), labels=model.classes_)}
    content = {
        "arrays": ArrayRecord(get_params(model)),
        "metrics": MetricRecord({**metrics, "num-examples": len(x)}),
    }
    return Message(content=RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Test the model on local data."""
    model, (_, _, x, y) = begin(msg, context)
    metrics = {"accuracy": model.score(x, y), "num-examples": len(x)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
