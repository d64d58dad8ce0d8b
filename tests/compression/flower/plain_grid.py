"""Nodes in this very process, for an environment that has an app's packages and nothing of ours.

Of Flower it takes what all of its versions from 1.27 on have.
"""

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid


class PlainGrid(Grid):
    """Answers each message at once; a node's state lives here."""

    def __init__(self, client_app, nodes):
        _be_a_server()
        self.client_app = client_app
        self.contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": node - 1, "num-partitions": nodes},
                state=RecordDict(),
                run_config={},
            )
            for node in range(1, nodes + 1)
        }
        self.replies = {}

    def set_run(self, run):
        """There is but one."""

    @property
    def run(self):
        raise AssertionError("no strategy of Flower's asks for the run, no app here either")

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        return [self._answered(message) for message in messages]

    def _answered(self, message):
        name = str(len(self.replies))
        message.metadata.__dict__["_message_id"] = name  # as Flower's own grids do
        context = self.contexts[message.metadata.dst_node_id]
        self.replies[name] = self.client_app(message, context)
        return name

    def pull_messages(self, message_ids):
        return [self.replies[each] for each in message_ids]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


def _be_a_server():
    """Say who sends the messages: newer Flowers ask, and only their own processes know."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
