"""Python values as the overrides of a command have them."""

import json
import re
from pathlib import Path
from typing import Any

from edgewire.task.errors import TaskError

PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")  # texts that Hydra reads without quotes
IN = r"[^=,()\[\]]"  # TEXTS: those with brackets that close, or with other letters
TEXTS = re.compile(rf"{IN}+([(\[]{IN}*[)\]]{IN}*)+|{IN}*[^\x00-\x7f=,()\[\]]{IN}*")
WORDS = ("null", "true", "false", "nan", "inf")  # Hydra reads these as other values than texts


def quoted(text: str) -> str:
    """Return a text in quotes, as the value of an override."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text, Quote.single).with_quotes()


def with_quotes(word: str) -> str:
    """Return an override with quotes around texts with other letters than a to z, or with brackets.

    A word is returned as it is if Hydra can read it, or if it has quotes or a mapping.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, sign, value = word.partition("=")
    if sign and word[0] != "-" and not {*value} & {*"'\"{"}:
        try:
            OverridesParser.create().parse_override(word)
        except HydraException:
            return key + sign + TEXTS.sub(lambda found: quoted(found[0].strip()), value)
    return word


def text_of(value: Any) -> str:
    """Return a value as Hydra's parser reads it. Raises `TaskError` for an object of another kind.

    `value`: a number, text, path, list or dictionary, or a number or array of numpy's or torch's.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(text_of, value))}]"
    if isinstance(value, dict):  # Hydra knows no quotes in keys
        keys = (re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", str(key)) for key in value)
        return f"{{{','.join(map('{}:{}'.format, keys, map(text_of, value.values())))}}}"
    if isinstance(value, int | float):
        return repr(value)
    if not isinstance(value, str | Path):
        raise TaskError(f"{value!r} is no value of an override: give a number, text, list or dict")
    text = str(value)
    return text if PLAIN.fullmatch(text) and text.lower() not in WORDS else quoted(text)
