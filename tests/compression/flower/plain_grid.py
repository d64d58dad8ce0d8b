"""A grid of nodes in this process, which imports only Flower.

Tests with an installed wheel use this grid. It uses only names that every release
of Flower since 1.27 has.
"""

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid


class PlainGrid(Grid):
    """A grid that answers each message at once and stores the nodes' contexts."""

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
        """Do nothing: this grid has one run."""

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
    """Set the run and node that send messages; newer Flower releases read them from the process."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
