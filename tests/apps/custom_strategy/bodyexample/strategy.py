"""A strategy that averages whole models at first, then their bodies only."""

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from bodyexample.task import HEAD


class FedBody(FedAvg):
    """FedAvg of whole models in the first `together` rounds, and of only their bodies after that.

    In the first round that averages bodies, the server still sends a whole model, and nodes reply
    with bodies. In later rounds the server sends bodies too. The result is a whole model.
    """

    def __init__(self, together, **options):
        super().__init__(**options)
        self.together = together

    def configure_train(self, server_round, arrays, config, grid):
        """Tell the nodes whether to reply with whole models."""
        config["together"] = server_round <= self.together
        sent = arrays if server_round <= self.together + 1 else body_of(arrays)
        return super().configure_train(server_round, sent, config, grid)

    def aggregate_train(self, server_round, replies):
        """Average the replies; take the head of an earlier round if the replies have none."""
        mean, metrics = super().aggregate_train(server_round, replies)
        return None if mean is None else self.whole(mean), metrics

    def whole(self, mean):
        """Return a whole model: a mean of bodies gets the head that was averaged last."""
        if any(name.startswith(HEAD) for name in mean):
            self.head = {name: mean[name] for name in mean if name.startswith(HEAD)}
            return mean
        return ArrayRecord({**mean, **self.head})

    def configure_evaluate(self, server_round, arrays, config, grid):
        """Send the model to nodes that test it: only its body, if bodies are averaged."""
        config["together"] = server_round <= self.together
        sent = arrays if server_round <= self.together else body_of(arrays)
        return super().configure_evaluate(server_round, sent, config, grid)


def body_of(arrays):
    """Return a model without its head."""
    return ArrayRecord({name: arrays[name] for name in arrays if not name.startswith(HEAD)})
