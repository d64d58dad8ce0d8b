"""The ClientApp, which sends back the content that it receives."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def echo(message: Message, context: Context) -> Message:
    """Reply with the content of the message."""
    return Message(message.content, reply_to=message)
