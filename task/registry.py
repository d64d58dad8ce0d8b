"""A registry of named members, such as models: to add a member, add a module."""

import importlib
import pkgutil
import sys
from collections.abc import Callable
from typing import Generic, TypeVar

from task.errors import TaskError

T = TypeVar("T")


class Registry(Generic[T]):
    """The members of `package`; the first look-up imports its modules.

    Args:
        kind: the kind of a member in messages, such as "model".
        package: the name of the package whose modules register the members.
    """

    def __init__(self, kind: str, package: str) -> None:
        self._kind = kind
        self._package = package
        self.members: dict[str, T] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that adds a member as `name`."""

        def add(member: T) -> T:
            if name in self.members:
                raise RuntimeError(f"two {self._kind}s are named {name}")
            self.members[name] = member
            return member

        return add

    def names(self) -> list[str]:
        """Return all names, sorted."""
        self._discover()
        return sorted(self.members)

    def get(self, name: str) -> T:
        """Return the member called `name`. Raises `TaskError`, which lists all names."""
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
