"""Reads the fields of a definition's YAML; raises `ResultsError` for invalid fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from report.errors import ResultsError

ID = re.compile(r"[\w-]+")


def expect_keys(what: str, content: Any, keys: Mapping[str, bool]) -> None:
    """Raise `ResultsError` unless all keys are known, and all required keys are present."""
    if not isinstance(content, dict):
        raise ResultsError(f"{what} must have the keys {', '.join(keys)}, not be {content!r}")
    if unknown := [key for key in content if key not in keys]:
        raise ResultsError(f"{what} has no {unknown[0]}; there are: {', '.join(keys)}")
    if missing := [key for key, needed in keys.items() if needed and key not in content]:
        raise ResultsError(f"{what} needs {missing[0]}")


def number(content: Mapping[str, Any], key: str) -> float | None:
    """Return the number above 0 under a key; None if the key is missing."""
    value = content.get(key)
    if value is None or (isinstance(value, int | float) and value > 0):
        return value
    raise ResultsError(f"{key} must be a number above 0, not {value!r}")


def whole_number(content: Mapping[str, Any], key: str) -> int | None:
    """Return the integer above 0 under a key; None if the key is missing."""
    value = number(content, key)
    if value is None or int(value) == value:
        return None if value is None else int(value)
    raise ResultsError(f"{key} must be a whole number, not {value!r}")


def expect_different(what: str, values: list[str]) -> None:
    """Raise `ResultsError` if a value occurs more than once. `what`: the name of the values."""
    for value in values:
        if values.count(value) > 1:
            raise ResultsError(f"several {what} {value!r}")


def identifier(content: Mapping[str, Any]) -> str:
    """Return the id with which texts refer to a row or a table."""
    text = text_of(content, "id")
    if not ID.fullmatch(text):
        raise ResultsError(f"an id is letters, digits, - and _, not {text!r}")
    return text


def text_of(content: Mapping[str, Any], key: str) -> str:
    """Return the text or number under a key as one line of text; "" if the key is missing."""
    return joined(content.get(key, ""))


def joined(value: Any) -> str:
    """Return a text or number as one line of text."""
    if not isinstance(value, str | int | float):
        raise ResultsError(f"{value!r} must be a text")
    return " ".join(str(value).split())


def list_of(content: Mapping[str, Any], key: str) -> list[Any]:
    """Return the list under a key; an empty list if the key is missing."""
    value = content.get(key, [])
    if not isinstance(value, list):
        raise ResultsError(f"{key} must be a list")
    return value
