"""A grid in another process: servers can start and stop while messages are under way."""

from contextlib import suppress

from edgewire.compression.flower.timed_grid import TimedGrid

ATTRIBUTES = ("virtual_seconds", "now", "next_change", "comparison")


class RemoteGrid:
    """A grid whose calls are answered by the process at the pipe's other end."""

    def __init__(self, connection):
        self.connection = connection

    def __getattr__(self, name):
        def call(*arguments, **options):
            self.connection.send((name, arguments, options))
            return self.connection.recv()

        return call


def attribute(name):
    return property(lambda self: RemoteGrid.__getattr__(self, name)())


for name in vars(TimedGrid):
    if not name.startswith("_"):
        value = attribute(name) if name in ATTRIBUTES else None
        if value is None:

            def value(self, *arguments, name=name, **options):
                return RemoteGrid.__getattr__(self, name)(*arguments, **options)

        setattr(RemoteGrid, name, value)


def serve(grid, connection):
    """Answer calls until the other end sends "end" or closes; return what it sent with "end"."""
    with suppress(EOFError):
        while (call := connection.recv())[0] != "end":
            name, arguments, options = call
            if name in ATTRIBUTES:
                connection.send(getattr(grid, name))
                continue
            found = getattr(grid, name)(*map(listed, arguments), **options)
            connection.send(listed(found))
        return call[1]
    return None


def listed(value):
    """Return a value in a form that a pipe can carry: any iterable becomes a list."""
    if isinstance(value, str | bytes | float | int) or value is None:
        return value
    return list(value) if hasattr(value, "__iter__") else value
