"""The ClientApp: sends back what it got."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def echo(message: Message, context: Context) -> Message:
    """Reply with the message's own content."""
    return Message(message.content, reply_to=message)
