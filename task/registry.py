"""A named collection whose members register themselves: adding one means adding a module."""

import importlib
import pkgutil
import sys
from collections.abc import Callable
from typing import Generic, TypeVar

from task.errors import TaskError

T = TypeVar("T")


class Registry(Generic[T]):
    """Members of `package`, found by importing its modules at the first look-up.

    Args:
        kind: what a member is called in messages, e.g. "model".
        package: name of the package whose modules register the members.
    """

    def __init__(self, kind: str, package: str) -> None:
        self._kind = kind
        self._package = package
        self.members: dict[str, T] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that adds a member as `name`."""

        def add(member: T) -> T:
            if name in self.members:
                raise RuntimeError(f"two {self._kind}s are named {name}")
            self.members[name] = member
            return member

        return add

    def names(self) -> list[str]:
        """All names, sorted."""
        self._discover()
        return sorted(self.members)

    def get(self, name: str) -> T:
        """The member called `name`; TaskError lists the names when there is none."""
        self._discover()
        if name not in self.members:
            raise TaskError(
                f"no {self._kind} named {name}: choose one of {', '.join(self.names())}"
            )
        return self.members[name]

    def _discover(self) -> None:
        if not self._discovered:
            path = sys.modules[self._package].__path__
            for module in pkgutil.iter_modules(path, f"{self._package}."):
                importlib.import_module(module.name)
            self._discovered = True
