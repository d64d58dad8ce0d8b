"""A registry of named members, such as models: to add a member, add a module."""

import importlib
import pkgutil
import sys
from collections.abc import Callable
from typing import Generic, TypeVar

from edgewire.task.errors import TaskError

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
        """Return a decorator that adds a member as `name`.

        Raises `RuntimeError` if another member has this name. A function with the same module and
        name takes the place of the earlier one: its module is imported again.
        """

        def add(member: T) -> T:
            if not _place_of(member)[0].startswith(f"{self._package}."):
                self._discover()  # a member of this package never comes after one with its name
            if name in self.members and _place_of(member) != _place_of(self.members[name]):
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


def _place_of(member: object) -> tuple[str, str]:
    """Return the module and the name of a function or class."""
    return str(getattr(member, "__module__", "")), str(getattr(member, "__qualname__", member))
